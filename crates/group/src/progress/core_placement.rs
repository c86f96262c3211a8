//! Each rank's own core among those of its host.
//!
//! Ranks that wake each other are drawn to one core, and stay there while another is idle: the scheduler sees no reason
//! to part ranks that keep giving the core to each other. So a rank that meets another one on a core that is not its own goes to
//! its own, once; no rank is bound to a core.

use phalanx_transport::wait_policy::CoreSharing;
use std::time::{Duration, Instant};

/// How often a rank that waits in company looks where it is.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// A rank's place among those of its host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalPlace {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) sharing: CoreSharing,
}

/// Where one thread of a rank belongs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CorePlacement {
    look_after: Option<Instant>,
}

impl CorePlacement {
    pub(crate) const NOT_LOOKED: Self = Self { look_after: None };

    /// Moves this thread, of a rank at that place on its host, if it was not at home.
    pub(crate) fn look(&mut self, place: LocalPlace, now: Instant) {
        if self.look_after.is_none_or(|after| after <= now) {
            self.look_after = Some(now + LOOK_INTERVAL);
            go(place);
        }
    }
}

#[cfg(target_os = "linux")]
fn go(place: LocalPlace) {
    use phalanx_transport::wait_policy::move_to;
    use rustix::thread::{sched_getaffinity, sched_getcpu};
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let Some(core) = place.sharing.home_core(place.rank, place.world_size, &allowed) else { return };
    if sched_getcpu() != core {
        move_to(core, &allowed);
    }
}

#[cfg(not(target_os = "linux"))]
fn go(LocalPlace { rank, world_size, sharing }: LocalPlace) {
    let _ = (rank, world_size, sharing);
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use rustix::thread::sched_getaffinity;

    #[test]
    fn a_rank_that_went_home_may_go_where_it_likes() {
        let before = sched_getaffinity(None).unwrap();
        for rank in 0..5 {
            let mut placement = CorePlacement::NOT_LOOKED;
            placement
                .look(LocalPlace { rank, world_size: 5, sharing: CoreSharing::WithOthers }, Instant::now());
            assert_eq!(sched_getaffinity(None).unwrap(), before);
        }
    }
}
