//! All connections of a process with others, without a thread, a clock or a poll: who comes in, whom it calls, its sessions, and the
//! service that decides about them. An endpoint's thread drives it over TCP, a simulation over a network of its own.

use super::accept_queue::{AcceptQueue, Listener};
use super::dial::{Address, Dialling};
use super::handshake_io::Failure;
use super::readiness::Readiness;
use super::service::{Dial, Outbox, Service, SessionId};
use super::session::ServerSession;
use crate::handshake::{Nonces, Purpose, Refusal, Status};
use crate::{Secret, socket};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

/// Where callers come from, and calls go to.
pub(crate) trait Network {
    type Stream: Read + Write;
    type Listener: Listener<Stream = Self::Stream>;
    type Address: Address<Stream = Self::Stream>;

    /// What connects to `addr`.
    fn address(&self, addr: SocketAddr) -> Self::Address;

    /// A session has begun on this stream.
    ///
    /// # Errors
    /// It can't be looked at.
    fn watch(&self, _session: SessionId, _stream: &Self::Stream) -> io::Result<()> {
        Ok(())
    }

    /// Something waits until the stream of this session takes it, or no longer.
    fn set_writing(&self, _session: SessionId, _stream: &Self::Stream, _is_writing: bool) {}

    /// The session of this stream ends.
    fn forget(&self, _stream: &Self::Stream) {}

    /// The sessions at which something has happened; `None` for perhaps all.
    fn ready(&self) -> Option<Vec<SessionId>> {
        None
    }
}

/// The network of the system.
pub(crate) struct Tcp(pub(super) Readiness);

impl Network for Tcp {
    type Stream = TcpStream;
    type Listener = TcpListener;
    type Address = SocketAddr;

    fn address(&self, addr: SocketAddr) -> SocketAddr {
        addr
    }

    fn watch(&self, session: SessionId, stream: &TcpStream) -> io::Result<()> {
        socket::tune_session(stream);
        self.0.watch(session, stream)
    }

    fn set_writing(&self, session: SessionId, stream: &TcpStream, is_writing: bool) {
        self.0.set_writing(session, stream, is_writing);
    }

    fn forget(&self, stream: &TcpStream) {
        self.0.forget(stream);
    }

    fn ready(&self) -> Option<Vec<SessionId>> {
        self.0.ready()
    }
}

/// The connections of a process, and what it does with them.
pub(crate) struct Connections<N: Network, S> {
    pub(super) network: N,
    pub(super) secret: Secret,
    pub(crate) service: S,
    pub(crate) outbox: Outbox,
    pub(super) accept_queue: AcceptQueue<N::Listener>,
    pub(super) dials: Vec<(Dial, Dialling<N::Address>)>,
    pub(super) sessions: BTreeMap<SessionId, ServerSession<N::Stream>>,
    next_session: SessionId,
    /// When the service wants to be asked again.
    due: Option<Instant>,
}

