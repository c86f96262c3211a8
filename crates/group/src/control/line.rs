//! How notices and verdicts travel: over a TCP session, or within the process.

use super::Control;
use super::arbiter::{Arbiter, Mail};
use super::notice::Notice;
use super::pulse::{Due, Pulse};
use super::watch::Watch;
use phalanx_core::{Deadline, Error, Loss, Result};
use phalanx_transport::handshake::{Hello, Status};
use phalanx_transport::{
    Admission, Birthplace, Outbox, Service, Session, SessionId, SessionReceiver, SessionSender,
};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the control thread sleeps where there is no heartbeat to keep.
const IDLE_TIME: Duration = Duration::from_secs(3600);

/// The arbiter as a service of rank 0's reception.
#[derive(Debug)]
pub(crate) struct ArbiterService {
    arbiter: Arbiter,
    ranks: HashMap<SessionId, usize>,
}

impl ArbiterService {
    /// Ranks that say nothing for as long as `heartbeat` are lost.
    pub(crate) fn new(world_size: usize, heartbeat: Option<Duration>, now: Instant) -> Self {
        let pulse = heartbeat.map(|limit| Pulse::new(limit, now));
        Self { arbiter: Arbiter::new(world_size, pulse), ranks: HashMap::new() }
    }

    /// Takes a message that came at this moment.
    pub(crate) fn take(&mut self, session: SessionId, message: &[u8], now: Instant, outbox: &mut Outbox) {
        let Some(&rank) = self.ranks.get(&session) else { return };
        match postcard::from_bytes(message) {
            Ok(notice) => {
                let mail = self.arbiter.handle(rank, notice);
                self.arbiter.heard(rank, now);
                self.post(mail, outbox);
            }
            Err(error) => tracing::warn!(rank, %error, "a notice that cannot be read"),
        }
    }

