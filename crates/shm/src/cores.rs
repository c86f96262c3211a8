//! Which rank runs on which core.
//!
//! Ranks that wake each other are drawn to one core, and when each of them only ever gives the core to the next, the scheduler sees
//! no reason to part them: eight ranks on one core of two take twice as long. So ranks look now and then where the others
//! are, and one that is on a crowded core moves to an emptier one, once; no rank is bound to a core.

use crate::region::Region;
use crate::sync::Ordering;
use phalanx_transport::wait_policy::{CoreSharing, cores_in, move_to};
use rustix::thread::{sched_getaffinity, sched_getcpu};
use std::time::{Duration, Instant};

/// How often a waiting rank looks where the others are.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// Puts a rank on the core where it begins: ranks are started side by side on one core.
pub(crate) fn begin(rank: usize, world_size: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    if let Some(core) = CoreSharing::WithNeighbours.home_core(rank, world_size, &allowed) {
        move_to(core, &allowed);
    }
}

/// When this rank looks where the others are.
#[derive(Debug, Default)]
pub(crate) struct Cores {
    look_after: Option<Instant>,
}

impl Cores {
    /// Shows the others where this rank is, and moves it if too many are there.
    pub(crate) fn look(&mut self, now: Instant, region: &Region, rank: usize, world_size: usize) {
        if self.look_after.is_some_and(|after| now < after) {
            return;
        }
        self.look_after = Some(now + LOOK_INTERVAL);
        let here = sched_getcpu();
        region.control(rank).core.0.store(here as u32 + 1, Ordering::Relaxed);
        let core_of = |rank| (region.control(rank).core.0.load(Ordering::Relaxed) as usize).wrapping_sub(1);
        let ranks_on = |core| (0..world_size).filter(|&r| core_of(r) == core).count();
        // One of them moves, not all.
        if ranks_on(here) < 2 || (rank + 1..world_size).any(|r| core_of(r) == here) {
            return;
        }
        // Those of this thread, now: another may have others, and the program may have bound this one since.
        let Ok(allowed) = sched_getaffinity(None) else { return };
        let Some(emptiest) = cores_in(&allowed).min_by_key(|&core| ranks_on(core)) else { return };
        if ranks_on(here) >= ranks_on(emptiest) + 2 {
            move_to(emptiest, &allowed);
            region.control(rank).core.0.store(emptiest as u32 + 1, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::create;
    use crate::region::segment_len;
    use rustix::thread::{CpuSet, sched_setaffinity};

    /// It shows only where there are several cores.
    #[test]
    fn a_thread_that_the_user_has_bound_stays_so() {
        let region = Region::map(create(segment_len(3)).unwrap(), 3).unwrap();
        let mut cores = Cores::default();
        let mut own = CpuSet::new();
        own.set(sched_getcpu());
        sched_setaffinity(None, &own).unwrap();
        for others in [0, 1] {
            region.control(others).core.0.store(sched_getcpu() as u32 + 1, Ordering::Relaxed);
        }
        cores.look(Instant::now(), &region, 2, 3);
        assert_eq!(sched_getaffinity(None).unwrap(), own);
    }
}
