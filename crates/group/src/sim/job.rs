//! What a simulated process knows of its job.

use crate::control::Control;
use crate::control::job_context::{JobContext, Place};
use crate::control::membership::Membership;
use crate::control::notice::Notice;
use phalanx_core::{Deadline, GroupId, Peer, Result};
use phalanx_transport::Wire;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A rank, as errors name it.
pub(super) fn peer(rank: usize) -> Peer {
    Peer { rank, host: format!("host{rank}") }
}

/// Notices on their way to the line.
#[derive(Debug, Default)]
pub(super) struct Notices(Mutex<Vec<Notice>>);

impl Notices {
    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(super) fn take(&self) -> Vec<Notice> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Control for Notices {
    fn send(&self, notice: Notice) -> Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(notice);
        Ok(())
    }
}

/// A simulated rank's connection to its job.
#[derive(Debug)]
pub(super) struct SimJob {
    pub(super) place: Place,
    pub(super) membership: Arc<Membership>,
    pub(super) notices: Arc<Notices>,
}

impl SimJob {
    pub(super) fn new(
        rank: usize,
        world_size: usize,
        timeout: Duration,
        membership: Arc<Membership>,
        notices: Arc<Notices>,
    ) -> Self {
        let place = Place { rank, world_size, local_rank: 0, local_world_size: 1, timeout };
        Self { place, membership, notices }
    }
}

impl JobContext for SimJob {
    fn open(&self, _group: GroupId, _members: &[usize]) -> Wire {
        unreachable!("the one group of a run is made over its transport")
    }

    fn control(&self) -> &dyn Control {
        &*self.notices
    }

    fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    fn peer(&self, rank: usize) -> Peer {
        peer(rank)
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn leave(&self, _deadline: &Deadline) {
        let _ = self.notices.send(Notice::Leave);
    }

    /// There is nobody to read it.
    fn remind(&self, _words: &str) {}

    fn ranks_share_cores(&self) -> bool {
        false
    }
}