impl<N: Network, S: Service<N::Stream>> Connections<N, S>
where
    for<'a> &'a N::Stream: Read + Write,
{
    pub(crate) fn new(network: N, listener: N::Listener, secret: Secret, service: S) -> Self {
        Self {
            network,
            secret,
            service,
            outbox: Outbox::default(),
            accept_queue: AcceptQueue::new(
                listener,
                &[
                    Purpose::Store,
                    Purpose::Control,
                    Purpose::Data,
                    Purpose::Lifeline,
                    Purpose::Heartbeat,
                    Purpose::Agent,
                ],
            ),
            dials: Vec::new(),
            sessions: BTreeMap::new(),
            next_session: 1,
            due: None,
        }
    }

    /// Does all that can be done now.
    pub(crate) fn advance(&mut self, nonces: Nonces<'_>, now: Instant) {
        self.accept_queue.accept(&self.secret, nonces, now);
        if let Some(why) = self.accept_queue.starved(now) {
            self.service.starved(&why);
        }
        self.greet(now);
        self.serve();
        self.dial(nonces, now);
        loop {
            self.due = self.service.poll(now, &mut self.outbox);
            // What the end of a session means to the service may be due at once.
            if !self.deliver() {
                return;
            }
        }
    }

    /// When to look again though nothing has come.
    pub(crate) fn until(&self, now: Instant) -> Option<Instant> {
        let dials = self.dials.iter().map(|(_, dialling)| dialling.until());
        dials.chain(self.accept_queue.until(now)).chain(self.due).min()
    }

    /// Whether something was sent that is not on its way yet.
    pub(crate) fn is_writing(&self) -> bool {
        self.sessions.values().any(ServerSession::is_writing)
    }

    /// The stream of a session.
    #[cfg(feature = "__simulation")]
    pub(crate) fn stream_of(&self, session: SessionId) -> Option<&N::Stream> {
        self.sessions.get(&session).map(ServerSession::stream)
    }

    /// Writes what the streams take now.
    pub(crate) fn flush(&mut self) {
        self.sessions.iter_mut().for_each(|(&id, session)| flush(&self.network, id, session));
    }

    /// Takes in callers whose handshake is over.
    fn greet(&mut self, now: Instant) {
        let (sessions, next, outbox) = (&mut self.sessions, &mut self.next_session, &mut self.outbox);
        let network = &self.network;
        self.accept_queue.greet(&mut self.service, now, |service, hello, connection| {
            if hello.purpose == Purpose::Data {
                return service.linked(hello.rank as usize, &hello, connection);
            }
            let id = *next;
            *next += 1;
            if let Err(error) = network.watch(id, connection.stream()) {
                return tracing::warn!(%error, rank = hello.rank, "a session can't be served");
            }
            sessions.insert(id, ServerSession::new(connection));
            service.opened(id, &hello, outbox);
        });
    }

    fn serve(&mut self) {
        let ready = self.network.ready().unwrap_or_else(|| self.sessions.keys().copied().collect());
        let mut ended = Vec::new();
        for id in ready {
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            let (messages, state) = session.receive();
            for message in messages {
                self.service.message(id, &message, &mut self.outbox);
            }
            flush(&self.network, id, session);
            if let Err(error) = state {
                if error.kind() == ErrorKind::InvalidData {
                    tracing::warn!(session = id, %error, "a session was ended");
                }
                ended.push(id);
            }
        }
        self.end(ended);
    }

    fn end(&mut self, ended: Vec<SessionId>) {
        for id in ended {
            if let Some(session) = self.sessions.remove(&id) {
                self.network.forget(session.stream());
                self.service.closed(id, &mut self.outbox);
            }
        }
    }

    /// Sends what the service queued, and ends the sessions that it closes, until it wants no more; whether a session has ended by that.
    fn deliver(&mut self) -> bool {
        let mut any = false;
        while !self.outbox.messages.is_empty() || !self.outbox.closes.is_empty() {
            let mut ended = std::mem::take(&mut self.outbox.closes);
            for (id, message) in std::mem::take(&mut self.outbox.messages) {
                let Some(session) = self.sessions.get_mut(&id) else { continue };
                match session.queue(message) {
                    Ok(()) => flush(&self.network, id, session),
                    Err(_) => ended.push(id),
                }
            }
            any |= !ended.is_empty();
            self.end(ended);
        }
        any
    }

    /// Advances the connections this side makes.
    fn dial(&mut self, nonces: Nonces<'_>, now: Instant) {
        let new = std::mem::take(&mut self.outbox.dials);
        self.dials.extend(new.into_iter().map(|dial| {
            let dialling = Dialling::new(self.network.address(dial.addr), dial.hello, dial.deadline, now);
            (dial, dialling)
        }));
        for (dial, mut dialling) in std::mem::take(&mut self.dials) {
            match dialling.advance(&self.secret, nonces, now) {
                Ok(None) => self.dials.push((dial, dialling)),
                Ok(Some(link)) => self.service.linked(dial.peer, &dial.hello, link),
                // The other side's connection is kept; it arrives through the accept queue.
                Err(Failure::Refused(Refusal::Status(Status::Crossed))) => {}
                Err(why) => self.service.unreachable(&dial, why.of_link(&dial.addr)),
            }
        }
    }
}

/// Writes what the stream takes now; what is left waits for it.
fn flush<N: Network>(network: &N, id: SessionId, session: &mut ServerSession<N::Stream>)
where
    for<'a> &'a N::Stream: Read + Write,
{
    session.flush();
    let is_writing = session.is_writing();
    if session.waits_for_room != is_writing {
        session.waits_for_room = is_writing;
        network.set_writing(id, session.stream(), is_writing);
    }
}
