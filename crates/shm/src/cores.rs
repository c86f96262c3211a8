//! Which rank runs on which core.
//!
//! Ranks that wake each other are drawn to one core, and when each of them only ever gives the core to the next, the scheduler sees
//! no reason to part them: eight ranks on one core of two take twice as long. So ranks look now and then where the others
//! are, and one that is on a crowded core moves to an emptier one, once; no rank is bound to a core.

use crate::region::Region;
use crate::sync::Ordering;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use std::time::{Duration, Instant};

/// How often a waiting rank looks where the others are.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// The cores this rank may use.
#[derive(Debug)]
pub(crate) struct Cores {
    allowed: Vec<usize>,
    look_after: Option<Instant>,
}

impl Cores {
    pub(crate) fn allowed() -> Self {
        let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        Self { allowed: (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect(), look_after: None }
    }

    /// Where rank `rank` begins: side by side on one core is how they are started.
    pub(crate) fn begin(&self, rank: usize) {
        if !self.allowed.is_empty() {
            self.move_to(self.allowed[rank % self.allowed.len()]);
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
            self.move_to(emptiest);
            region.control(rank).core.0.store(emptiest as u32 + 1, Ordering::Relaxed);
        }
    }

    /// Moves this thread, once; then it may go where it likes again.
    fn move_to(&self, core: usize) {
        let (mut there, mut allowed) = (CpuSet::new(), CpuSet::new());
        there.set(core);
        self.allowed.iter().for_each(|&core| allowed.set(core));
        // Where it is not allowed, the scheduler decides alone.
        let _ = sched_setaffinity(None, &there).and_then(|()| sched_setaffinity(None, &allowed));
    }
}
