//! A process's side of all its connections with other ranks.
//!
//! The [`Exchange`] is the process's [`Endpoint`] for data links: it dials, accepts, and settles who wins when both
//! ends dial at once (the higher rank's connection is kept). On Linux it also gives memory to peers of this host and takes theirs.

use crate::endpoint::{Admission, Dial, Endpoint, Outbox, Service, SessionId, Strangers};
use crate::handshake::{Hello, Purpose, Status};
#[cfg(target_os = "linux")]
use crate::local::Memories;
use crate::sabotage::{Mechanism, breaks};
use crate::{Connection, LinkFault, Secret, Waker};
use phalanx_core::{GroupId, Result};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Links for groups that do not exist here yet: the other ranks may be ahead.
const EARLY_LINKS_MAX: usize = 4096;
/// Groups of which it is remembered that they ended here: the latest.
const CLOSED_MAX: usize = 4096;

/// The mailbox in which the endpoint leaves the links of one group.
#[derive(Debug)]
pub(crate) struct Mailbox<S = TcpStream> {
    full: AtomicBool,
    contents: Mutex<MailboxContents<S>>,
}

#[derive(Debug)]
struct MailboxContents<S> {
    links: Vec<(usize, Result<Connection<S>, LinkFault>)>,
    waiting: Vec<Waker>,
}

impl<S> Default for Mailbox<S> {
    fn default() -> Self {
        let contents = MailboxContents { links: Vec::new(), waiting: Vec::new() };
        Self { full: AtomicBool::new(false), contents: Mutex::new(contents) }
    }
}

impl<S> Mailbox<S> {
    /// Whether something has come. One atomic load while nothing is new.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    /// Takes the links that have come, by ranks of the job.
    pub(crate) fn empty(&self) -> Vec<(usize, Result<Connection<S>, LinkFault>)> {
        let mut contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        self.full.store(false, Ordering::Release);
        std::mem::take(&mut contents.links)
    }

    /// Wakes `waker` when a link comes; true if one is there already.
    pub(crate) fn watch(&self, waker: &Waker) -> bool {
        let mut contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        contents.waiting.push(waker.clone());
        !contents.links.is_empty()
    }

    /// `peer` is a rank of the job.
    fn put(&self, peer: usize, link: Result<Connection<S>, LinkFault>) {
        let mut contents = self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        contents.links.push((peer, link));
        self.full.store(true, Ordering::Release);
        contents.waiting.drain(..).for_each(|waker| waker.wake());
    }
}

#[derive(Debug, PartialEq, Clone, Copy)]
enum LinkState {
    Dialling,
    Linked,
}

/// The service behind an [`Exchange`].
pub(crate) struct Links<S = TcpStream> {
    rank: usize,
    world_size: usize,
    control: Option<Box<dyn Service<S>>>,
    mailboxes: HashMap<GroupId, Arc<Mailbox<S>>>,
    states: HashMap<(GroupId, usize), LinkState>,
    early: HashMap<(GroupId, usize), Connection<S>>,
    /// Groups that have ended here, oldest first: who calls for one is late, and not early.
    closed: VecDeque<GroupId>,
    #[cfg(target_os = "linux")]
    pub(crate) memories: Memories,
}

