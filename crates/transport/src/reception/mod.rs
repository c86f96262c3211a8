//! The reception of a process: one thread that lets in who knows the job's secret, and nobody else.
//!
//! It accepts and dials, runs all handshakes side by side, serves sessions of small messages, and hands finished
//! data links to whoever wants them. It never blocks on a stranger: handshakes have a time limit and a number limit
//! (the oldest goes first), so a thousand stray connections cost some CPU time and nothing else.

mod half_open;
mod session;

pub use session::{MESSAGE_LEN_MAX, Session};

use crate::handshake::{Acceptor, Dialer, Hello, Refusal, Status};
use crate::secret::random;
use crate::{Bell, Secret, bell, socket};
use half_open::{Failure, HalfOpen, Progress};
use phalanx_core::{Deadline, Error, Result};
use rustix::event::{PollFd, PollFlags};
use session::Served;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a handshake may take.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Handshakes with callers under way at once; one more ends the oldest.
const HALF_OPEN_MAX: usize = 256;
/// How long the thread tries to deliver its last messages when it is stopped.
const LAST_WORDS_TIME: Duration = Duration::from_millis(500);

/// Names a session within its reception; never reused.
pub type SessionId = u64;

/// What to do with a caller that knows the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Serve it here, message by message.
    Serve,
    /// Give the bare connection to [`Service::linked`].
    Link,
    /// Send it away.
    Refuse(Status),
}

/// A connection to make: tried again and again until it stands or its time is over.
#[derive(Debug, Clone)]
pub struct Dial {
    /// The peer's rank in the job, for [`Service::linked`].
    pub peer: usize,
    /// Where it listens.
    pub addr: SocketAddr,
    /// Who we are.
    pub hello: Hello,
    /// When to give up.
    pub deadline: Deadline,
}

/// What a [`Service`] wants done.
#[derive(Debug, Default)]
pub struct Outbox {
    messages: Vec<(SessionId, Vec<u8>)>,
    dials: Vec<Dial>,
}

impl Outbox {
    /// Sends `message` (at most [`MESSAGE_LEN_MAX`] bytes) to a session; nothing happens if it is gone.
    pub fn send(&mut self, session: SessionId, message: Vec<u8>) {
        self.messages.push((session, message));
    }

    /// Begins to connect; the outcome goes to [`Service::linked`] or [`Service::unreachable`].
    pub fn dial(&mut self, dial: Dial) {
        self.dials.push(dial);
    }
}

/// What a reception does for those it lets in. All calls come from its one thread.
pub trait Service: Send + 'static {
    /// Decides about a caller that proved it knows the secret.
    fn admit(&mut self, hello: &Hello) -> Admission;

    /// A session has begun.
    fn opened(&mut self, _session: SessionId, _hello: &Hello, _outbox: &mut Outbox) {}

    /// A message came.
    fn message(&mut self, session: SessionId, message: &[u8], outbox: &mut Outbox);

    /// A session has ended, for whatever reason.
    fn closed(&mut self, session: SessionId, outbox: &mut Outbox);

    /// A link with `peer` stands, whoever dialled. The stream is nonblocking.
    fn linked(&mut self, _peer: usize, _hello: &Hello, _stream: TcpStream) {}

    /// A dial was given up, or the peer refused it for good.
    fn unreachable(&mut self, _dial: &Dial, _why: String) {}
}

type Call<S> = Box<dyn FnOnce(&mut S, &mut Outbox) + Send>;

struct Shared<S> {
    calls: Mutex<(Vec<Call<S>>, Stop)>,
    bell: Bell,
}

#[derive(PartialEq, Clone, Copy)]
enum Stop {
    Running,
    Stopping,
}

/// The running thread. Dropping it delivers what is queued (for at most half a second), closes everything and joins.
pub struct Reception<S: Service> {
    shared: Arc<Shared<S>>,
    addr: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl<S: Service> std::fmt::Debug for Reception<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reception").field("addr", &self.addr).finish_non_exhaustive()
    }
}

