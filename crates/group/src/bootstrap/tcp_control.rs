//! The control plane between processes: a session with the arbiter, and the thread that listens to it.

use super::arbiter_service::{EXIT_INTERVAL, EXIT_TIME};
use super::host_probe::{HostProber, Recaller};
use crate::control::Control;
use crate::control::client::ControlClient;
use crate::control::membership::Membership;
use crate::control::notice::Notice;
use crate::control::outage::{Silence, judge};
use phalanx_core::{Deadline, Error, Loss, Result};
use phalanx_transport::handshake::{Hello, Purpose};
use phalanx_transport::{OwnerProcess, Secret, Session, SessionReceiver, SessionSender};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the control thread sleeps where there is no heartbeat to keep.
const IDLE_TIME: Duration = Duration::from_secs(3600);

/// How long a line that ends waits until the system has taken what was said last.
const LAST_WORDS_TIME: Duration = Duration::from_secs(1);

/// A line over TCP, with a thread that listens to it and keeps the heartbeat, whatever the threads of the program do.
#[derive(Debug)]
pub(crate) struct TcpControl {
    owner_process: OwnerProcess,
    session: Arc<SessionSender>,
    /// Whether it is closed from here: that is no breaking.
    closing: Arc<AtomicBool>,
    listener: Option<std::thread::JoinHandle<()>>,
}

impl TcpControl {
    /// Over a session with the arbiter; what that says goes to `membership`. If it says nothing for as long as `heartbeat`, it is lost. `doubt` asks
    /// for signs of life in other ways before that.
    ///
    /// # Errors
    /// The system starts no thread.
    pub(crate) fn new(
        session: Session,
        membership: Arc<Membership>,
        heartbeat: Option<Duration>,
        doubt: Option<Doubt>,
    ) -> Result<Self> {
        let (session, incoming) = session.split();
        let session = Arc::new(session);
        let closing = Arc::new(AtomicBool::new(false));
        let client = ControlClient::new(membership, heartbeat, Instant::now());
        let listener =
            ControlThread { incoming, outgoing: session.clone(), client, doubt, closing: closing.clone() };
        let listener = std::thread::Builder::new()
            .name("phalanx-control".into())
            .spawn(move || listener.run())
            .map_err(|e| Error::io("starting the control thread", e))?;
        Ok(Self { owner_process: OwnerProcess::here(), session, closing, listener: Some(listener) })
    }
}

impl TcpControl {
    /// Whether this is the process that connected, and none that was forked from it.
    pub(crate) fn is_here(&self) -> bool {
        self.owner_process.is_here()
    }
}

/// The thread that listens.
struct ControlThread {
    incoming: SessionReceiver,
    outgoing: Arc<SessionSender>,
    client: ControlClient,
    /// The doubts about a silent arbiter, where there is a heartbeat.
    doubt: Option<Doubt>,
    closing: Arc<AtomicBool>,
}

/// The calls and probes of a rank that hears nothing of the arbiter.
#[derive(Debug)]
pub(crate) struct Doubt {
    caller: Recaller,
    prober: HostProber,
    membership: Arc<Membership>,
}

impl Doubt {
    /// Of a rank that has said `hello` to the arbiter at `addr`.
    pub(crate) fn new(
        addr: String,
        secret: Secret,
        hello: Hello,
        membership: Arc<Membership>,
        limit: Duration,
    ) -> Self {
        let hello = Hello { purpose: Purpose::Heartbeat, ..hello };
        Self { caller: Recaller::new(addr, secret, hello, limit), prober: HostProber::new(limit), membership }
    }

    fn own(&self, addrs: &[SocketAddr]) -> Option<IpAddr> {
        Some(addrs.get(self.membership.me().rank)?.ip())
    }

    /// Asks for a sign of life in other ways; says when there was one.
    fn look(&self, is_in_doubt: bool) -> Option<Instant> {
        self.caller.want(is_in_doubt);
        if is_in_doubt {
            let addrs = self.membership.addrs();
            let own = self.own(&addrs);
            self.prober.ask(addrs.into_iter().filter(|addr| Some(addr.ip()) != own));
        }
        self.caller.answered()
    }

    /// The end that is in trouble when the arbiter is silent.
    fn meaning(&self, now: Instant) -> Silence {
        let addrs = self.membership.addrs();
        let (Some(own), Some(arbiter)) = (self.own(&addrs), addrs.first()) else { return Silence::Peer };
        let answers: Vec<_> =
            addrs.iter().map(|addr| (addr.ip(), self.prober.answers(addr.ip(), now))).collect();
        judge(own, arbiter.ip(), &answers)
    }
}

impl ControlThread {
    /// Waits for the launcher's word on the process at the other end, but not for long.
    fn how_it_broke(&self) -> Loss {
        let until = Instant::now() + EXIT_TIME;
        loop {
            match self.client.exit() {
                Ok(how) => return how,
                Err(true) if Instant::now() < until && !self.closing.load(Ordering::Relaxed) => {
                    std::thread::sleep(EXIT_INTERVAL);
                }
                Err(_) => return Loss::Died,
            }
        }
    }

    /// Runs until the line breaks or is closed.
    fn run(mut self) {
        loop {
            let now = Instant::now();
            let limit = self.client.deadline().map_or(IDLE_TIME, |at| at.saturating_duration_since(now));
            match self.incoming.recv(&Deadline::after(now, limit)) {
                Ok(Some(message)) => self.client.hear(&message, Instant::now()),
                Ok(None) => {}
                Err(_) if self.closing.load(Ordering::Relaxed) => return,
                Err(error) => {
                    let how = self.how_it_broke();
                    if self.client.line_broke(how) {
                        tracing::warn!(%error, "the line to the arbiter broke");
                    }
                    return;
                }
            }
            let now = Instant::now();
            if let Some(doubt) = &self.doubt {
                let at = doubt.look(self.client.is_in_doubt(now));
                at.into_iter().for_each(|at| self.client.heard(at));
            }
            let notices = self
                .client
                .poll(now, || self.doubt.as_ref().map_or(Silence::Peer, |doubt| doubt.meaning(now)));
            for notice in notices {
                // That a line is broken, its other direction shows.
                let _ = self.outgoing.send(&encoded(&notice));
            }
        }
    }
}

fn encoded(notice: &Notice) -> Vec<u8> {
    postcard::to_stdvec(notice).expect("notices are plain data")
}

impl Control for TcpControl {
    fn send(&self, notice: Notice) -> Result<()> {
        self.session.send(&encoded(&notice))
    }
}

impl Drop for TcpControl {
    fn drop(&mut self) {
        if !self.is_here() {
            // The listener is not here, and to shut the connection down would do so for both processes.
            return std::mem::forget(self.listener.take());
        }
        self.closing.store(true, Ordering::Relaxed);
        self.session.flush(&Deadline::after(Instant::now(), LAST_WORDS_TIME));
        self.session.close();
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}
