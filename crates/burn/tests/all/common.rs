//! Worlds to run tests in.

use phalanx::ProcessGroup;
use phalanx_testkit::World;
use std::sync::Arc;

/// Runs `rank` on as many ranks over each transport.
pub(crate) fn everywhere(ranks: usize, rank: impl Fn(ProcessGroup) + Send + Sync + 'static) {
    let rank = Arc::new(rank);
    for world in [World::thread(), World::shm(), World::tcp()] {
        let rank = rank.clone();
        world.run(ranks, move |group| rank(group));
    }
}
