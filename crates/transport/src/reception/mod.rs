//! The reception of a process: one thread that lets in who knows the job's secret, and nobody else.
//!
//! It accepts and dials, runs all handshakes side by side, serves sessions of small messages, and hands finished
//! data links to whoever wants them. It never blocks on a stranger: handshakes have a time limit and a number limit
//! (the oldest goes first), so a thousand stray connections cost some CPU time and nothing else.

mod client;
mod dial;
mod half_open;
mod service;
mod session;

pub use client::open_session;
pub use service::{Admission, Dial, Outbox, Service, SessionId};
pub use session::{MESSAGE_LEN_MAX, Session};

use crate::handshake::{Acceptor, Hello, Refusal, Status};
use crate::secret::random;
use crate::{Bell, Secret, bell, socket};
use dial::Dialling;
use half_open::{Failure, HalfOpen, Progress};
use phalanx_core::{Deadline, Error, Result};
use rustix::event::{PollFd, PollFlags};
use session::Served;
use std::collections::BTreeMap;
use std::io::ErrorKind;
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
        let mut fds = vec![self.shared.bell.poll_fd()];
        if self.accept_after <= now {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        } else {
            until = until.min(self.accept_after);
        }
        for (caller, _) in &self.callers {
            fds.push(caller.poll_fd());
            until = until.min(caller.until);
        }
        for session in self.sessions.values() {
            let both = PollFlags::IN | if session.is_writing() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::new(&session.stream, both));
        }
        for dial in &self.dials {
            let (waits_for, at) = dial.waits_for();
            fds.extend(waits_for);
            until = until.min(at);
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
        self.dials.extend(new.into_iter().map(|dial| Dialling::new(dial, now)));
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
