//! One rank's connection to its job: the other ranks, how to reach them, and the control plane.

use crate::line::Control;
use crate::membership::Membership;
use phalanx_core::{Deadline, GroupId, Peer};
use phalanx_transport::Wire;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

/// Shared by all groups of this rank; the last of them takes it down.
pub trait JobContext: Send + Sync + Debug {
    /// This rank's end of a group's links. Members are ranks of the job, in group order.
    fn open(&self, group: GroupId, members: &[usize]) -> Wire;
    /// The line to the arbiter.
    fn control(&self) -> &dyn Control;
    /// What the arbiter has said.
    fn membership(&self) -> &Arc<Membership>;
    /// A rank of the job, as errors name it.
    fn peer(&self, rank: usize) -> Peer;
    /// Where this rank is, and its limits.
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
    fn remind(&self, words: &str);

    /// Whether this host has more ranks than cores that this one may use.
    fn ranks_share_cores(&self) -> bool;
}

/// Where this rank is, and its limits.
#[derive(Debug, Clone)]
pub struct Place {
    /// This rank of the job.
    pub rank: usize,
    /// Ranks of the job.
    pub world_size: usize,
    /// This rank among those of its host.
    pub local_rank: usize,
    /// Ranks of its host.
    pub local_world_size: usize,
    /// How long an operation may take unless the call says otherwise.
    pub timeout: Duration,
}
