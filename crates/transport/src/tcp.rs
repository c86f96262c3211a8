//! Ranks as processes anywhere: one TCP connection for each pair of ranks that talk, made on first use.
//!
//! The [`Exchange`] is the process's [`Reception`] for data links: it dials, accepts, and settles who wins when both
//! ends dial at once (the higher rank's connection is kept). A [`TcpTransport`] is one group's share of it; its sockets
//! are nonblocking and driven by the threads that perform operations.

use crate::handshake::{Hello, Purpose, Status};
use crate::reception::{Admission, Dial, Outbox, Reception, Service, SessionId};
use crate::transport::{Direction, LinkFault, Transport, Wait};
use crate::{Bell, Secret};
use phalanx_core::{Deadline, GroupId, Result};
use std::collections::HashMap;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Links for groups that do not exist here yet: the other ranks may be ahead.
const EARLY_LINKS_MAX: usize = 4096;

/// Where the reception leaves the links of one group.
#[derive(Debug, Default)]
struct Mailbox {
    full: AtomicBool,
    contents: Mutex<MailboxContents>,
}

#[derive(Debug, Default)]
struct MailboxContents {
    links: Vec<(usize, Result<TcpStream, String>)>,
    waiting: Vec<Bell>,
}

impl Mailbox {
    /// `peer` is a rank of the job.
    fn put(&self, peer: usize, link: Result<TcpStream, String>) {
        let mut contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        contents.links.push((peer, link));
        self.full.store(true, Ordering::Release);
        contents.waiting.drain(..).for_each(|bell| bell.ring());
    }
}

#[derive(Debug, PartialEq, Clone, Copy)]
enum LinkState {
    Dialling,
    Linked,
}

/// The service behind an [`Exchange`].
struct Links {
    rank: usize,
    world_size: usize,
    control: Option<Box<dyn Service>>,
    mailboxes: HashMap<GroupId, Arc<Mailbox>>,
    states: HashMap<(GroupId, usize), LinkState>,
    early: HashMap<(GroupId, usize), TcpStream>,
}

impl Service for Links {
    fn admit(&mut self, hello: &Hello) -> Admission {
        let peer = hello.rank as usize;
        // Rank 0 is a client of its own arbiter, but nobody links with itself.
        let itself = peer == self.rank && hello.purpose == Purpose::Data;
        if hello.world_size as usize != self.world_size || peer >= self.world_size || itself {
            return Admission::Refuse(Status::Unwanted);
        }
        match hello.purpose {
            Purpose::Store => Admission::Refuse(Status::Unwanted),
            Purpose::Control => match &mut self.control {
                Some(control) => control.admit(hello),
                None => Admission::Refuse(Status::Unwanted),
            },
            Purpose::Data => match self.states.get(&(hello.group, peer)) {
                Some(LinkState::Linked) => Admission::Refuse(Status::Taken),
                Some(LinkState::Dialling) if self.rank > peer => Admission::Refuse(Status::Crossed),
                _ => Admission::Link,
            },
        }
    }

    fn opened(&mut self, session: SessionId, hello: &Hello, outbox: &mut Outbox) {
        if let Some(control) = &mut self.control {
            control.opened(session, hello, outbox);
        }
    }

    fn message(&mut self, session: SessionId, message: &[u8], outbox: &mut Outbox) {
        if let Some(control) = &mut self.control {
            control.message(session, message, outbox);
        }
    }

    fn closed(&mut self, session: SessionId, outbox: &mut Outbox) {
        if let Some(control) = &mut self.control {
            control.closed(session, outbox);
        }
    }

    fn linked(&mut self, peer: usize, hello: &Hello, stream: TcpStream) {
        // Two that were admitted before the first was linked: the first stays.
        if self.states.insert((hello.group, peer), LinkState::Linked) == Some(LinkState::Linked) {
            return;
        }
        match self.mailboxes.get(&hello.group) {
            Some(mailbox) => mailbox.put(peer, Ok(stream)),
            None if self.early.len() < EARLY_LINKS_MAX => {
                drop(self.early.insert((hello.group, peer), stream));
            }
            None => drop(self.states.remove(&(hello.group, peer))),
        }
    }

    fn unreachable(&mut self, dial: &Dial, why: String) {
        let key = (dial.hello.group, dial.peer);
        if self.states.get(&key) == Some(&LinkState::Linked) {
            return; // it reached us meanwhile
        }
        self.states.remove(&key);
        if let Some(mailbox) = self.mailboxes.get(&dial.hello.group) {
            mailbox.put(dial.peer, Err(format!("{}: {why}", dial.addr)));
        }
    }
}

/// The TCP side of a process: its listener, and the links of all its groups. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Exchange {
    reception: Arc<Reception<Links>>,
    rank: usize,
    world_size: usize,
}

impl Exchange {
    /// Listens on exactly `bind`. Control connections go to `control`, if this rank has one.
    ///
    /// # Errors
    /// [`phalanx_core::Error::Io`] when the address is taken or not ours.
    pub fn start(
        bind: SocketAddr,
        secret: Secret,
        rank: usize,
        world_size: usize,
        control: Option<Box<dyn Service>>,
    ) -> Result<Self> {
        let links = Links {
            rank,
            world_size,
            control,
            mailboxes: HashMap::new(),
            states: HashMap::new(),
            early: HashMap::new(),
        };
        Ok(Self { reception: Arc::new(Reception::start(bind, secret, links)?), rank, world_size })
    }

    /// Where peers can connect.
    pub fn addr(&self) -> SocketAddr {
        self.reception.addr()
    }

