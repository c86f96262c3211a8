//! All links of one rank: whose messages go where, how many bytes each link may still carry, and which links have ended.
//!
//! One worker carries the links of all groups. A message says of which group it is; a link is the pipe to one peer in one group. UCX
//! keeps the order of messages only where they take one way, so bytes say where in their pipe they stand.

use crate::bytes::Bytes;
use crate::load::Ucp;
use crate::message::{HEADER_LEN, Header, Kind, Token};
use crate::pipe::Pipe;
use crate::sleepers::Sleepers;
use crate::sys;
use crate::worker::{Arrival, Endpoint, Refusal, Worker};
use phalanx_core::GroupId;
use phalanx_transport::LinkFault;
use std::collections::{HashMap, VecDeque};
use std::ffi::CStr;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of the pipe in one message, at most.
const FRAGMENT_LEN: usize = 64 << 10;
/// Bytes of a worker's address, at most. They are some hundred, more with many network cards.
pub(crate) const ADDRESS_LEN_MAX: usize = 64 << 10;
/// Links that are known, at most: peers can open some that this rank has not.
const LINKS_MAX: usize = 1 << 20;
/// Groups of which it is remembered that they ended here.
const ENDED_MAX: usize = 4096;
/// How often the worker is looked at before a link is said to be broken: what its peer sent before may stand there.
const LOOKS_BEFORE_FAULT: usize = 16;

/// A link: of which group, with which rank of the job.
pub(crate) type LinkId = (GroupId, u32);

/// What is known of a rank of the job.
#[derive(Default)]
struct Peer {
    address: Vec<u8>,
    endpoint: Option<Endpoint>,
    /// Why it can't be reached any more.
    fault: Option<LinkFault>,
    /// Whether a message of it has come.
    is_heard: bool,
}

/// A rank among those of its job, and how they know each other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Membership {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) token: Token,
    /// How long a peer may take to answer the first call.
    pub(crate) link_timeout: Duration,
}

pub(crate) struct Hub {
    worker: Worker,
    me: Membership,
    peers: Vec<Peer>,
    /// Peers that this rank has called, and of which nothing has come yet; since when.
    calls: HashMap<u32, Instant>,
    links: HashMap<LinkId, Pipe>,
    /// Links whose side here has ended, and whose peer has not said that it knows.
    ending: Vec<LinkId>,
    /// Groups that ended here, the latest first, with the ranks that were told so.
    ended: VecDeque<(GroupId, Vec<u32>)>,
    pub(crate) sleepers: Sleepers,
}

impl Hub {
    /// Opens a worker. What UCX says where it can't.
    pub(crate) fn open(ucp: Ucp, transports: Option<&CStr>, me: Membership) -> Result<Self, String> {
        let worker = Worker::open(ucp, transports, me.world_size)
            .map_err(|Refusal { call, status }| format!("{call}: {}", ucp.table().text(status)))?;
        let peers = (0..me.world_size).map(|_| Peer::default()).collect();
        let (calls, links) = Default::default();
        let (ending, ended, sleepers) = Default::default();
        Ok(Self { worker, me, peers, calls, links, ending, ended, sleepers })
    }

    pub(crate) fn address(&self) -> &[u8] {
        self.worker.address()
    }

    pub(crate) fn event_fd(&self) -> &Arc<OwnedFd> {
        self.worker.event_fd()
    }

    /// Where a rank of the job is.
    pub(crate) fn learn(&mut self, rank: usize, address: &[u8]) {
        if let Some(peer) = self.peers.get_mut(rank).filter(|peer| peer.address.is_empty()) {
            peer.address = address.to_vec();
        }
    }

    /// Whether UCX still has bytes to send, for which it needs to be called.
    pub(crate) fn is_sending(&self) -> bool {
        self.worker.in_flight() > 0
    }

    /// Whether peers have not said yet that they know of ends.
    pub(crate) fn is_ending(&self) -> bool {
        !self.ending.is_empty()
    }

