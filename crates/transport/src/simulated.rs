//! The connections of a process over a network of somebody else's making, for the simulation of whole jobs.
//!
//! What runs is what runs over TCP: the queue of callers, dialling, handshakes, sessions, and the rules of the exchange. Nothing here
//! decides anything; randomness and time are arguments.

use crate::connection::Connection;
use crate::endpoint::{
    Address, Connections, Dialling, HANDSHAKE_TIME, Listener, Message, Network, Origin, ServerSession,
    is_final_word, pause,
};
use crate::exchange::{self, Links};
use crate::handshake::{Hello, Nonce};
use crate::{Admission, Dial, LinkFault, Outbox, Secret, Service, SessionId};
use phalanx_core::{Deadline, GroupId, Result};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

/// The sockets of one process.
pub trait Sockets: Send + Sync + 'static {
    /// One end of a connection, nonblocking. Dropping it closes it.
    type Stream: Read + Write + Send + Sync + 'static;

    /// The next caller, and where it comes from.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) where there is none.
    fn accept(&self) -> io::Result<(Self::Stream, IpAddr)>;

    /// Begins to connect.
    ///
    /// # Errors
    /// It can't be tried.
    fn connect(&self, addr: SocketAddr) -> io::Result<Self::Stream>;

    /// Whether a connection that was begun stands by now.
    ///
    /// # Errors
    /// It never will.
    fn connected(stream: &Self::Stream) -> io::Result<bool>;

    /// From now on this process is sure that `rank` is at the other end.
    fn trusts(stream: &Self::Stream, rank: usize);
}

struct Simulated<N>(Arc<N>);

struct SimAddress<N>(Arc<N>, SocketAddr);

impl<N: Sockets> Network for Simulated<N> {
    type Stream = N::Stream;
    type Listener = Self;
    type Address = SimAddress<N>;

    fn address(&self, addr: SocketAddr) -> SimAddress<N> {
        SimAddress(self.0.clone(), addr)
    }
}

impl<N: Sockets> Listener for Simulated<N> {
    type Stream = N::Stream;

    fn accept(&self) -> io::Result<(N::Stream, Origin)> {
        self.0.accept().map(|(stream, from)| (stream, Origin::of(from)))
    }

    fn prepare(_stream: &N::Stream) -> io::Result<()> {
        Ok(())
    }
}

impl<N: Sockets> Address for SimAddress<N> {
    type Stream = N::Stream;

    fn connect(&self) -> io::Result<N::Stream> {
        self.0.connect(self.1)
    }

    fn connected(stream: &N::Stream) -> io::Result<bool> {
        N::connected(stream)
    }

    fn is_final(error: &io::Error) -> bool {
        <SocketAddr as Address>::is_final(error)
    }
}

/// The exchange, and whom it has trusted.
struct Watched<N: Sockets> {
    links: Links<N::Stream>,
    opened: Vec<(SessionId, usize)>,
}

impl<N: Sockets> Service<N::Stream> for Watched<N> {
    fn admit(&mut self, hello: &Hello) -> Admission {
        self.links.admit(hello)
    }

    fn opened(&mut self, session: SessionId, hello: &Hello, outbox: &mut Outbox) {
        self.opened.push((session, hello.rank as usize));
        self.links.opened(session, hello, outbox);
    }

    fn message(&mut self, session: SessionId, message: &[u8], outbox: &mut Outbox) {
        self.links.message(session, message, outbox);
    }

    fn closed(&mut self, session: SessionId, outbox: &mut Outbox) {
        self.links.closed(session, outbox);
    }

    fn poll(&mut self, now: Instant, outbox: &mut Outbox) -> Option<Instant> {
        self.links.poll(now, outbox)
    }

    fn linked(&mut self, peer: usize, hello: &Hello, link: Connection<N::Stream>) {
        N::trusts(link.stream(), peer);
        self.links.linked(peer, hello, link);
    }

    fn starved(&mut self, why: &str) {
        self.links.starved(why);
    }

    fn unreachable(&mut self, dial: &Dial, why: LinkFault) {
        self.links.unreachable(dial, why);
    }
}

/// The endpoint and the exchange of one process.
pub struct Process<N: Sockets> {
    connections: Connections<Simulated<N>, Watched<N>>,
}

impl<N: Sockets> Process<N>
where
    for<'a> &'a N::Stream: Read + Write,
{
    /// That of `rank`. Control connections go to `control`, if this rank has one.
    pub fn new(
        sockets: Arc<N>,
        secret: Secret,
        rank: usize,
        world_size: usize,
        control: Option<Box<dyn Service<N::Stream>>>,
    ) -> Self {
        let watched = Watched { links: Links::new(rank, world_size, control), opened: Vec::new() };
        Self {
            connections: Connections::new(Simulated(sockets.clone()), Simulated(sockets), secret, watched),
        }
    }

    /// Does all that can be done now.
    pub fn advance(&mut self, nonces: &mut dyn FnMut() -> Result<Nonce>, now: Instant) {
        self.connections.advance(nonces, now);
        for (session, rank) in std::mem::take(&mut self.connections.service.opened) {
            if let Some(stream) = self.connections.stream_of(session) {
                N::trusts(stream, rank);
            }
        }
    }

    /// When to look again though nothing has come.
    pub fn until(&self, now: Instant) -> Option<Instant> {
        self.connections.until(now)
    }

    /// Whether something was sent that is not on its way yet.
    pub fn is_writing(&self) -> bool {
        self.connections.is_writing()
    }

    /// Where the links of `group` are left from now on, and those that came before.
    pub fn open(&mut self, group: GroupId) -> Mailbox<N> {
        let mailbox = Arc::default();
        self.connections.service.links.open(group, Arc::clone(&mailbox));
        Mailbox(mailbox)
    }

    /// Begins to make a link, unless the other end is making one already.
    pub fn dial(&mut self, dial: Dial) {
        let Connections { service, outbox, .. } = &mut self.connections;
        service.links.dial(dial, outbox);
    }

    /// Forgets the links of a group that ends here.
    pub fn close(&mut self, group: GroupId) {
        self.connections.service.links.close(group);
    }
}

