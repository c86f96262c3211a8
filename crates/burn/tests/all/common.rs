//! Worlds to run tests in, and folders.

use phalanx::ProcessGroup;
use phalanx_testkit::World;
use std::path::Path;
use std::sync::Arc;

/// Runs `rank` on as many ranks over each transport.
pub(crate) fn everywhere(ranks: usize, rank: impl Fn(ProcessGroup) + Send + Sync + 'static) {
    let rank = Arc::new(rank);
    for world in [World::thread(), World::shm(), World::tcp()] {
        let rank = rank.clone();
        world.run(ranks, move |group| rank(group));
    }
}

/// Copies a folder with all that is in it.
pub(crate) fn copy_all(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_all(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
