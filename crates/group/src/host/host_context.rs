//! What a backend for the ranks of one host needs of the job.

#[cfg(target_os = "linux")]
use crate::control::group_health::GroupHealth;
use crate::control::job_context::JobContext;
use phalanx_core::Result;
#[cfg(target_os = "linux")]
use phalanx_core::{Deadline, Error, Signature};
use phalanx_transport::Secret;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;

/// A job whose ranks may have memory in common.
pub(crate) trait HostContext: JobContext {
    /// What all ranks of the job know, and nobody else.
    ///
    /// # Errors
    /// [`Unavailable`](phalanx_core::Error::Unavailable): the job needed none so far, and can't make one.
    fn secret(&self) -> Result<Secret>;

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
        _health: &GroupHealth,
        _signature: &Signature,
        _deadline: &Deadline,
        _make: &dyn Fn() -> Result<OwnedFd>,
    ) -> Result<OwnedFd> {
        let tried = "ranks that are threads of one process have it in common".into();
        Err(Error::Unavailable { what: "memory shared between processes".into(), tried })
    }
}