impl<S: Send + Sync + 'static> Service<S> for Links<S> {
    fn admit(&mut self, hello: &Hello) -> Admission {
        let peer = hello.rank as usize;
        if let Some(objection) = hello.objection(self.rank, self.world_size) {
            return Admission::Refuse(objection);
        }
        match hello.purpose {
            Purpose::Store | Purpose::Lifeline | Purpose::Agent => Admission::Refuse(Status::Unwanted),
            Purpose::Control | Purpose::Heartbeat => match &mut self.control {
                Some(control) => control.admit(hello),
                None => Admission::Refuse(Status::Unwanted),
            },
            Purpose::Data if self.closed.contains(&hello.group) => Admission::Refuse(Status::Unwanted),
            Purpose::Data => match self.states.get(&(hello.group, peer)) {
                // Where both dialled at once, the lower rank's call may come when the link stands.
                Some(_) if self.rank > peer && !breaks(Mechanism::Crossing) => {
                    Admission::Refuse(Status::Crossed)
                }
                Some(LinkState::Linked) => Admission::Refuse(Status::Taken),
                _ => Admission::Link,
            },
            Purpose::Memory => Admission::Link,
        }
    }

    fn takes_memory(&self) -> bool {
        true
    }

    #[cfg(target_os = "linux")]
    fn memory(&mut self, hello: &Hello, seq: u64, memory: std::os::fd::OwnedFd) -> bool {
        !self.closed.contains(&hello.group)
            && self.memories.put((hello.group, hello.rank as usize, seq), memory)
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

    fn poll(&mut self, now: Instant, outbox: &mut Outbox) -> Option<Instant> {
        self.control.as_mut()?.poll(now, outbox)
    }

    fn linked(&mut self, peer: usize, hello: &Hello, link: Connection<S>) {
        // It was begun before the group ended. Closing it says so to the other end.
        if self.closed.contains(&hello.group) {
            return;
        }
        // Two that were admitted before the first was linked: the first stays.
        if self.states.insert((hello.group, peer), LinkState::Linked) == Some(LinkState::Linked) {
            return;
        }
        match self.mailboxes.get(&hello.group) {
            Some(mailbox) => mailbox.put(peer, Ok(link)),
            None if self.early.len() < EARLY_LINKS_MAX => {
                drop(self.early.insert((hello.group, peer), link));
            }
            None => drop(self.states.remove(&(hello.group, peer))),
        }
    }

    fn starved(&mut self, why: &str) {
        let is_awaited = |_: &(GroupId, usize), state: &mut LinkState| *state == LinkState::Dialling;
        for ((group, peer), _) in self.states.extract_if(is_awaited) {
            if let Some(mailbox) = self.mailboxes.get(&group) {
                mailbox.put(peer, Err(LinkFault::Starved(why.to_owned())));
            }
        }
    }

    fn unreachable(&mut self, dial: &Dial, why: LinkFault) {
        let key = (dial.hello.group, dial.peer);
        if self.states.get(&key) == Some(&LinkState::Linked) {
            return; // it reached us meanwhile
        }
        self.states.remove(&key);
        if let Some(mailbox) = self.mailboxes.get(&dial.hello.group) {
            mailbox.put(dial.peer, Err(why));
        }
    }
}

impl<S> Links<S> {
    pub(crate) fn new(rank: usize, world_size: usize, control: Option<Box<dyn Service<S>>>) -> Self {
        Self {
            rank,
            world_size,
            control,
            mailboxes: HashMap::new(),
            states: HashMap::new(),
            early: HashMap::new(),
            closed: VecDeque::new(),
            #[cfg(target_os = "linux")]
            memories: Memories::default(),
        }
    }

    /// Leaves the links of `group` in `mailbox` from now on, and those that came before.
    pub(crate) fn open(&mut self, group: GroupId, mailbox: Arc<Mailbox<S>>) {
        self.closed.retain(|g| *g != group);
        let early: Vec<_> = self.early.keys().filter(|(g, _)| *g == group).copied().collect();
        for key in early {
            if let Some(link) = self.early.remove(&key)
                && !breaks(Mechanism::EarlyLinks)
            {
                mailbox.put(key.1, Ok(link));
            }
        }
        self.mailboxes.insert(group, mailbox);
    }

    /// Begins to make a link, unless the other end is making one already.
    pub(crate) fn dial(&mut self, dial: Dial, outbox: &mut Outbox) {
        if let Entry::Vacant(state) = self.states.entry((dial.hello.group, dial.peer)) {
            state.insert(LinkState::Dialling);
            outbox.dial(dial);
        }
    }

    /// Forgets links and memory of a group that ends here.
    pub(crate) fn close(&mut self, group: GroupId) {
        self.mailboxes.remove(&group);
        self.states.retain(|(g, _), _| *g != group);
        self.early.retain(|(g, _), _| *g != group);
        #[cfg(target_os = "linux")]
        self.memories.forget(group);
        self.closed.retain(|g| *g != group);
        if self.closed.len() == CLOSED_MAX {
            self.closed.pop_front();
        }
        self.closed.push_back(group);
    }
}

