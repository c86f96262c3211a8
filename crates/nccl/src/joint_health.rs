//! Whether and why the devices' operations can't go on: they fail together with groups on the host.

use phalanx_core::{Cause, Deadline, Error, Result, Signature};
use phalanx_group::ProcessGroup;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

pub(crate) struct JointHealth {
    /// The ranks of the devices, on whose behalf alone something happens on this group.
    pub(crate) control: ProcessGroup,
    /// The group of the hosts, where the two halves of a hybrid fail together.
    host: OnceLock<ProcessGroup>,
    /// Whether a call has said why the group has failed; later ones say `Poisoned`.
    is_reported: AtomicBool,
}

impl JointHealth {
    /// For the devices of the ranks of `group`, which lives on when these fail. Collective.
    pub(crate) fn of(group: &ProcessGroup) -> Result<Self> {
        let control = group.split(Some(0), group.rank() as i64)?;
        let control = control.ok_or_else(|| Error::Internal { what: "a split without a group".into() })?;
        Ok(Self { control, host: OnceLock::new(), is_reported: AtomicBool::new(false) })
    }

    /// Makes `host` fail with the devices, and them with it, from now on.
    pub(crate) fn share(&self, host: &ProcessGroup) {
        self.host.get_or_init(|| host.clone());
    }

    /// Why the group has failed, if it has.
    pub(crate) fn failure(&self) -> Option<Cause> {
        let of_host = || self.host.get().and_then(ProcessGroup::failure);
        // Whoever hears it first tells the other half.
        self.control.failure().or_else(of_host).map(|cause| self.fail(cause))
    }

    /// Fails all, unless they have failed. The first cause may be another.
    pub(crate) fn fail(&self, cause: Cause) -> Cause {
        let first = self.control.fail(cause);
        if let Some(host) = self.host.get() {
            host.fail(first.clone());
        }
        first
    }

    /// As [`fail`](Self::fail), in words of this rank.
    pub(crate) fn abort(&self, reason: &str) -> Cause {
        let peer = self.control.peer(self.control.rank());
        self.fail(Cause::Aborted { peer, reason: reason.into() })
    }

    /// This rank can't go on: the others hear why.
    pub(crate) fn give_up(&self, error: &Error) -> Cause {
        self.abort(&error.to_string())
    }

    /// The devices of this rank and the `others` did not end the call in time. Of collectives the arbiter finds out who had come; of messages only these know.
    pub(crate) fn late(&self, signature: &Signature, seq: u64, waited: Duration, others: &[usize]) -> Cause {
        let awaited: Vec<_> = others.iter().map(|&rank| self.control.peer(rank)).collect();
        let (reporter, missing) = (self.control.peer(self.control.rank()), awaited.clone());
        let (op, site) = (signature.op, Some(signature.site.clone()));
        let (envelope, meanwhile) = (None, Vec::new());
        self.fail(Cause::TimedOut { reporter, op, seq, site, envelope, waited, awaited, missing, meanwhile })
    }

    /// The error of a call that finds the group failed.
    pub(crate) fn refused(&self, signature: &Signature, cause: Cause) -> Error {
        if self.is_reported.load(Ordering::Relaxed) {
            return Error::Poisoned { op: signature.op, cause: Box::new(cause) };
        }
        let now = Deadline::after(Instant::now(), Duration::ZERO);
        self.error(signature, 0, &now, cause)
    }

    /// A call has said why the group has failed.
    pub(crate) fn set_reported(&self) {
        self.is_reported.store(true, Ordering::Relaxed);
    }

    /// The error of a call for which the group has failed, or with it.
    pub(crate) fn error(&self, signature: &Signature, seq: u64, called: &Deadline, cause: Cause) -> Error {
        self.set_reported();
        let context = phalanx_core::Context {
            op: signature.op,
            seq,
            site: Some(signature.site.clone()),
            envelope: None,
            group: self.control.id(),
            members: self.control.members().to_vec(),
            rank: self.control.members()[self.control.rank()],
            bytes: (0, 0),
            elapsed: called.elapsed(Instant::now()),
            through: None,
        };
        Error::from_cause(cause, context)
    }
}