    /// This rank's end of the links of `group`, whose members (ranks of the job, in group order) listen at `addrs`.
    /// A link that does not stand `link_timeout` after its first use is a [`LinkFault::Unreachable`].
    ///
    /// # Panics
    /// If this rank is not among the members, or there is not one address a member.
    pub fn open(
        &self,
        group: GroupId,
        members: Vec<usize>,
        addrs: Vec<SocketAddr>,
        link_timeout: Duration,
    ) -> TcpTransport {
        assert_eq!(members.len(), addrs.len(), "one address a member");
        let rank = members.iter().position(|&m| m == self.rank).expect("this rank is a member");
        let mailbox = Arc::new(Mailbox::default());
        let theirs = mailbox.clone();
        self.reception.call(move |links, _| {
            let early: Vec<_> = links.early.keys().filter(|(g, _)| *g == group).copied().collect();
            for key in early {
                if let Some(stream) = links.early.remove(&key) {
                    theirs.put(key.1, Ok(stream));
                }
            }
            links.mailboxes.insert(group, theirs);
        });
        let links = members.iter().map(|_| Link::Unused).collect();
        TcpTransport { exchange: self.clone(), group, rank, members, addrs, link_timeout, mailbox, links }
    }
}

#[derive(Debug)]
enum Link {
    Unused,
    Dialling,
    Up(Arc<TcpStream>),
    Down(LinkFault),
}

/// One group's links. Dropping it closes them.
#[derive(Debug)]
pub struct TcpTransport {
    exchange: Exchange,
    group: GroupId,
    rank: usize,
    members: Vec<usize>,
    addrs: Vec<SocketAddr>,
    link_timeout: Duration,
    mailbox: Arc<Mailbox>,
    links: Vec<Link>,
}

impl TcpTransport {
    /// The socket to `peer`, if the link stands; begins to make it if nobody has.
    fn link(&mut self, peer: usize) -> Result<Option<&Arc<TcpStream>>, LinkFault> {
        self.empty_mailbox();
        if matches!(self.links[peer], Link::Unused) {
            self.links[peer] = Link::Dialling;
            self.dial(peer);
        }
        match &self.links[peer] {
            Link::Up(stream) => Ok(Some(stream)),
            Link::Down(fault) => Err(fault.clone()),
            Link::Unused | Link::Dialling => Ok(None),
        }
    }

    /// One atomic load while nothing is new.
    fn empty_mailbox(&mut self) {
        if !self.mailbox.full.load(Ordering::Acquire) {
            return;
        }
        let mut contents = self.mailbox.contents.lock().unwrap_or_else(PoisonError::into_inner);
        self.mailbox.full.store(false, Ordering::Release);
        for (peer, link) in contents.links.drain(..) {
            let Some(index) = self.members.iter().position(|&m| m == peer) else { continue };
            self.links[index] = match link {
                Ok(stream) => Link::Up(Arc::new(stream)),
                Err(why) => Link::Down(LinkFault::Unreachable(why)),
            };
        }
    }

    fn dial(&self, peer: usize) {
        let dial = Dial {
            peer: self.members[peer],
            addr: self.addrs[peer],
            hello: Hello {
                purpose: Purpose::Data,
                rank: self.exchange.rank as u32,
                world_size: self.exchange.world_size as u32,
                group: self.group,
            },
            deadline: Deadline::after(Instant::now(), self.link_timeout),
        };
        self.exchange.reception.call(move |links, outbox| {
            let state = links.states.entry((dial.hello.group, dial.peer));
            if let std::collections::hash_map::Entry::Vacant(vacant) = state {
                vacant.insert(LinkState::Dialling);
                outbox.dial(dial);
            }
        });
    }

    /// Notes a broken link.
    fn down(&mut self, peer: usize) -> LinkFault {
        self.links[peer] = Link::Down(LinkFault::Closed);
        LinkFault::Closed
    }
}

impl Transport for TcpTransport {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.members.len()
    }

    fn send(&mut self, peer: usize, bytes: &[IoSlice<'_>]) -> Result<usize, LinkFault> {
        let Some(stream) = self.link(peer)? else { return Ok(0) };
        loop {
            match stream.as_ref().write_vectored(bytes) {
                Ok(n) => return Ok(n),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(0),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                // What the peer sent before it closed can still be read.
                Err(_) => return Err(LinkFault::Closed),
            }
        }
    }

    fn recv(&mut self, peer: usize, buffer: &mut [u8]) -> Result<usize, LinkFault> {
        let Some(stream) = self.link(peer)? else { return Ok(0) };
        loop {
            match stream.as_ref().read(buffer) {
                Ok(0) => return Err(self.down(peer)),
                Ok(n) => return Ok(n),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(0),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(self.down(peer)),
            }
        }
    }

    fn is_linked(&mut self, peer: usize) -> bool {
        self.empty_mailbox();
        matches!(self.links[peer], Link::Up(_))
    }

    fn watch(&mut self, peer: usize, direction: Direction, wait: &mut Wait) -> bool {
        match self.link(peer) {
            Ok(Some(stream)) => {
                wait.add(stream, direction);
                false
            }
            Ok(None) => {
                let mut contents = self.mailbox.contents.lock().unwrap_or_else(PoisonError::into_inner);
                contents.waiting.push(wait.bell().clone());
                !contents.links.is_empty()
            }
            Err(_) => true,
        }
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        let group = self.group;
        self.exchange.reception.call(move |links, _| {
            links.mailboxes.remove(&group);
            links.states.retain(|(g, _), _| *g != group);
            links.early.retain(|(g, _), _| *g != group);
        });
    }
}
