//! An operation that is performed: what errors call it, and until when it must be over.

use crate::joint_health::JointHealth;
use phalanx_core::{Cause, Deadline, Error, Result, Signature};
use phalanx_group::ProcessGroup;
use std::time::{Duration, Instant};

/// An operation that is performed, with its deadline and with what errors call it.
pub(super) struct Running<'a> {
    pub(super) health: &'a JointHealth,
    pub(super) signature: &'a Signature,
    pub(super) deadline: Deadline,
}

impl Running<'_> {
    fn left(&self) -> Duration {
        self.deadline.remaining(Instant::now())
    }

    /// The group, for what of the time is left, called where the operation was.
    pub(super) fn group(&self) -> ProcessGroup {
        self.health.control.with_timeout(self.left()).with_call_site(self.signature.site.clone())
    }

    /// Waits for what the device does. Where that takes too long the group has failed, and this rank is who did not come.
    pub(super) fn wait(&self, is_over: impl FnOnce(Duration) -> Result<bool>) -> Result<()> {
        if is_over(self.left())? {
            return Ok(());
        }
        let (op, waited) = (self.signature.op, self.deadline.elapsed(Instant::now()));
        let reporter = self.health.control.peer(self.health.control.rank());
        let missing = vec![reporter.clone()];
        let (site, awaited) = (Some(self.signature.site.clone()), Vec::new());
        Err(self.fail(Cause::TimedOut {
            reporter,
            op,
            seq: 0,
            site,
            envelope: None,
            waited,
            awaited,
            missing,
            meanwhile: Vec::new(),
        }))
    }

    /// The error for what the group has failed of: this, or what came before.
    pub(super) fn fail(&self, cause: Cause) -> Error {
        self.health.error(self.signature, 0, &self.deadline, self.health.fail(cause))
    }

    /// As all ranks are told it; the group's own errors they know.
    pub(super) fn failed(&self, error: Error) -> Error {
        if self.health.failure().is_some() {
            self.health.set_reported();
            return error;
        }
        let cause = self.health.give_up(&error);
        self.health.error(self.signature, 0, &self.deadline, cause)
    }
}
