//! The waits of a rank, in all its groups.

use super::{Membership, State};
use crate::lock::lock;
use crate::wait_graph::{COUNTS_MAX, Standing, WAITS_MAX};
use phalanx_core::Cause;

impl Membership {
    /// This rank's waits at this moment.
    pub fn standing(&self) -> Standing {
        let standing = self.waits();
        let stands = standing.stands && self.runtime.stands_still();
        // What has changed meanwhile is not all it waits for.
        let stands = stands && self.waits() == standing;
        Standing { stands, ..standing }
    }

    /// As `standing`, but not whether the program can do anything.
    pub fn waits(&self) -> Standing {
        let mut standing = Standing { stands: true, ..Standing::default() };
        for latch in lock(&self.state).groups() {
            if latch.first_cause().is_none() {
                standing.stands &= latch.tell_waits(&mut standing);
            } else if standing.failing.is_none() {
                standing.failing = latch.failing();
            }
        }
        let Standing { waits, places, messages, stands, .. } = &mut standing;
        *stands &= waits.len() <= WAITS_MAX && places.len().max(messages.len()) <= COUNTS_MAX;
        waits.truncate(WAITS_MAX);
        places.truncate(COUNTS_MAX);
        messages.truncate(COUNTS_MAX);
        standing
    }
}

impl State {
    /// The arbiter's first verdict about any group of the job.
    pub(super) fn first_cause(&self) -> Option<Cause> {
        self.verdicts.first().map(|(_, cause, _)| cause.clone())
    }
}