impl<S: Service> Reception<S> {
    /// Listens on exactly `bind` (port 0: any free one) and serves until dropped.
    ///
    /// # Errors
    /// [`Error::Io`] when the address is taken or not ours, or descriptors run out.
    pub fn start(bind: SocketAddr, secret: Secret, service: S) -> Result<Self> {
        let listener = socket::listen(bind)
            .map_err(|e| Error::io(format!("listening on {bind} (is the port in use?)"), e))?;
        let addr = listener.local_addr().map_err(|e| Error::io(format!("listening on {bind}"), e))?;
        let bell = Bell::new().map_err(|e| Error::io("making a wake-up pipe", e))?;
        let shared = Arc::new(Shared { calls: Mutex::new((Vec::new(), Stop::Running)), bell });
        let desk = Desk::new(listener, secret, service, shared.clone());
        let thread = std::thread::Builder::new()
            .name(format!("phalanx-desk-{}", addr.port()))
            .spawn(move || desk.run())
            .map_err(|e| Error::io("starting the reception thread", e))?;
        Ok(Self { shared, addr, thread: Some(thread) })
    }

    /// Where it listens; the port is the real one.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Runs `call` on the reception's thread, soon and in order of calling.
    pub fn call(&self, call: impl FnOnce(&mut S, &mut Outbox) + Send + 'static) {
        self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner).0.push(Box::new(call));
        self.shared.bell.ring();
    }
}

impl<S: Service> Drop for Reception<S> {
    fn drop(&mut self) {
        self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner).1 = Stop::Stopping;
        self.shared.bell.ring();
        if let Some(thread) = self.thread.take() {
            // A service may drop the last handle on its own reception: a thread cannot join itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

/// A dial and where it stands.
struct Dialling {
    dial: Dial,
    tries: u32,
    state: DialState,
}

enum DialState {
    /// Not before this moment.
    Waiting(Instant),
    Connecting(TcpStream, Instant),
    Shaking(HalfOpen),
}

/// Everything the thread owns.
struct Desk<S: Service> {
    listener: TcpListener,
    secret: Secret,
    service: S,
    shared: Arc<Shared<S>>,
    callers: Vec<(HalfOpen, Option<Hello>)>,
    dials: Vec<Dialling>,
    sessions: BTreeMap<SessionId, Served>,
    next_session: SessionId,
    outbox: Outbox,
    /// Accepting pauses until then after the system refused (out of descriptors).
    accept_after: Instant,
}

impl<S: Service> Desk<S> {
    fn new(listener: TcpListener, secret: Secret, service: S, shared: Arc<Shared<S>>) -> Self {
        Self {
            listener,
            secret,
            service,
            shared,
            callers: Vec::new(),
            dials: Vec::new(),
            sessions: BTreeMap::new(),
            next_session: 1,
            outbox: Outbox::default(),
            accept_after: Instant::now(),
        }
    }

    fn run(mut self) {
        loop {
            self.sleep(Duration::from_secs(60));
            self.shared.bell.clear();
            let (calls, stop) = {
                let mut queue = self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner);
                (std::mem::take(&mut queue.0), queue.1)
            };
            for call in calls {
                call(&mut self.service, &mut self.outbox);
            }
            self.accept();
            self.greet();
            self.serve();
            self.dial();
            self.deliver();
            if stop == Stop::Stopping {
                return self.last_words();
            }
        }
    }

    /// Sleeps until something can be done.
    fn sleep(&self, longest: Duration) {
        let now = Instant::now();
        let mut until = now + longest;
        let interest = |writing| if writing { PollFlags::OUT } else { PollFlags::IN };
        let mut fds = vec![self.shared.bell.poll_fd()];
        if self.accept_after <= now {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        } else {
            until = until.min(self.accept_after);
        }
        for (caller, _) in &self.callers {
            fds.push(PollFd::new(&caller.stream, interest(caller.is_writing())));
            until = until.min(caller.until);
        }
        for session in self.sessions.values() {
            let both = PollFlags::IN | if session.is_writing() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::new(&session.stream, both));
        }
        for dial in &self.dials {
            match &dial.state {
                DialState::Waiting(at) => until = until.min(*at),
                DialState::Connecting(stream, at) => {
                    fds.push(PollFd::new(stream, PollFlags::OUT));
                    until = until.min(*at);
                }
                DialState::Shaking(half) => {
                    fds.push(PollFd::new(&half.stream, interest(half.is_writing())));
                    until = until.min(half.until);
                }
            }
        }
        let left = until.saturating_duration_since(now);
        bell::sleep(&mut fds, left);
    }

