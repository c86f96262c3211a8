//! The control plane of ranks that are threads of one process.

use crate::control::Control;
use crate::control::arbiter::{Arbiter, Mail};
use crate::control::membership::Membership;
use crate::control::notice::Notice;
use phalanx_core::{Loss, Result};
use phalanx_transport::OwnerProcess;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The arbiter of ranks that are threads of one process: who is stopped is stopped with all others, so there are no heartbeats.
#[derive(Debug)]
pub(crate) struct LocalArbiter {
    arbiter: Mutex<Arbiter>,
    members: Vec<Arc<Membership>>,
}

impl LocalArbiter {
    /// With a membership for each rank.
    pub(crate) fn new(members: Vec<Arc<Membership>>) -> Arc<Self> {
        Arc::new(Self { arbiter: Mutex::new(Arbiter::new(members.len(), None)), members })
    }

    pub(crate) fn membership(&self, rank: usize) -> Arc<Membership> {
        self.members[rank].clone()
    }

    /// The arbiter stays locked while its mail is delivered, so that all ranks hear verdicts in one order.
    fn with(&self, act: impl FnOnce(&mut Arbiter) -> Mail) {
        let mut arbiter = self.arbiter.lock().unwrap_or_else(PoisonError::into_inner);
        let mut mail = VecDeque::from(act(&mut arbiter));
        mail.extend(arbiter.poll(Instant::now()));
        while let Some((rank, verdict)) = mail.pop_front() {
            if let Some(answer) = self.members[rank].answer(&verdict) {
                mail.extend(arbiter.handle(rank, answer));
            }
            self.members[rank].hear(verdict, Instant::now());
        }
    }
}

/// One rank's line within the process. Dropped while its thread panics, it reports that.
#[derive(Debug)]
pub(crate) struct LocalControl {
    pub(crate) owner_process: OwnerProcess,
    pub(crate) arbiter: Arc<LocalArbiter>,
    pub(crate) rank: usize,
}

impl Control for LocalControl {
    fn send(&self, notice: Notice) -> Result<()> {
        self.arbiter.with(|arbiter| arbiter.handle(self.rank, notice));
        Ok(())
    }
}

impl Drop for LocalControl {
    fn drop(&mut self) {
        if !self.owner_process.is_here() {
            return;
        }
        let how = if std::thread::panicking() { Loss::Panicked } else { Loss::Died };
        self.arbiter.with(|arbiter| arbiter.disconnected(self.rank, how));
    }
}
