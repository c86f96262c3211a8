//! What a job is made of on this rank: who else is in it, how to reach them, and the line to the arbiter.

use crate::control::Control;
use crate::control::line::{Hall, HallLine, TcpLine};
use crate::control::notice::{Member, Notice};
use crate::control::watch::Watch;
#[cfg(target_os = "linux")]
use crate::fate::Fate;
#[cfg(target_os = "linux")]
use crate::share::Sharing;
use crate::trace::writer::Recorder;
use crate::warning::warn_aside;
use phalanx_algo::Link;
use phalanx_core::{Deadline, GroupId, Peer};
#[cfg(target_os = "linux")]
use phalanx_core::{Error, Result, Signature};
use phalanx_transport::tcp::Exchange;
use phalanx_transport::thread::Pipes;
use phalanx_transport::{Birthplace, Wire};
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

/// Shared by all groups of this rank; the last of them takes it down.
pub(crate) trait Realm: Send + Sync + Debug {
    /// This rank's end of a group's links. Members are ranks of the job, in group order.
    fn open(&self, group: GroupId, members: &[usize]) -> Wire;
    fn control(&self) -> &dyn Control;
    fn watch(&self) -> &Arc<Watch>;
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

    /// Memory that the members of `fate` (members of a group, all on this host) have in common: the first of them `make`s a file, and
    /// each gets a descriptor of it.
    ///
    /// Collective among them: each calls it equally often for a group, in the same order, with the same members. Takes
    /// one handshake a member. Only size and seals of the file say what a peer made: check them before mapping it.
    ///
    /// # Errors
    /// What `make` says, which aborts the group on the others; the first cause if the group fails meanwhile; [`PeerLost`](Error::PeerLost) if a rank that is waited for
    /// left; [`Timeout`](Error::Timeout) at the deadline, with who was waited for.
    /// [`Unavailable`](Error::Unavailable) for a realm without hosts.
    #[cfg(target_os = "linux")]
    fn share(
        &self,
        _fate: &Fate,
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

/// Ranks as processes, over TCP.
#[derive(Debug)]
pub(crate) struct TcpRealm {
    /// What moving bytes costs in this job, as rank 0 sees it.
    pub(crate) link: Link,
    pub(crate) place: Place,
    /// How long a rank, or the network to it, may show no sign of life.
    pub(crate) heartbeat: Option<Duration>,
    /// Whether frames have checksums.
    pub(crate) checksum: bool,
    pub(crate) members: Vec<Member>,
    pub(crate) watch: Arc<Watch>,
    /// Before the exchange: on rank 0 that carries the other ends of all lines.
    pub(crate) line: TcpLine,
    pub(crate) exchange: Exchange,
    pub(crate) left: Mutex<bool>,
    /// How often each group has shared memory: that tells one time from the next.
    #[cfg(target_os = "linux")]
    pub(crate) shares: Mutex<HashMap<GroupId, u64>>,
}

impl Realm for TcpRealm {
    fn open(&self, group: GroupId, members: &[usize]) -> Wire {
        let addrs = members.iter().map(|&m| self.members[m].addr).collect();
        // All ranks are here and listen. Silence on the line to the arbiter is noticed before silence on a link.
        let link_timeout =
            self.heartbeat.map_or(self.place.timeout, |limit| self.place.timeout.min(limit * 3 / 2));
        let links = self.exchange.open(group, members.to_vec(), addrs, link_timeout);
        Wire::with_checksums(Box::new(links.notice_cuts(self.heartbeat)), self.checksum)
    }

    fn control(&self) -> &dyn Control {
        &self.line
    }

    fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    fn peer(&self, rank: usize) -> Peer {
        self.members[rank].peer.clone()
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn host_of(&self, rank: usize) -> Option<&str> {
        Some(self.members.get(rank)?.local.as_ref()?.host.as_str())
    }

    fn longest_memory(&self, rank: usize) -> u64 {
        self.members.get(rank).and_then(|member| member.local.as_ref()).map_or(0, |local| local.longest)
    }

    fn forget(&self, group: GroupId) {
        #[cfg(target_os = "linux")]
        self.shares.lock().unwrap_or_else(PoisonError::into_inner).remove(&group);
        self.exchange.close(group);
    }

    #[cfg(target_os = "linux")]
    fn share(
        &self,
        fate: &Fate,
        signature: &Signature,
        deadline: &Deadline,
        make: &dyn Fn() -> Result<OwnedFd>,
    ) -> Result<OwnedFd> {
        Sharing::new(self, fate, signature, *deadline).run(make)
    }

    fn leave(&self, deadline: &Deadline) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *left, true) {
            return;
        }
        self.say_farewell();
        if self.place.rank == 0 {
            self.watch.wait_left(|r| r != 0, self.place.world_size, deadline);
        }
    }
}

impl TcpRealm {
    /// Waits until the arbiter has heard it: what a process has only handed to the system may be lost with it.
    fn say_farewell(&self) {
        if self.line.send(Notice::Leave).is_ok() {
            self.watch.wait_heard(self.place.rank, &Deadline::after(Instant::now(), HEARD_TIME));
        }
    }
}

impl Drop for TcpRealm {
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
            self.watch.wait_left_in_peace(|r| r != 0, self.place.world_size, &deadline);
        }
    }
}

