//! Worlds to run tests in.

use phalanx_ferrotorch::{Backend, Group};
use phalanx_testkit::World;
use std::sync::Arc;

/// Runs `rank` on as many ranks over each transport.
pub(crate) fn everywhere(ranks: usize, rank: impl Fn(Arc<dyn Backend>) + Send + Sync + 'static) {
    let rank = Arc::new(rank);
    for world in [World::thread(), World::shm(), World::tcp()] {
        let rank = rank.clone();
        world.run(ranks, move |group| rank(Arc::new(Group::from(group))));
    }
}
