//! Each rank's own core among those of its host.
//!
//! Ranks that wake each other are drawn to one core, and stay there while another is idle: the scheduler sees no reason
//! to part ranks that keep giving the core to each other. So a rank that meets another one on a core that is not its own goes to
//! its own, once; no rank is bound to a core.

use std::time::{Duration, Instant};

/// How often a rank that waits in company looks where it is.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// Where one thread of a rank belongs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CorePlacement {
    look_after: Option<Instant>,
}

impl CorePlacement {
    pub(crate) const NOT_LOOKED: Self = Self { look_after: None };

    /// Moves this thread, of the rank with this number on its host, if it was not at home.
    pub(crate) fn look(&mut self, local_rank: usize, now: Instant) {
        if self.look_after.is_none_or(|after| after <= now) {
            self.look_after = Some(now + LOOK_INTERVAL);
            go(local_rank);
        }
    }
}

#[cfg(target_os = "linux")]
fn go(local_rank: usize) {
    use phalanx_transport::wait_policy::move_to;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu};
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let Some(nth) = local_rank.checked_rem(allowed.count() as usize) else { return };
    let Some(core) = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).nth(nth) else { return };
    if sched_getcpu() != core {
        move_to(core, &allowed);
    }
}

#[cfg(not(target_os = "linux"))]
fn go(_local_rank: usize) {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use rustix::thread::sched_getaffinity;

    #[test]
    fn a_rank_that_went_home_may_go_where_it_likes() {
        let before = sched_getaffinity(None).unwrap();
        for local_rank in 0..5 {
            let mut placement = CorePlacement::NOT_LOOKED;
            placement.look(local_rank, Instant::now());
            assert_eq!(sched_getaffinity(None).unwrap(), before);
        }
    }
}
