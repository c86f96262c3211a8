//! How notices and verdicts travel: over a TCP session, or within the process.

use super::Control;
use super::arbiter::{Arbiter, Mail, Notice};
use super::watch::Watch;
use phalanx_core::{Deadline, Error, Loss, Result};
use phalanx_transport::handshake::{Hello, Purpose, Status};
use phalanx_transport::{Admission, Outbox, Secret, Service, Session, SessionId, open_session};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The arbiter as a service of rank 0's reception.
#[derive(Debug)]
pub(crate) struct ArbiterService {
    arbiter: Arbiter,
    ranks: HashMap<SessionId, usize>,
}

impl ArbiterService {
    pub(crate) fn new(world_size: usize) -> Self {
        Self { arbiter: Arbiter::new(world_size), ranks: HashMap::new() }
    }

    fn post(&self, mail: Mail, outbox: &mut Outbox) {
        for (rank, verdict) in mail {
            if let Some((&session, _)) = self.ranks.iter().find(|(_, r)| **r == rank) {
                outbox.send(session, postcard::to_stdvec(&verdict).expect("verdicts are plain data"));
            }
        }
    }
}

impl Service for ArbiterService {
    fn admit(&mut self, hello: &Hello) -> Admission {
        let rank = hello.rank as usize;
        if self.arbiter.admits(rank) && !self.ranks.values().any(|&r| r == rank) {
            Admission::Serve
        } else {
            Admission::Refuse(Status::Taken)
        }
    }

    fn opened(&mut self, session: SessionId, hello: &Hello, _outbox: &mut Outbox) {
        self.ranks.insert(session, hello.rank as usize);
    }

    fn message(&mut self, session: SessionId, message: &[u8], outbox: &mut Outbox) {
        let Some(&rank) = self.ranks.get(&session) else { return };
        match postcard::from_bytes(message) {
            Ok(notice) => {
                let mail = self.arbiter.handle(rank, notice);
                self.post(mail, outbox);
            }
            Err(error) => tracing::warn!(rank, %error, "a notice that cannot be read"),
        }
    }

    fn closed(&mut self, session: SessionId, outbox: &mut Outbox) {
        if let Some(rank) = self.ranks.remove(&session)
            // A process that never joined may try again.
            && !self.arbiter.admits(rank)
        {
            let mail = self.arbiter.disconnected(rank, Loss::Died);
            self.post(mail, outbox);
        }
    }
}

/// A line over TCP, with a thread that listens to it.
#[derive(Debug)]
pub(crate) struct TcpLine {
    session: Mutex<Session>,
    /// It is closed from here: that is no breaking.
    closing: Arc<AtomicBool>,
    listener: Option<std::thread::JoinHandle<()>>,
}

impl TcpLine {
    /// Connects `rank` to the arbiter at `addr`; what it says goes to `watch`.
    pub(crate) fn connect(
        addr: &str,
        secret: &Secret,
        rank: usize,
        world_size: usize,
        watch: Arc<Watch>,
        deadline: &Deadline,
    ) -> Result<Self> {
        let group = phalanx_core::WORLD;
        let hello =
            Hello { purpose: Purpose::Control, rank: rank as u32, world_size: world_size as u32, group };
        let session = open_session(addr, secret, &hello, deadline)?;
        let mut incoming = session.try_clone()?;
        let closing = Arc::new(AtomicBool::new(false));
        let closed = closing.clone();
        let listener = std::thread::Builder::new()
            .name("phalanx-control".into())
            .spawn(move || listen(&mut incoming, &watch, &closed))
            .map_err(|e| Error::io("starting the control thread", e))?;
        Ok(Self { session: Mutex::new(session), closing, listener: Some(listener) })
    }
}

/// Runs until the line breaks or is closed.
fn listen(session: &mut Session, watch: &Arc<Watch>, closing: &AtomicBool) {
    loop {
        match session.recv(&Deadline::after(Instant::now(), Duration::from_secs(3600))) {
            Ok(Some(message)) => match postcard::from_bytes(&message) {
                Ok(verdict) => watch.hear(verdict),
                Err(error) => tracing::warn!(%error, "a verdict that cannot be read"),
            },
            Ok(None) => {}
            Err(_) if closing.load(Ordering::Relaxed) => return,
            Err(_) => return watch.line_broke(),
        }
    }
}

impl Control for TcpLine {
    fn send(&self, notice: Notice) -> Result<()> {
        let message = postcard::to_stdvec(&notice).expect("notices are plain data");
        lock(&self.session).send(&message)
    }
}

impl Drop for TcpLine {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        lock(&self.session).close();
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

/// The arbiter of ranks that are threads of one process.
#[derive(Debug)]
pub(crate) struct Hall {
    arbiter: Mutex<Arbiter>,
    watches: Vec<Arc<Watch>>,
}

impl Hall {
    /// With a watch for each rank.
    pub(crate) fn new(watches: Vec<Arc<Watch>>) -> Arc<Self> {
        Arc::new(Self { arbiter: Mutex::new(Arbiter::new(watches.len())), watches })
    }

    pub(crate) fn watch(&self, rank: usize) -> Arc<Watch> {
        self.watches[rank].clone()
    }

    /// The arbiter stays locked while its mail is delivered, so that all ranks hear verdicts in one order.
    fn with(&self, act: impl FnOnce(&mut Arbiter) -> Mail) {
        let mut arbiter = lock(&self.arbiter);
        for (rank, verdict) in act(&mut arbiter) {
            self.watches[rank].hear(verdict);
        }
    }
}

/// One rank's line within the process. Dropped while its thread panics, it reports that.
#[derive(Debug)]
pub(crate) struct HallLine {
    pub(crate) hall: Arc<Hall>,
    pub(crate) rank: usize,
}

impl Control for HallLine {
    fn send(&self, notice: Notice) -> Result<()> {
        self.hall.with(|arbiter| arbiter.handle(self.rank, notice));
        Ok(())
    }
}

impl Drop for HallLine {
    fn drop(&mut self) {
        let how = if std::thread::panicking() { Loss::Panicked } else { Loss::Died };
        self.hall.with(|arbiter| arbiter.disconnected(self.rank, how));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
