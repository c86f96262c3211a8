//! A job of several ranks inside one test.

use phalanx::{ProcessGroup, SimulatedBackend};

/// Runs `rank` once on each of `world_size` ranks; results in rank order.
pub(crate) fn on_ranks<R: Send>(world_size: usize, rank: impl Fn(ProcessGroup) -> R + Sync) -> Vec<R> {
    std::thread::scope(|s| {
        let rank = &rank;
        let ranks: Vec<_> = SimulatedBackend::create_group(world_size)
            .into_iter()
            .map(|group| s.spawn(move || rank(group)))
            .collect();
        ranks.into_iter().map(|r| r.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}
