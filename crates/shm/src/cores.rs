//! Which rank runs on which core.
//!
//! Ranks that wake each other are drawn to one core, and when each of them only ever gives the core to the next, the scheduler sees
//! no reason to part them: eight ranks on one core of two take twice as long. So ranks look now and then where the others
//! are, and one that is on a crowded core moves to an emptier one, once; no rank is bound to a core.

use crate::region::Region;
use crate::sync::Ordering;
use phalanx_transport::wait_policy::move_to;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu};
use std::time::{Duration, Instant};

/// How often a waiting rank looks where the others are.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// The cores this rank may use.
#[derive(Debug)]
pub(crate) struct Cores {
    set: CpuSet,
    /// The same as a list.
    allowed: Vec<usize>,
    look_after: Option<Instant>,
}

impl Cores {
    pub(crate) fn allowed() -> Self {
        let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let allowed = (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect();
        Self { set, allowed, look_after: None }
    }

    /// Where rank `rank` begins: side by side on one core is how they are started.
    pub(crate) fn begin(&self, rank: usize) {
        if !self.allowed.is_empty() {
            move_to(self.allowed[rank % self.allowed.len()], &self.set);
        }
    }

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
        if (rank + 1..world_size).any(|r| core_of(r) == here) {
            return;
        }
        let Some(emptiest) = self.allowed.iter().copied().min_by_key(|&core| ranks_on(core)) else { return };
        if ranks_on(here) >= ranks_on(emptiest) + 2 {
            move_to(emptiest, &self.set);
            region.control(rank).core.0.store(emptiest as u32 + 1, Ordering::Relaxed);
        }
    }
}