/// Pipes by group, and how many of their ends were taken: whoever opens a group first makes them, and the last takes the rest.
type Fabric = Mutex<HashMap<GroupId, (Pipes, usize)>>;

/// Ranks as threads of this process.
#[derive(Debug)]
pub(crate) struct ThreadRealm {
    place: Place,
    watch: Arc<Watch>,
    line: HallLine,
    fabric: Arc<Fabric>,
    name: String,
}

impl ThreadRealm {
    /// One realm for each of `world_size` ranks.
    pub(crate) fn create(world_size: usize, timeout: Duration) -> Vec<Self> {
        let name = format!("thread of process {}", std::process::id());
        let peer = |rank| Peer { rank, host: name.clone() };
        let watch = |rank| Watch::new(Recorder::new(peer(rank), world_size, timeout));
        let hall = Hall::new((0..world_size).map(watch).collect());
        let fabric = Arc::new(Fabric::default());
        let realm = |rank| {
            let place = Place { rank, world_size, local_rank: rank, local_world_size: world_size, timeout };
            let (watch, line) =
                (hall.watch(rank), HallLine { birthplace: Birthplace::here(), hall: hall.clone(), rank });
            let addr = std::net::SocketAddr::from(([0; 4], 0));
            let _ = line.send(Notice::Join { host: name.clone(), addr, local: None, terms: String::new() });
            Self { place, watch, line, fabric: fabric.clone(), name: name.clone() }
        };
        (0..world_size).map(realm).collect()
    }
}

impl Realm for ThreadRealm {
    fn open(&self, group: GroupId, members: &[usize]) -> Wire {
        let rank = members.iter().position(|&m| m == self.place.rank).expect("this rank is a member");
        let mut fabric = self.fabric.lock().unwrap_or_else(PoisonError::into_inner);
        let (pipes, taken) = fabric.entry(group).or_insert_with(|| (Pipes::new(members.len()), 0));
        let end = pipes.end(rank);
        *taken += 1;
        if *taken == members.len() {
            fabric.remove(&group);
        }
        Wire::new(Box::new(end))
    }

    fn control(&self) -> &dyn Control {
        &self.line
    }

    fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    fn peer(&self, rank: usize) -> Peer {
        Peer { rank, host: self.name.clone() }
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn leave(&self, _deadline: &Deadline) {
        let _ = self.line.send(Notice::Leave);
    }
}

impl Drop for ThreadRealm {
    fn drop(&mut self) {
        if self.line.birthplace.is_here() && !std::thread::panicking() {
            let _ = self.line.send(Notice::Leave);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_are_kept_until_all_have_their_ends() {
        let realms = ThreadRealm::create(3, Duration::from_secs(1));
        let kept = || realms[0].fabric.lock().unwrap().len();
        for group in (1..4).map(GroupId) {
            drop(realms[1].open(group, &[1, 2]));
            assert_eq!(kept(), 1, "the other end is to find that this one was closed");
            drop(realms[2].open(group, &[1, 2]));
            assert_eq!(kept(), 0);
        }
    }
}
