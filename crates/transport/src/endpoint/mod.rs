//! The endpoint of a process: one thread that lets in who knows the job's secret, and nobody else.
//!
//! It accepts and dials, runs all handshakes side by side, serves sessions of small messages, and hands finished
//! data links to whoever wants them. It never blocks on a stranger: handshakes have a time limit and a number limit
//! (the oldest of the busiest address goes first), so a thousand stray connections cost some CPU time and nothing else.

mod accept_queue;
mod client;
mod connections;
mod dial;
mod handshake_io;
mod inbox;
mod limits;
mod message;
mod readiness;
mod sender;
mod service;
mod session;

pub use accept_queue::Strangers;
pub use client::{NoSession, open_session, open_session_if_listening, try_to_open_session};
pub use limits::MESSAGE_LEN_MAX;
pub use message::Message;
pub use sender::SessionSender;
pub use service::{Admission, Dial, Outbox, Service, SessionId};
#[cfg(any(feature = "__fuzz", feature = "__simulation"))]
pub(crate) use session::ServerSession;
pub use session::{Session, SessionReceiver};
#[cfg(feature = "__fuzz")]
pub(crate) use {
    handshake_io::{Handshaking, Progress},
    inbox::Inbox,
};

#[cfg(any(target_os = "linux", feature = "__simulation"))]
pub(crate) use {accept_queue::Listener, accept_queue::Origin, dial::Address};
#[cfg(feature = "__simulation")]
pub(crate) use {client::is_final_word, connections::Network, dial::pause, limits::HANDSHAKE_TIME};

#[cfg(target_os = "linux")]
use crate::local::FdPassing;
use crate::secret::random;
use crate::self_pipe::{self, SelfPipe};
use crate::{OwnerProcess, Secret, resources, socket};
pub(crate) use accept_queue::AcceptQueue;
pub(crate) use connections::Connections;
use connections::Tcp;
pub(crate) use dial::Dialling;
use phalanx_core::{Deadline, Error, Result};
use readiness::Readiness;
#[cfg(not(target_os = "linux"))]
use rustix::event::{PollFd, PollFlags};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the thread tries to deliver its last messages when it is stopped.
const LAST_WORDS_TIME: Duration = Duration::from_millis(500);

type Call<S> = Box<dyn FnOnce(&mut S, &mut Outbox) + Send>;

struct Shared<S> {
    calls: Mutex<(Vec<Call<S>>, Stop)>,
    waker: SelfPipe,
}

#[derive(PartialEq, Clone, Copy)]
enum Stop {
    Running,
    Stopping,
}

/// The running thread. Dropping it delivers what is queued (for at most half a second), closes everything and joins.
pub struct Endpoint<S: Service> {
    shared: Arc<Shared<S>>,
    owner_process: OwnerProcess,
    addr: SocketAddr,
    local_name: Option<String>,
    strangers: Arc<Mutex<Strangers>>,
    thread: Option<JoinHandle<()>>,
}

impl<S: Service> std::fmt::Debug for Endpoint<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("addr", &self.addr).finish_non_exhaustive()
    }
}

impl<S: Service> Endpoint<S> {
    /// Listens on exactly `bind` (port 0: any free one) and serves until dropped. A service that
    /// [takes memory](Service::takes_memory) is open to processes of this host as well, where the system has abstract sockets.
    /// The first one in a process raises its soft limit of open files to the hard one, or to 2²⁰ if that is more.
    ///
    /// # Errors
    /// [`Error::Io`] when the address is taken or not ours, or descriptors run out.
    pub fn start(bind: SocketAddr, secret: Secret, service: S) -> Result<Self> {
        Self::start_on_first_free(&[bind], secret, service)
    }

    /// As [`start`](Self::start), on the first of these addresses that nobody else listens on.
    ///
    /// # Errors
    /// [`Error::Io`] as there; where all are taken, it tells of the last.
    ///
    /// # Panics
    /// There is no address.
    pub fn start_on_first_free(binds: &[SocketAddr], secret: Secret, service: S) -> Result<Self> {
        resources::raise_descriptor_limit();
        let listener = listen_on_first_free(binds)?;
        let addr = listener.local_addr().map_err(|e| Error::io("asking where it listens", e))?;
        let waker = SelfPipe::new().map_err(|e| Error::io("making a wake-up pipe", e))?;
        let shared = Arc::new(Shared { calls: Mutex::new((Vec::new(), Stop::Running)), waker });
        let readiness = Readiness::new().map_err(|e| Error::io("making an epoll descriptor", e))?;
        let mut event_loop = EventLoop::new(readiness, listener, secret, service, shared.clone());
        let local_name = event_loop.open_fd_passing();
        let strangers = event_loop.connections.accept_queue.strangers.clone();
        let thread = std::thread::Builder::new()
            .name(format!("phalanx-endpoint-{}", addr.port()))
            .spawn(move || event_loop.run())
            .map_err(|e| Error::io("starting the endpoint thread", e))?;
        Ok(Self {
            shared,
            owner_process: OwnerProcess::here(),
            addr,
            local_name,
            strangers,
            thread: Some(thread),
        })
    }

