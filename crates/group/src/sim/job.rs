//! What a simulated process knows of its job.

use super::stream::address;
use crate::control::Control;
use crate::control::job_context::{JobContext, Place};
use crate::control::membership::Membership;
use crate::control::notice::Notice;
use phalanx_core::{Deadline, GroupId, Peer, Result};
use phalanx_transport::Wire;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A process's place in a generation.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    /// The process, and the worker of that number.
    pub(super) me: usize,
    pub(super) generation: u64,
    pub(super) rank: usize,
    /// The workers, in rank order.
    pub(super) roster: Arc<[u64]>,
}

impl Seat {
    pub(super) fn world_size(&self) -> usize {
        self.roster.len()
    }

    /// A rank, as errors name it.
    pub(super) fn peer(&self, rank: usize) -> Peer {
        Peer { rank, host: format!("host{}", self.roster[rank]) }
    }

    /// Where a rank listens.
    pub(super) fn address(&self, rank: usize) -> SocketAddr {
        address(self.roster[rank], self.generation)
    }
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
    seat: Seat,
    place: Place,
    membership: Arc<Membership>,
    notices: Arc<Notices>,
}

impl SimJob {
    pub(super) fn new(
        seat: &Seat,
        timeout: Duration,
        membership: Arc<Membership>,
        notices: Arc<Notices>,
    ) -> Self {
        let (rank, world_size) = (seat.rank, seat.world_size());
        let place = Place { rank, world_size, local_rank: 0, local_world_size: 1, timeout };
        Self { seat: seat.clone(), place, membership, notices }
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
        self.seat.peer(rank)
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn leave(&self, _deadline: &Deadline) {
        let _ = self.notices.send(self.membership.farewell());
    }

    /// There is nobody to read it.
    fn remind(&self, _words: &str) {}

    fn ranks_share_cores(&self) -> bool {
        false
    }
}
