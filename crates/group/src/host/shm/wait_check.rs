//! What ends the wait of a rank for others of its host, and the error for it.

use super::fault::cause;
use crate::control::group_health::{GroupHealth, ParentCall};
use crate::host::call_check::{CallCheck, WaitEnds};
use crate::trace::clock;
use phalanx_core::{Error, Signature};
use phalanx_shm::{Fault, Stopped, WaitCheck};
use std::time::Duration;

/// The check of one call of a team.
#[derive(Debug)]
pub(super) struct GroupCheck<'a> {
    check: CallCheck<'a>,
    /// The call is not in the log yet.
    is_unlogged: bool,
}

impl<'a> GroupCheck<'a> {
    #[inline]
    pub(super) fn new(health: &'a GroupHealth, signature: &'a Signature, seq: u64, limit: Duration) -> Self {
        Self { check: CallCheck::new(health, signature, seq, limit).in_memory(), is_unlogged: false }
    }

    /// For a part of a call, whose time is running.
    pub(super) fn of_part(health: &'a GroupHealth, whole: ParentCall<'a>) -> Self {
        Self { check: CallCheck::of_part(health, whole).in_memory(), is_unlogged: false }
    }

    /// The call enters the log when its data are on their way, or before this rank waits for long.
    pub(super) fn log_on_the_way(&mut self) {
        self.is_unlogged = true;
    }

    /// Whether anybody was waited for long enough to look around.
    pub(super) fn has_waited(&self) -> bool {
        self.check.has_waited()
    }

    /// The error for the cause that came first; the group has failed.
    pub(super) fn error(self, fault: Fault) -> Error {
        let Self { mut check, .. } = self;
        if matches!(fault, Fault::Stopped)
            && let Some(error) = check.error()
        {
            return error;
        }
        let (health, told) = (check.health, check.told());
        match fault {
            Fault::Mismatch { peer, their_seq, theirs: Some(theirs), method, .. }
                if their_seq == check.seq
                    && !(theirs.calls_as(check.signature) && theirs.method == method) =>
            {
                let ours = Signature { method, ..check.signature.clone() };
                health.fail(health.mismatch(check.seq, None, ours, peer, *theirs), told)
            }
            Fault::Failed(error) => {
                health.abort(&error.to_string());
                *error
            }
            fault @ Fault::Counts { .. } => health.fail(cause(health, told.seq, &fault), told),
            // What happened, another rank knows; or all of them together, if they tell the arbiter what they called.
            fault => {
                health.stalled();
                health.heard(told).unwrap_or_else(|| health.fail(cause(health, told.seq, &fault), told))
            }
        }
    }
}

impl WaitCheck for GroupCheck<'_> {
    fn look_meanwhile(&mut self, peer: usize) -> Result<(), Stopped> {
        // Whoever has left has given what it had to give, or will be waited for.
        self.check
            .elapsed(peer, Duration::ZERO, std::time::Instant::now())
            .map(drop)
            .map_err(|WaitEnds| Stopped)
    }

    fn look(&mut self, peer: usize, waited: Duration) -> Result<(), Stopped> {
        self.check.look(peer, waited).map_err(|WaitEnds| Stopped)
    }

    fn on_the_way(&mut self) {
        if std::mem::take(&mut self.is_unlogged) {
            self.check.health.remember(self.check.seq, self.check.signature, clock::now);
        }
    }
}
