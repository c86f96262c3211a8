//! A job over TCP on this rank: who else is in it, how to reach them, and the line to the arbiter.

#[cfg(target_os = "linux")]
use crate::bootstrap::exchange_fd::FdExchange;
use crate::bootstrap::prices::cores;
use crate::bootstrap::tcp_control::TcpControl;
use crate::control::Control;
use crate::control::address_book::AddressBook;
#[cfg(target_os = "linux")]
use crate::control::group_health::GroupHealth;
use crate::control::job_context::{JobContext, Place};
use crate::control::membership::Membership;
use crate::host::host_context::HostContext;
use crate::host::job_links::{JobLinks, LinkPeer};
use crate::warning::warn_aside;
use phalanx_algo::Link;
#[cfg(target_os = "linux")]
use phalanx_core::Signature;
use phalanx_core::{Deadline, GroupId, Peer, Result};
use phalanx_transport::tcp::Exchange;
use phalanx_transport::{Secret, Wire};
#[cfg(target_os = "linux")]
use std::collections::HashMap;
use std::fmt::Debug;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a rank that leaves waits for the arbiter to hear it.
const HEARD_TIME: Duration = Duration::from_secs(1);
/// How long rank 0, when its groups are only dropped, stays for the others to leave too.
const ARBITER_STAYS_TIME: Duration = Duration::from_secs(2);

/// Ranks as processes, over TCP.
#[derive(Debug)]
pub(crate) struct TcpJob {
    /// The prices of moving bytes in this job, as rank 0 sees them.
    pub(crate) link: Link,
    pub(crate) place: Place,
    /// Of this generation.
    pub(crate) secret: Secret,
    /// Whether frames have checksums.
    pub(crate) checksum: bool,
    pub(crate) members: Arc<AddressBook>,
    pub(crate) membership: Arc<Membership>,
    /// Before the exchange: on rank 0 that carries the other ends of all lines.
    pub(crate) line: TcpControl,
    pub(crate) exchange: Exchange,
    pub(crate) links: Box<dyn JobLinks>,
    /// What the links of each rank published.
    pub(crate) link_addresses: Vec<Vec<u8>>,
    pub(crate) left: Mutex<bool>,
    /// How often each group has shared memory: that tells one time from the next.
    #[cfg(target_os = "linux")]
    pub(crate) shares: Mutex<HashMap<GroupId, u64>>,
}

impl JobContext for TcpJob {
    fn open(&self, group: GroupId, members: &[usize]) -> Wire {
        let peer = |&rank: &usize| {
            let (address, addr) = (&*self.link_addresses[rank], self.members.members()[rank].addr);
            LinkPeer { rank, address, addr }
        };
        let peers: Vec<_> = members.iter().map(peer).collect();
        Wire::with_checksums(self.links.open(group, &peers), self.checksum)
    }

    fn control(&self) -> &dyn Control {
        &self.line
    }

    fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    fn peer(&self, rank: usize) -> Peer {
        self.members.members()[rank].peer.clone()
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn host_of(&self, rank: usize) -> Option<&str> {
        Some(self.members.members().get(rank)?.local.as_ref()?.host.as_str())
    }

    fn longest_memory(&self, rank: usize) -> u64 {
        self.members
            .members()
            .get(rank)
            .and_then(|member| member.local.as_ref())
            .map_or(0, |local| local.longest)
    }

    fn forget(&self, group: GroupId) {
        #[cfg(target_os = "linux")]
        self.shares.lock().unwrap_or_else(PoisonError::into_inner).remove(&group);
        self.exchange.close(group);
    }

    fn remind(&self, words: &str) {
        warn_aside(&format!("rank {}", self.place.rank), words);
    }

    fn ranks_share_cores(&self) -> bool {
        self.place.local_world_size > cores()
    }

    fn leave(&self, deadline: &Deadline) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *left, true) {
            return;
        }
        self.say_farewell();
        if self.place.rank == 0 {
            self.membership.wait_left(|r| r != 0, self.place.world_size, deadline);
        }
    }
}

impl HostContext for TcpJob {
    fn secret(&self) -> Result<Secret> {
        Ok(self.secret.clone())
    }

    #[cfg(target_os = "linux")]
    fn share(
        &self,
        health: &GroupHealth,
        signature: &Signature,
        deadline: &Deadline,
        make: &dyn Fn() -> Result<OwnedFd>,
    ) -> Result<OwnedFd> {
        let seq = {
            let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
            let last = shares.entry(health.latch.group()).or_default();
            *last += 1;
            *last
        };
        FdExchange::new((&self.exchange, self.members.members()), health, signature, seq, *deadline).run(make)
    }
}

impl TcpJob {
    /// Waits until the arbiter has heard it: what a process has only handed to the system may be lost with it.
    fn say_farewell(&self) {
        if self.line.send(self.membership.farewell()).is_ok() {
            self.membership.wait_heard(self.place.rank, &Deadline::after(Instant::now(), HEARD_TIME));
        }
    }
}

impl Drop for TcpJob {
    fn drop(&mut self) {
        // Without a farewell the others take it for a death, which is what a panic is.
        if !self.line.is_here() || std::thread::panicking() {
            return;
        }
        if std::mem::replace(self.left.get_mut().unwrap_or_else(PoisonError::into_inner), true) {
            return;
        }
        self.say_farewell();
        if self.place.rank == 0 {
            // The arbiter goes with this process. Who is in the last operations still may need it.
            let deadline = Deadline::after(Instant::now(), ARBITER_STAYS_TIME);
            self.membership.wait_left_in_peace(|r| r != 0, self.place.world_size, &deadline);
        }
    }
}
