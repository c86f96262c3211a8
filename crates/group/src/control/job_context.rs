//! One rank's connection to its job: the other ranks, how to reach them, and the control plane.

use super::Control;
use super::membership::Membership;
use crate::warning::warn_aside;
use phalanx_core::{Deadline, GroupId, Peer};
use phalanx_transport::Wire;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// Shared by all groups of this rank; the last of them takes it down.
pub(crate) trait JobContext: Send + Sync + Debug {
    /// This rank's end of a group's links. Members are ranks of the job, in group order.
    fn open(&self, group: GroupId, members: &[usize]) -> Wire;
    fn control(&self) -> &dyn Control;
    fn membership(&self) -> &Arc<Membership>;
    /// A rank of the job, as errors name it.
    fn peer(&self, rank: usize) -> Peer;
    fn place(&self) -> &Place;
    /// Says an orderly farewell; on rank 0, stays until all others have.
    fn leave(&self, deadline: &Deadline);

    /// The host of a rank of the job, for shared memory: ranks with equal ones can have memory in common. `None`: it shares
    /// with nobody.
    fn host_of(&self, _rank: usize) -> Option<&str> {
        None
    }

    /// Bytes of the longest memory that a rank of the job can make for those of its host.
    fn longest_memory(&self, _rank: usize) -> u64 {
        0
    }

    /// Forgets a group that has ended on this rank.
    fn forget(&self, _group: GroupId) {}

    /// Says that this rank has waited for long.
    fn remind(&self, words: &str) {
        warn_aside(&format!("rank {}", self.place().rank), words);
    }

    /// Whether this host has more ranks than cores that this one may use. Others may say otherwise.
    fn ranks_share_cores(&self) -> bool {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.place().local_world_size > cores
    }
}

/// Where this rank is, and its limits.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) local_rank: usize,
    pub(crate) local_world_size: usize,
    /// How long an operation may take unless the call says otherwise.
    pub(crate) timeout: Duration,
}