/// The mailbox of one group.
pub struct Mailbox<N: Sockets>(Arc<exchange::Mailbox<N::Stream>>);

impl<N: Sockets> Mailbox<N> {
    /// Takes the links that have come, by ranks of the job.
    pub fn empty(&self) -> Vec<(usize, Result<Link<N>, LinkFault>)> {
        let links = self.0.empty().into_iter();
        links.map(|(peer, link)| (peer, link.map(Link))).collect()
    }
}

/// A link that stands.
pub struct Link<N: Sockets>(Connection<N::Stream>);

impl<N: Sockets> Link<N>
where
    for<'a> &'a N::Stream: Read + Write,
{
    /// Writes what the stream takes now.
    ///
    /// # Errors
    /// As writing to the stream.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.writer.write(bytes)
    }

    /// Reads what has come.
    ///
    /// # Errors
    /// As reading from the stream.
    pub fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.reader.read(buffer)
    }
}

/// A call for a session, as [`try_to_open_session`](crate::try_to_open_session) makes it.
pub struct Call<N: Sockets> {
    sockets: Arc<N>,
    addr: SocketAddr,
    secret: Secret,
    hello: Hello,
    deadline: Deadline,
    tries: u32,
    dialling: Dialling<SimAddress<N>>,
}

impl<N: Sockets> Call<N>
where
    for<'a> &'a N::Stream: Read + Write,
{
    /// To the server at `addr`, until it answers or `deadline` passes.
    pub fn new(
        sockets: Arc<N>,
        addr: SocketAddr,
        secret: Secret,
        hello: Hello,
        deadline: Deadline,
        now: Instant,
    ) -> Self {
        let dialling = try_once(&sockets, addr, hello, &deadline, now);
        Self { sockets, addr, secret, hello, deadline, tries: 0, dialling }
    }

    /// Makes one step. `Some` when the session stands, or never will.
    pub fn advance(
        &mut self,
        nonces: &mut dyn FnMut() -> Result<Nonce>,
        now: Instant,
    ) -> Option<Result<Session<N>, String>> {
        match self.dialling.advance(&self.secret, nonces, now) {
            Ok(None) => None,
            Ok(Some(connection)) => {
                N::trusts(connection.stream(), self.hello.called as usize);
                Some(Ok(Session(ServerSession::new(connection))))
            }
            Err(met) if is_final_word(&met) || self.deadline.has_passed(now) => Some(Err(met.to_string())),
            Err(_) => {
                self.tries += 1;
                let at = now + pause(self.tries, nonces).min(self.deadline.remaining(now));
                self.dialling = try_once(&self.sockets, self.addr, self.hello, &self.deadline, at);
                None
            }
        }
    }

    /// When to make the next step though nothing has come.
    pub fn until(&self) -> Instant {
        self.dialling.until()
    }
}

/// One try, not before `at`.
fn try_once<N: Sockets>(
    sockets: &Arc<N>,
    addr: SocketAddr,
    hello: Hello,
    deadline: &Deadline,
    at: Instant,
) -> Dialling<SimAddress<N>> {
    let limit = HANDSHAKE_TIME.min(deadline.remaining(at));
    Dialling::new(SimAddress(sockets.clone(), addr), hello, Deadline::after(at, limit), at)
}

/// A session, at either end.
pub struct Session<N: Sockets>(ServerSession<N::Stream>);

impl<N: Sockets> Session<N>
where
    for<'a> &'a N::Stream: Read + Write,
{
    /// Sends a message, as far as the stream takes it now.
    pub fn send(&mut self, message: &[u8]) {
        // Of one that leaves too much unread, `receive` finds the end.
        let _ = self.0.queue(Message::new(message));
        self.0.flush();
    }

    /// Writes what waits, and reads what has come: whole messages, and whether the session still stands.
    pub fn advance(&mut self) -> (Vec<Vec<u8>>, bool) {
        self.0.flush();
        let (messages, state) = self.0.receive();
        (messages, state.is_ok())
    }

    /// Whether something was sent that is not on its way yet.
    pub fn is_writing(&self) -> bool {
        self.0.is_writing()
    }
}

macro_rules! hidden {
    ($($name:ident)*) => {$(
        impl<N: Sockets> std::fmt::Debug for $name<N> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    )*};
}
hidden!(Process Mailbox Link Call Session);