    fn accept(&mut self) {
        let now = Instant::now();
        if now < self.accept_after {
            return;
        }
        // Bounded, so that a flood of callers can't keep the thread from those it has already.
        for _ in 0..64 {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections; trying again");
                    self.accept_after = now + Duration::from_millis(50);
                    return;
                }
            };
            let Ok(nonce) = random() else { return };
            if socket::prepare(&stream).is_err() {
                continue;
            }
            if self.callers.len() >= HALF_OPEN_MAX {
                tracing::debug!("too many handshakes at once; ending the oldest");
                self.callers.remove(0);
            }
            let acceptor = Acceptor::new(self.secret.clone(), nonce);
            self.callers.push((HalfOpen::accepted(stream, acceptor, now + HANDSHAKE_TIME), None));
        }
    }

    /// Advances the handshakes of callers.
    fn greet(&mut self) {
        let now = Instant::now();
        for (mut half, mut admitted) in std::mem::take(&mut self.callers) {
            loop {
                match half.advance() {
                    Progress::Pending if half.until > now => self.callers.push((half, admitted)),
                    Progress::Pending => tracing::debug!("a caller did not finish its handshake in time"),
                    Progress::Failed(why) => tracing::debug!(%why, "a stray connection was dropped"),
                    Progress::Proved(hello) => {
                        match self.service.admit(&hello) {
                            Admission::Refuse(status) => {
                                if status != Status::Crossed {
                                    tracing::warn!(rank = hello.rank, %status, "a caller with the job's secret was refused");
                                }
                                half.answer(status);
                            }
                            Admission::Serve | Admission::Link => {
                                admitted = Some(hello);
                                half.answer(Status::Welcome);
                            }
                        }
                        continue;
                    }
                    Progress::Done => {
                        if let Some(hello) = admitted {
                            self.welcome(hello, half.stream);
                        }
                    }
                }
                break;
            }
        }
    }

    fn welcome(&mut self, hello: Hello, stream: TcpStream) {
        if hello.purpose == crate::handshake::Purpose::Data {
            return self.service.linked(hello.rank as usize, &hello, stream);
        }
        let id = self.next_session;
        self.next_session += 1;
        self.sessions.insert(id, Served::new(stream));
        self.service.opened(id, &hello, &mut self.outbox);
    }

    fn serve(&mut self) {
        let mut ended = Vec::new();
        for (&id, session) in &mut self.sessions {
            let (messages, state) = session.receive();
            for message in messages {
                self.service.message(id, &message, &mut self.outbox);
            }
            session.flush();
            if state.is_err() {
                ended.push(id);
            }
        }
        self.end(ended);
    }

    fn end(&mut self, ended: Vec<SessionId>) {
        for id in ended {
            if self.sessions.remove(&id).is_some() {
                self.service.closed(id, &mut self.outbox);
            }
        }
    }

    /// Sends what the service queued, until it queues no more.
    fn deliver(&mut self) {
        while !self.outbox.messages.is_empty() {
            let mut ended = Vec::new();
            for (id, message) in std::mem::take(&mut self.outbox.messages) {
                let Some(session) = self.sessions.get_mut(&id) else { continue };
                match session.queue(&message) {
                    Ok(()) => session.flush(),
                    Err(_) => ended.push(id),
                }
            }
            self.end(ended);
        }
    }

    fn last_words(&mut self) {
        let deadline = Deadline::after(Instant::now(), LAST_WORDS_TIME);
        while self.sessions.values().any(Served::is_writing) && !deadline.has_passed(Instant::now()) {
            self.sessions.values_mut().for_each(Served::flush);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Advances the connections this side makes.
    fn dial(&mut self) {
        let now = Instant::now();
        let new = std::mem::take(&mut self.outbox.dials);
        self.dials.extend(new.into_iter().map(|dial| Dialling {
            dial,
            tries: 0,
            state: DialState::Waiting(now),
        }));
        for mut dialling in std::mem::take(&mut self.dials) {
            match dialling.advance(&self.secret, now) {
                Ok(None) => self.dials.push(dialling),
                Ok(Some(stream)) => self.service.linked(dialling.dial.peer, &dialling.dial.hello, stream),
                // The other side's connection is kept; it arrives through `accept`.
                Err(Failure::Refused(Refusal::Status(Status::Crossed))) => {}
                Err(why) => self.service.unreachable(&dialling.dial, why.to_string()),
            }
        }
    }
}

impl Dialling {
    /// One step: `Some` when the link stands, an error when it never will.
    fn advance(&mut self, secret: &Secret, now: Instant) -> Result<Option<TcpStream>, Failure> {
        loop {
            let failure = match &mut self.state {
                DialState::Waiting(at) if *at > now => return Ok(None),
                DialState::Waiting(_) => match socket::connect(self.dial.addr) {
                    Ok(stream) => {
                        self.state = DialState::Connecting(stream, now + HANDSHAKE_TIME);
                        continue;
                    }
                    Err(error) => Failure::Io(error),
                },
                DialState::Connecting(stream, until) => match socket::connected(stream) {
                    Ok(true) => match self.shake(secret, now) {
                        Ok(()) => continue,
                        Err(error) => Failure::Io(error),
                    },
                    Ok(false) if *until > now => return Ok(None),
                    Ok(false) => Failure::Io(ErrorKind::TimedOut.into()),
                    Err(error) => Failure::Io(error),
                },
                DialState::Shaking(half) => match half.advance() {
                    Progress::Pending if half.until > now => return Ok(None),
                    Progress::Pending => Failure::Io(ErrorKind::TimedOut.into()),
                    Progress::Done => return half.stream.try_clone().map(Some).map_err(Failure::Io),
                    Progress::Failed(Failure::Refused(why)) => return Err(Failure::Refused(why)),
                    Progress::Failed(why) => why,
                    Progress::Proved(_) => unreachable!("dialers are not asked to admit anybody"),
                },
            };
            if self.dial.deadline.has_passed(now) {
                return Err(failure);
            }
            self.tries += 1;
            self.state = DialState::Waiting(now + pause(self.tries));
            return Ok(None);
        }
    }

    fn shake(&mut self, secret: &Secret, now: Instant) -> io::Result<()> {
        let nonce = random().map_err(io::Error::other)?;
        let (dialer, first) = Dialer::new(secret.clone(), self.dial.hello, nonce);
        let DialState::Connecting(stream, _) = &self.state else {
            unreachable!("only a connected dial shakes hands")
        };
        let stream = stream.try_clone()?;
        self.state = DialState::Shaking(HalfOpen::dialled(stream, dialer, first, now + HANDSHAKE_TIME));
        Ok(())
    }
}

/// The pause before try number `tries`: doubling from 5 ms to 250 ms, with a random part so that ranks that failed
/// together do not come again together.
fn pause(tries: u32) -> Duration {
    let full = (5u64 << tries.min(6)).min(250);
    let jitter = random::<1>().map_or(0, |[byte]| u64::from(byte));
    Duration::from_millis(full / 2 + full * jitter / 510)
}

/// Opens a session with the server at `addr` (`host:port`), trying until it answers or `deadline` passes. The name is
/// resolved anew for each try.
///
/// # Errors
/// [`Error::Rendezvous`] with what the last try met: nobody there, a stranger, another secret, or a refusal.
pub fn open_session(addr: &str, secret: &Secret, hello: &Hello, deadline: &Deadline) -> Result<Session> {
    let mut tries = 0;
    loop {
        let now = Instant::now();
        let met = match try_session(addr, secret, hello, now) {
            Ok(session) => return Ok(session),
            Err(met) => met,
        };
        let final_word = matches!(&met, Failure::Refused(Refusal::Status(_) | Refusal::Version(_)));
        if final_word || deadline.has_passed(Instant::now()) {
            return Err(Error::Rendezvous {
                rank: hello.rank as usize,
                world_size: hello.world_size as usize,
                what: format!("{addr}: {met}"),
                waited: deadline.elapsed(Instant::now()),
            });
        }
        tries += 1;
        std::thread::sleep(pause(tries).min(deadline.remaining(Instant::now())));
    }
}

fn try_session(addr: &str, secret: &Secret, hello: &Hello, now: Instant) -> Result<Session, Failure> {
    use std::net::ToSocketAddrs;
    let until = now + HANDSHAKE_TIME;
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for target in addr.to_socket_addrs().map_err(Failure::Io)? {
        let stream = match TcpStream::connect_timeout(&target, HANDSHAKE_TIME) {
            Ok(stream) => stream,
            Err(error) => {
                last = error;
                continue;
            }
        };
        socket::prepare(&stream).map_err(Failure::Io)?;
        let nonce = random().map_err(|e| Failure::Io(io::Error::other(e)))?;
        let (dialer, first) = Dialer::new(secret.clone(), *hello, nonce);
        let mut half = HalfOpen::dialled(stream, dialer, first, until);
        loop {
            match half.advance() {
                Progress::Done => {
                    half.stream.set_nonblocking(false).map_err(Failure::Io)?;
                    return Ok(Session::new(half.stream, target));
                }
                Progress::Failed(why) => return Err(why),
                Progress::Pending | Progress::Proved(_) => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failure::Io(ErrorKind::TimedOut.into()));
            }
            let interest = if half.is_writing() { PollFlags::OUT } else { PollFlags::IN };
            bell::sleep(&mut [PollFd::new(&half.stream, interest)], left);
        }
    }
    Err(Failure::Io(last))
}