    fn post(&self, mail: Mail, outbox: &mut Outbox) {
        if mail.is_empty() {
            return;
        }
        let sessions: HashMap<usize, SessionId> = self.ranks.iter().map(|(&id, &rank)| (rank, id)).collect();
        for (rank, verdict) in mail {
            if let Some(&session) = sessions.get(&rank) {
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
        self.take(session, message, Instant::now(), outbox);
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

    fn poll(&mut self, now: Instant, outbox: &mut Outbox) -> Option<Instant> {
        let mail = self.arbiter.poll(now);
        self.post(mail, outbox);
        self.arbiter.deadline()
    }
}

/// A line over TCP, with a thread that listens to it and keeps the heartbeat, whatever the threads of the program do.
#[derive(Debug)]
pub(crate) struct TcpLine {
    birthplace: Birthplace,
    session: Arc<Mutex<SessionSender>>,
    /// It is closed from here: that is no breaking.
    closing: Arc<AtomicBool>,
    listener: Option<std::thread::JoinHandle<()>>,
}

impl TcpLine {
    /// Over a session with the arbiter; what that says goes to `watch`. If it says nothing for as long as `heartbeat`, it is lost.
    ///
    /// # Errors
    /// The system starts no thread.
    pub(crate) fn new(session: Session, watch: Arc<Watch>, heartbeat: Option<Duration>) -> Result<Self> {
        let (session, incoming) = session.split();
        let session = Arc::new(Mutex::new(session));
        let closing = Arc::new(AtomicBool::new(false));
        let ear = Ear::new(watch, heartbeat, Instant::now());
        let listener = Listener { incoming, outgoing: session.clone(), ear, closing: closing.clone() };
        let listener = std::thread::Builder::new()
            .name("phalanx-control".into())
            .spawn(move || listener.run())
            .map_err(|e| Error::io("starting the control thread", e))?;
        Ok(Self { birthplace: Birthplace::here(), session, closing, listener: Some(listener) })
    }
}

impl TcpLine {
    /// Whether this is the process that connected, and none that was forked from it.
    pub(crate) fn is_here(&self) -> bool {
        self.birthplace.is_here()
    }
}

/// The thread that listens.
struct Listener {
    incoming: SessionReceiver,
    outgoing: Arc<Mutex<SessionSender>>,
    ear: Ear,
    closing: Arc<AtomicBool>,
}

impl Listener {
    /// Runs until the line breaks or is closed.
    fn run(mut self) {
        loop {
            let now = Instant::now();
            let limit = self.ear.deadline().map_or(IDLE_TIME, |at| at.saturating_duration_since(now));
            match self.incoming.recv(&Deadline::after(now, limit)) {
                Ok(Some(message)) => self.ear.hear(&message, Instant::now()),
                Ok(None) => {}
                Err(_) if self.closing.load(Ordering::Relaxed) => return,
                Err(error) => {
                    if self.ear.line_broke() {
                        tracing::warn!(%error, "the line to the arbiter broke");
                    }
                    return;
                }
            }
            for notice in self.ear.poll(Instant::now()) {
                let session = match notice {
                    Notice::Calls { .. } => Some(lock(&self.outgoing)),
                    // While another thread has the line, it says something itself.
                    _ => self.outgoing.try_lock().ok(),
                };
                // That a line is broken, its other direction shows.
                session.into_iter().for_each(|mut session| drop(session.send(&encoded(&notice))));
            }
        }
    }
}

/// What the arbiter says, and what keeps the line to it alive. A state machine without a socket or a clock.
#[derive(Debug)]
pub(crate) struct Ear {
    watch: Arc<Watch>,
    pulse: Option<Pulse>,
    answers: Vec<Notice>,
}

impl Ear {
    /// The rank at the other end.
    const ARBITER: usize = 0;

    /// Of a line that stands since `now`. If nothing comes for as long as `heartbeat`, the arbiter is lost.
    pub(crate) fn new(watch: Arc<Watch>, heartbeat: Option<Duration>, now: Instant) -> Self {
        let mut pulse = heartbeat.map(|limit| Pulse::new(limit, now));
        pulse.iter_mut().for_each(|pulse| pulse.heard(Self::ARBITER, now));
        Self { watch, pulse, answers: Vec::new() }
    }

    pub(crate) fn hear(&mut self, message: &[u8], now: Instant) {
        self.pulse.iter_mut().for_each(|pulse| pulse.heard(Self::ARBITER, now));
        match postcard::from_bytes(message) {
            Ok(verdict) => {
                self.answers.extend(self.watch.answer(&verdict));
                self.watch.hear(verdict, now);
            }
            Err(error) => tracing::warn!(%error, "a verdict that cannot be read"),
        }
    }

    /// Whether that is a loss.
    pub(crate) fn line_broke(&self) -> bool {
        self.watch.lost_arbiter(Loss::Died)
    }

    /// When to [`poll`](Self::poll), if nothing comes before.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.pulse.as_ref().map(Pulse::deadline)
    }

    /// What is to be said now. Call it after everything that has arrived was heard.
    pub(crate) fn poll(&mut self, now: Instant) -> Vec<Notice> {
        let mut notices = std::mem::take(&mut self.answers);
        let Some(pulse) = &mut self.pulse else { return notices };
        let Due { beat, silent } = pulse.poll(now);
        if !silent.is_empty() {
            self.watch.lost_arbiter(Loss::Silent { after: pulse.limit() });
            notices.push(Notice::YouWereSilent);
        }
        if beat {
            notices.push(Notice::Beat);
        }
        notices
    }
}

fn encoded(notice: &Notice) -> Vec<u8> {
    postcard::to_stdvec(notice).expect("notices are plain data")
}

impl Control for TcpLine {
    fn send(&self, notice: Notice) -> Result<()> {
        lock(&self.session).send(&encoded(&notice))
    }
}

impl Drop for TcpLine {
    fn drop(&mut self) {
        if !self.is_here() {
            // The listener is not here, and to shut the connection down would do so for both processes.
            return std::mem::forget(self.listener.take());
        }
        self.closing.store(true, Ordering::Relaxed);
        lock(&self.session).close();
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

/// The arbiter of ranks that are threads of one process: who is stopped is stopped with all others, so no heart beats.
#[derive(Debug)]
pub(crate) struct Hall {
    arbiter: Mutex<Arbiter>,
    watches: Vec<Arc<Watch>>,
}

impl Hall {
    /// With a watch for each rank.
    pub(crate) fn new(watches: Vec<Arc<Watch>>) -> Arc<Self> {
        Arc::new(Self { arbiter: Mutex::new(Arbiter::new(watches.len(), None)), watches })
    }

    pub(crate) fn watch(&self, rank: usize) -> Arc<Watch> {
        self.watches[rank].clone()
    }

    /// The arbiter stays locked while its mail is delivered, so that all ranks hear verdicts in one order.
    fn with(&self, act: impl FnOnce(&mut Arbiter) -> Mail) {
        let mut arbiter = lock(&self.arbiter);
        let mut mail = VecDeque::from(act(&mut arbiter));
        mail.extend(arbiter.poll(Instant::now()));
        while let Some((rank, verdict)) = mail.pop_front() {
            if let Some(answer) = self.watches[rank].answer(&verdict) {
                mail.extend(arbiter.handle(rank, answer));
            }
            self.watches[rank].hear(verdict, Instant::now());
        }
    }
}

/// One rank's line within the process. Dropped while its thread panics, it reports that.
#[derive(Debug)]
pub(crate) struct HallLine {
    pub(crate) birthplace: Birthplace,
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
        if !self.birthplace.is_here() {
            return;
        }
        let how = if std::thread::panicking() { Loss::Panicked } else { Loss::Died };
        self.hall.with(|arbiter| arbiter.disconnected(self.rank, how));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