    /// Gives peers up that were called and have not answered in time; whether others may still do.
    pub(crate) fn look_after_calls(&mut self, now: Instant) -> bool {
        let is_late = |called: Instant| now.saturating_duration_since(called) >= self.me.link_timeout;
        let late = self.calls.iter().filter(|(_, called)| is_late(**called));
        let late: Vec<u32> = late.map(|(&rank, _)| rank).collect();
        for &rank in &late {
            let why = format!("its UCX worker has not answered for {:?}", self.me.link_timeout);
            self.lose(rank, LinkFault::Unreachable(why));
        }
        if !late.is_empty() {
            self.sleepers.wake_others();
        }
        self.is_calling()
    }

    /// Whether a peer was called, and has not answered yet.
    pub(crate) fn is_calling(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Does what can be done now, and wakes whom it may concern; whether that was anything.
    pub(crate) fn progress(&mut self) -> bool {
        let mut has_moved = self.worker.progress();
        for Arrival { header, bytes } in self.worker.arrivals() {
            has_moved = true;
            if let Some(bytes) = self.take(&header, bytes) {
                self.worker.release(bytes);
            }
        }
        for (peer, status) in self.worker.failures() {
            has_moved = true;
            let fault = self.fault_for(status);
            self.lose(peer, fault);
        }
        if has_moved {
            self.sleepers.wake_others();
        }
        has_moved
    }

    /// Whether a sleep on the descriptor ends when something comes. If not, there may be something now.
    pub(crate) fn arm(&mut self) -> bool {
        let is_armed = self.worker.arm();
        if !is_armed {
            // The event that this thread took was for others too.
            self.sleepers.wake_others();
        }
        is_armed
    }

    /// Takes a message in. Gives back the bytes that it does not keep.
    fn take(&mut self, header: &[u8; HEADER_LEN], bytes: Bytes) -> Option<Bytes> {
        let header = Header::decode(header).filter(|header| header.token == self.me.token);
        let Some(Header { group, from, kind, .. }) = header else { return Some(bytes) };
        let Some(peer) = self.peers.get_mut(from as usize) else { return Some(bytes) };
        peer.is_heard = true;
        self.calls.remove(&from);
        let id = (group, from);
        if kind == Kind::Open {
            self.learn(from as usize, bytes.as_slice());
            self.say(id, Kind::Opened);
        }
        if !self.links.contains_key(&id) {
            if let Some((_, told)) = self.ended.iter().find(|(ended, _)| *ended == group) {
                let is_news = kind == Kind::Open && !told.contains(&from);
                self.take_late(id, kind, is_news);
                return Some(bytes);
            }
            if self.links.len() >= LINKS_MAX || matches!(kind, Kind::Opened | Kind::Read(_) | Kind::Closed) {
                return Some(bytes);
            }
        }
        let pipe = self.links.entry(id).or_default();
        pipe.is_used = true;
        match kind {
            Kind::Open | Kind::Opened | Kind::Closed => {}
            Kind::Data(offset) => return pipe.arrives(offset, bytes),
            Kind::Read(read) => pipe.peer_has_read(read),
            Kind::Close(end) => {
                pipe.ends(end);
                self.say(id, Kind::Closed);
            }
        }
        Some(bytes)
    }

    /// A message of a link that has ended here.
    fn take_late(&mut self, id: LinkId, kind: Kind, is_news: bool) {
        if is_news {
            self.say(id, Kind::Close(0));
        }
        if matches!(kind, Kind::Close(_)) {
            self.say(id, Kind::Closed);
        }
        // Whoever has ended its own side needs not hear that this one has.
        if matches!(kind, Kind::Close(_) | Kind::Closed) {
            self.ending.retain(|other| *other != id);
        }
    }

    /// Nothing reaches this rank of the job any more.
    fn lose(&mut self, rank: u32, fault: LinkFault) {
        let Some(peer) = self.peers.get_mut(rank as usize) else { return };
        self.calls.remove(&rank);
        peer.fault.get_or_insert(fault);
        if let Some(endpoint) = peer.endpoint.take() {
            self.worker.close(endpoint);
        }
        self.ending.retain(|(_, other)| *other != rank);
    }

    /// A short message about a link. A peer that can't be reached has no use for it.
    fn say(&mut self, id: LinkId, kind: Kind) {
        let _ = self.send_message(id, kind, |_| {});
    }

    /// Sends one message with what `fill` puts into it.
    fn send_message(
        &mut self,
        id: LinkId,
        kind: Kind,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), LinkFault> {
        let (group, rank) = id;
        let endpoint = self.endpoint(rank)?;
        let mut buffer = self.worker.buffer();
        let header = Header { token: self.me.token, group, from: self.me.rank as u32, kind };
        buffer.header = header.encode();
        buffer.payload.clear();
        fill(&mut buffer.payload);
        self.worker.send(endpoint, buffer).map_err(|refusal| self.refused(rank, refusal))
    }

    /// The way to a rank, made on first use.
    fn endpoint(&mut self, rank: u32) -> Result<Endpoint, LinkFault> {
        let peer = &mut self.peers[rank as usize];
        if let Some(fault) = &peer.fault {
            return Err(fault.clone());
        }
        if let Some(endpoint) = peer.endpoint {
            return Ok(endpoint);
        }
        if peer.address.is_empty() || peer.address.len() > ADDRESS_LEN_MAX {
            let what = format!("an address of a UCX worker has {} bytes", peer.address.len());
            return Err(peer.fault.insert(LinkFault::Nonsense(what)).clone());
        }
        match self.worker.connect(rank, &peer.address) {
            Ok(endpoint) => Ok(*peer.endpoint.insert(endpoint)),
            Err(refusal) => Err(self.refused(rank, refusal)),
        }
    }

    /// A call about this rank was refused: nothing goes there any more, unless something is only short.
    fn refused(&mut self, rank: u32, refusal: Refusal) -> LinkFault {
        let fault = self.fault_for(refusal.status);
        if !matches!(fault, LinkFault::Starved(_)) {
            self.lose(rank, fault.clone());
        }
        fault
    }

    /// What a status of UCX means for a link.
    fn fault_for(&self, status: sys::Status) -> LinkFault {
        let why = || format!("UCX: {}", self.worker.text(status));
        match status {
            sys::NO_RESOURCE | sys::NO_MEMORY => LinkFault::Starved(why()),
            sys::UNREACHABLE | sys::NO_DEVICE | sys::TIMED_OUT | sys::ENDPOINT_TIMEOUT => {
                LinkFault::Unreachable(why())
            }
            sys::INVALID_ADDRESS => LinkFault::Nonsense(why()),
            // All others are ways to learn that nobody is there any more.
            _ => LinkFault::Closed,
        }
    }

    /// Whether nothing is to be learnt of the peer of this link: messages of it have come, or it can't be reached.
    pub(crate) fn knows(&mut self, id: LinkId) -> bool {
        self.progress();
        let peer = &self.peers[id.1 as usize];
        peer.is_heard || peer.fault.is_some()
    }

    /// Begins to use a link, if this rank has not yet. Why that fails, [`fault`](Self::fault) says.
    pub(crate) fn use_link(&mut self, id: LinkId) {
        let pipe = self.links.entry(id).or_default();
        if pipe.is_opened {
            return;
        }
        pipe.is_used = true;
        let address = self.worker.address().to_vec();
        let outcome = self.send_message(id, Kind::Open, |payload| payload.extend_from_slice(&address));
        // What is short now may be there later.
        let is_short = matches!(outcome, Err(LinkFault::Starved(_)));
        self.links.entry(id).or_default().is_opened = !is_short;
        if outcome.is_ok() && !self.peers[id.1 as usize].is_heard {
            self.calls.entry(id.1).or_insert_with(Instant::now);
        }
    }

    /// Why nothing goes over a link any more, in either direction.
    fn fault(&self, id: LinkId) -> Option<LinkFault> {
        let of_link = self.links.get(&id).and_then(Pipe::fault);
        of_link.or_else(|| self.peers[id.1 as usize].fault.clone())
    }

    /// Whether a link is used and not known to be broken.
    pub(crate) fn is_linked(&self, id: LinkId) -> bool {
        let is_used = self.links.get(&id).is_some_and(|pipe| pipe.is_used && !pipe.has_end());
        is_used && self.fault(id).is_none()
    }

    /// Takes as many bytes as the peer has room for.
    pub(crate) fn send(&mut self, id: LinkId, parts: &[IoSlice<'_>]) -> Result<usize, LinkFault> {
        self.use_link(id);
        if self.links[&id].room() == 0 {
            self.progress();
        }
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let mut taken = 0;
        loop {
            let pipe = &self.links[&id];
            if pipe.has_end() {
                return if taken > 0 { Ok(taken) } else { Err(LinkFault::Closed) };
            }
            let (at, n) = (pipe.sent, pipe.room().min(len - taken).min(FRAGMENT_LEN));
            if let Some(fault) = self.fault(id).filter(|_| taken == 0) {
                return Err(fault);
            }
            if n == 0 {
                return Ok(taken);
            }
            match self.send_message(id, Kind::Data(at), |payload| gather(parts, taken, n, payload)) {
                Ok(()) => taken += n,
                Err(LinkFault::Starved(_)) => return Ok(taken),
                Err(fault) => return if taken > 0 { Ok(taken) } else { Err(fault) },
            }
            self.links.entry(id).or_default().sent += n as u64;
        }
    }

    /// Gives bytes that have arrived.
    pub(crate) fn recv(&mut self, id: LinkId, buffer: &mut [u8]) -> Result<usize, LinkFault> {
        self.use_link(id);
        let mut looks = 0;
        loop {
            let taken = self.read(id, buffer);
            if taken > 0 {
                return Ok(taken);
            }
            let fault = self.fault(id);
            if looks >= 1 && fault.is_none() {
                return Ok(0);
            }
            let has_moved = self.progress();
            looks += 1;
            if let Some(fault) = fault.filter(|_| looks > LOOKS_BEFORE_FAULT || !has_moved && looks > 1) {
                return Err(fault);
            }
        }
    }

    fn read(&mut self, id: LinkId, buffer: &mut [u8]) -> usize {
        let Some(pipe) = self.links.get_mut(&id).filter(|pipe| pipe.has_bytes()) else { return 0 };
        let taken = pipe.read(buffer, |bytes| self.worker.release(bytes));
        if let Some(read) = pipe.news_of_reading() {
            self.say(id, Kind::Read(read));
        }
        taken
    }

    /// Whether `recv` has something to say.
    pub(crate) fn can_receive(&self, id: LinkId) -> bool {
        self.links.get(&id).is_some_and(Pipe::has_bytes) || self.fault(id).is_some()
    }

    /// Whether `send` has something to say or to take.
    pub(crate) fn can_send(&self, id: LinkId) -> bool {
        self.links.get(&id).is_none_or(|pipe| pipe.room() > 0 || pipe.has_end()) || self.fault(id).is_some()
    }

    /// Ends all links of a group here: peers that use them hear of it behind what was sent.
    pub(crate) fn end_group(&mut self, group: GroupId) {
        let ids: Vec<_> = self.links.keys().copied().filter(|(other, _)| *other == group).collect();
        let mut told = Vec::new();
        for id in ids {
            let pipe = self.links.remove(&id).expect("it was listed");
            let (is_used, has_end, sent) = (pipe.is_used, pipe.has_end(), pipe.sent);
            pipe.into_bytes().for_each(|bytes| self.worker.release(bytes));
            if is_used {
                told.push(id.1);
                let is_told = self.send_message(id, Kind::Close(sent), |_| {}).is_ok();
                if is_told && !has_end {
                    self.ending.push(id);
                }
            }
        }
        self.ended.push_front((group, told));
        self.ended.truncate(ENDED_MAX);
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        for (_, pipe) in self.links.drain() {
            pipe.into_bytes().for_each(|bytes| self.worker.release(bytes));
        }
    }
}

/// Appends `len` bytes of `parts`, of which the first `skipped` were taken before.
fn gather(parts: &[IoSlice<'_>], mut skipped: usize, mut len: usize, payload: &mut Vec<u8>) {
    for part in parts {
        let rest = &part[skipped.min(part.len())..];
        skipped -= part.len() - rest.len();
        let n = rest.len().min(len);
        payload.extend_from_slice(&rest[..n]);
        len -= n;
    }
}