    /// The address at which it listens; the port is the real one.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Under which name processes of this host can pass memory to it, if they can.
    pub fn local_name(&self) -> Option<&str> {
        self.local_name.as_deref()
    }

    /// The addresses that called so far and did not know the secret.
    pub fn strangers(&self) -> Strangers {
        *self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `call` on the endpoint's thread, soon and in order of calling.
    /// Does nothing in a process that was forked from the one where that runs.
    pub fn call(&self, call: impl FnOnce(&mut S, &mut Outbox) + Send + 'static) {
        if !self.owner_process.is_here() {
            return;
        }
        self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner).0.push(Box::new(call));
        self.shared.waker.wake();
    }
}

impl<S: Service> Drop for Endpoint<S> {
    fn drop(&mut self) {
        if !self.owner_process.is_here() {
            // The thread is not here, and what it has is not for this process to end.
            return std::mem::forget(self.thread.take());
        }
        self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner).1 = Stop::Stopping;
        self.shared.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A service may drop the last handle on its own endpoint: a thread cannot join itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

fn listen_on_first_free(binds: &[SocketAddr]) -> Result<TcpListener> {
    let (last, others) = binds.split_last().expect("an address to listen on");
    let listen = |bind: &SocketAddr| {
        let failed = |e| Error::io(format!("listening on {bind} (is the port in use?)"), e);
        socket::listen(*bind).map_err(failed)
    };
    let is_taken =
        |error: &Error| matches!(error, Error::Io { source, .. } if source.kind() == ErrorKind::AddrInUse);
    for bind in others {
        match listen(bind) {
            Err(error) if is_taken(&error) => {}
            other => return other,
        }
    }
    listen(last)
}

/// Everything the thread owns.
struct EventLoop<S: Service> {
    connections: Connections<Tcp, S>,
    #[cfg(target_os = "linux")]
    fd_passing: Option<FdPassing>,
    shared: Arc<Shared<S>>,
}

impl<S: Service> EventLoop<S> {
    fn new(
        readiness: Readiness,
        listener: TcpListener,
        secret: Secret,
        service: S,
        shared: Arc<Shared<S>>,
    ) -> Self {
        Self {
            #[cfg(target_os = "linux")]
            fd_passing: None,
            connections: Connections::new(Tcp(readiness), listener, secret, service),
            shared,
        }
    }

    /// Lets processes of this host pass memory, if the service takes any; returns the name at which they can.
    #[cfg(target_os = "linux")]
    fn open_fd_passing(&mut self) -> Option<String> {
        if !self.connections.service.takes_memory() {
            return None;
        }
        match FdPassing::open(&self.connections.secret) {
            Ok(passing) => Some(self.fd_passing.insert(passing).name().to_owned()),
            Err(error) => {
                tracing::warn!(%error, "no memory can be shared: the system refused an abstract unix socket");
                None
            }
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn open_fd_passing(&mut self) -> Option<String> {
        None
    }

    fn run(mut self) {
        loop {
            self.sleep();
            self.shared.waker.clear();
            let (calls, stop) = {
                let mut queue = self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner);
                (std::mem::take(&mut queue.0), queue.1)
            };
            for call in calls {
                call(&mut self.connections.service, &mut self.connections.outbox);
            }
            let now = Instant::now();
            #[cfg(target_os = "linux")]
            self.pass(now);
            self.connections.advance(&mut random, now);
            if stop == Stop::Stopping {
                return self.last_words();
            }
        }
    }

    /// Passes memory to processes of this host, and takes theirs. Without a socket for that, whoever gives hears so by the drop.
    #[cfg(target_os = "linux")]
    fn pass(&mut self, now: Instant) {
        let Connections { secret, service, outbox, .. } = &mut self.connections;
        let offers = std::mem::take(&mut outbox.fd_offers);
        if let Some(passing) = &mut self.fd_passing {
            passing.advance(secret, service, offers, now);
        }
    }

    /// Sleeps until something can be done, or is due.
    fn sleep(&self) {
        let now = Instant::now();
        let longest = now + Duration::from_secs(60);
        let mut until = self.connections.until(now).map_or(longest, |at| at.min(longest));
        let mut fds = vec![self.shared.waker.poll_fd()];
        self.connections.accept_queue.poll_fds(&mut fds, now);
        #[cfg(target_os = "linux")]
        if let Some(passing) = &self.fd_passing {
            until = passing.waits_for(&mut fds, now, until);
        }
        #[cfg(target_os = "linux")]
        fds.push(self.connections.network.0.poll_fd());
        #[cfg(not(target_os = "linux"))]
        for session in self.connections.sessions.values() {
            let both = PollFlags::IN | if session.is_writing() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::new(session.stream(), both));
        }
        fds.extend(self.connections.dials.iter().filter_map(|(_, dialling)| dialling.poll_fd()));
        self_pipe::sleep(&mut fds, until.saturating_duration_since(now));
    }

    fn last_words(mut self) {
        let deadline = Deadline::after(Instant::now(), LAST_WORDS_TIME);
        while self.connections.is_writing() && !deadline.has_passed(Instant::now()) {
            self.connections.flush();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
