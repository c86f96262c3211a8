//! One rank's connection to its job: the other ranks, how to reach them, and the control plane.

use super::Control;
#[cfg(target_os = "linux")]
use super::group_health::GroupHealth;
use super::membership::Membership;
use crate::warning::warn_aside;
use phalanx_core::{Deadline, GroupId, Peer};
#[cfg(target_os = "linux")]
use phalanx_core::{Error, Result, Signature};
use phalanx_transport::Wire;
use std::fmt::Debug;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
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

    /// The host of a rank of the job, for shared memory: ranks with equal ones can [`share`](Self::share). `None`: it shares
    /// with nobody.
    fn host_of(&self, _rank: usize) -> Option<&str> {
        None
    }

    /// Bytes of the longest memory that a rank of the job can make for those of its host.
    fn longest_memory(&self, _rank: usize) -> u64 {
        0
    }

    /// Memory that the members of `health` (members of a group, all on this host) have in common: the first of them `make`s a file, and
    /// each gets a descriptor of it.
    ///
    /// Collective among them: each calls it equally often for a group, in the same order, with the same members. Takes
    /// one handshake a member. Only size and seals of the file say what a peer made: check them before mapping it.
    ///
    /// # Errors
    /// What `make` says, which aborts the group on the others; the first cause if the group fails meanwhile; [`PeerLost`](Error::PeerLost) if a rank that is waited for
    /// left; [`Timeout`](Error::Timeout) at the deadline, with who was waited for.
    /// [`Unavailable`](Error::Unavailable) for a job without hosts.
    #[cfg(target_os = "linux")]
    fn share(
        &self,
        _fate: &GroupHealth,
        _signature: &Signature,
        _deadline: &Deadline,
        _make: &dyn Fn() -> Result<OwnedFd>,
    ) -> Result<OwnedFd> {
        let tried = "ranks that are threads of one process have it in common".into();
        Err(Error::Unavailable { what: "memory shared between processes".into(), tried })
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