/// The connections of a process to its peers: the links of all its groups. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Exchange {
    pub(crate) endpoint: Arc<Endpoint<Links>>,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
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
        Self::start_on_first_free(&[bind], secret, rank, world_size, control)
    }

    /// As [`start`](Self::start), on the first of these addresses that nobody else listens on.
    ///
    /// # Errors
    /// As there; where all are taken, it tells of the last.
    pub fn start_on_first_free(
        binds: &[SocketAddr],
        secret: Secret,
        rank: usize,
        world_size: usize,
        control: Option<Box<dyn Service>>,
    ) -> Result<Self> {
        let links = Links::new(rank, world_size, control);
        let endpoint = Endpoint::start_on_first_free(binds, secret, links)?;
        Ok(Self { endpoint: Arc::new(endpoint), rank, world_size })
    }

    /// The address at which peers can connect.
    pub fn addr(&self) -> SocketAddr {
        self.endpoint.addr()
    }

    /// Under which name peers of this host can pass memory to this process; `None` where the system cannot do that.
    pub fn local_name(&self) -> Option<&str> {
        self.endpoint.local_name()
    }

    /// As much of the [`local_name`](Self::local_name) as peers must be told: who knows the job's secret knows the rest.
    pub fn told_name(&self) -> Option<&str> {
        #[cfg(target_os = "linux")]
        return self.local_name().map(crate::local::FdPassing::told);
        #[cfg(not(target_os = "linux"))]
        None
    }

    /// The addresses that called so far and did not know the secret.
    pub fn strangers(&self) -> Strangers {
        self.endpoint.strangers()
    }

    /// The mailbox in which the links of `group` are left from now on, and those that came before.
    pub(crate) fn mailbox(&self, group: GroupId) -> Arc<Mailbox> {
        let mailbox = Arc::new(Mailbox::default());
        let theirs = mailbox.clone();
        self.endpoint.call(move |links, _| links.open(group, theirs));
        mailbox
    }

    /// Begins to make a link, unless the other end is making one already; the outcome goes to the group's mailbox.
    pub(crate) fn dial(&self, dial: Dial) {
        self.endpoint.call(move |links, outbox| links.dial(dial, outbox));
    }

    /// Forgets links and memory of a group that ends here. What still comes for it is refused.
    pub fn close(&self, group: GroupId) {
        self.endpoint.call(move |links, _| links.close(group));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpListener};

    /// Both ends of a connection.
    fn link() -> (Connection, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Connection::new(listener.accept().unwrap().0, None), other)
    }

    #[test]
    fn whoever_waits_for_a_link_hears_that_this_process_can_take_none() {
        let mut links = <Links>::new(0, 3, None);
        let (group, mailbox) = (GroupId(7), Arc::new(Mailbox::default()));
        links.open(group, mailbox.clone());
        links.states.insert((group, 1), LinkState::Linked);
        links.states.insert((group, 2), LinkState::Dialling);
        links.starved("too many open files");
        let faults = mailbox.empty();
        assert!(matches!(&faults[..], [(2, Err(LinkFault::Starved(why)))] if why == "too many open files"));
        links.starved("too many open files");
        assert!(mailbox.empty().is_empty(), "once");
    }

    #[test]
    fn who_calls_for_a_group_that_has_ended_is_late_and_not_early() {
        let mut links = Links::new(0, 2, None);
        let hello = Hello { purpose: Purpose::Data, rank: 1, called: 0, world_size: 2, group: GroupId(7) };
        assert_eq!(links.admit(&hello), Admission::Link);
        let (early, _other) = link();
        links.linked(1, &hello, early);
        let mailbox = Arc::new(Mailbox::default());
        links.open(hello.group, mailbox.clone());
        assert_eq!(mailbox.empty().len(), 1);

        links.close(hello.group);
        assert_eq!(links.admit(&hello), Admission::Refuse(Status::Unwanted));
        // One that was begun before.
        let (late, mut other) = link();
        links.linked(1, &hello, late);
        assert!(links.early.is_empty());
        assert_eq!(other.read(&mut [0]).unwrap(), 0, "it was closed");
        #[cfg(target_os = "linux")]
        {
            let hello = Hello { purpose: Purpose::Memory, ..hello };
            let memory = || std::fs::File::open("/dev/null").unwrap().into();
            assert!(!links.memory(&hello, 0, memory()));
            let other = Hello { group: GroupId(8), ..hello };
            assert!(links.memory(&other, 0, memory()) && !links.memory(&other, 0, memory()));
            links.close(other.group);
            links.open(other.group, mailbox);
            assert!(links.memory(&other, 0, memory()), "what had come for the group of before is there");
        }
        for group in 0..2 * CLOSED_MAX as u64 {
            links.close(GroupId(group));
        }
        assert_eq!(links.closed.len(), CLOSED_MAX);
    }
}
