//! How notices and verdicts travel: over a TCP session, or within the process.

use super::Control;
use super::arbiter::{Arbiter, Mail};
use super::doubt::{Caller, Knocker};
use super::notice::Notice;
use super::outage::{Silence, judge};
use super::pulse::{Due, Pulse};
use super::watch::Watch;
use crate::launcher::Launcher;
use crate::standstill::Program;
use phalanx_core::{Deadline, Error, Loss, Result};
use phalanx_transport::handshake::{Hello, Purpose, Status};
use phalanx_transport::{
    Admission, Birthplace, Outbox, Secret, Service, Session, SessionId, SessionReceiver, SessionSender,
};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the control thread sleeps where there is no heartbeat to keep.
const IDLE_TIME: Duration = Duration::from_secs(3600);

/// How long a line that ends waits until the system has taken what was said last.
const LAST_WORDS_TIME: Duration = Duration::from_secs(1);

/// The arbiter as a service of rank 0's reception.
#[derive(Debug)]
pub(crate) struct ArbiterService {
    arbiter: Arbiter,
    ranks: HashMap<SessionId, usize>,
    /// Asks hosts of which nothing is heard; `None` where there is no network.
    knocker: Option<Knocker>,
    /// Who knows how processes end.
    launcher: Option<Launcher>,
}

/// How long an end without a farewell waits for the launcher's word on it.
const EXIT_TIME: Duration = Duration::from_millis(250);
/// How often it is looked for.
const EXIT_INTERVAL: Duration = Duration::from_millis(5);

impl ArbiterService {
    /// Ranks that say nothing for as long as `heartbeat` are lost.
    pub(crate) fn new(
        world_size: usize,
        heartbeat: Option<Duration>,
        launcher: Option<Launcher>,
        now: Instant,
    ) -> Self {
        let pulse = heartbeat.map(|limit| Pulse::new(limit, now));
        Self { arbiter: Arbiter::new(world_size, pulse), ranks: HashMap::new(), knocker: None, launcher }
    }

    /// Asks the hosts of ranks that are silent whether they are cut off.
    pub(crate) fn asking(mut self, heartbeat: Option<Duration>) -> Self {
        self.knocker = heartbeat.map(Knocker::new);
        self
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
        if hello.purpose == Purpose::Pulse {
            let has_line = self.ranks.values().any(|&r| r == rank);
            return if has_line { Admission::Serve } else { Admission::Refuse(Status::Unwanted) };
        }
        if self.arbiter.admits(rank) && !self.ranks.values().any(|&r| r == rank) {
            Admission::Serve
        } else {
            Admission::Refuse(Status::Taken)
        }
    }

    fn opened(&mut self, session: SessionId, hello: &Hello, _outbox: &mut Outbox) {
        if hello.purpose == Purpose::Pulse {
            // That it has come this far is all it wants to say, and to know.
            return self.arbiter.heard(hello.rank as usize, Instant::now());
        }
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
            let mail = match &self.launcher {
                Some(_) => self.arbiter.closed(rank, Instant::now() + EXIT_TIME),
                None => self.arbiter.disconnected(rank, Loss::Died),
            };
            self.post(mail, outbox);
        }
    }

    fn poll(&mut self, now: Instant, outbox: &mut Outbox) -> Option<Instant> {
        if let Some(knocker) = &self.knocker {
            let addrs = self.arbiter.in_doubt(now);
            if !addrs.is_empty() {
                let answering = addrs.iter().map(SocketAddr::ip).filter(|&host| knocker.answers(host, now));
                self.arbiter.answered(answering.collect());
                knocker.ask(addrs);
            }
        }
        let launcher = self.launcher.as_ref();
        let mail = self.arbiter.settle(now, |rank| launcher?.exit_of(rank));
        self.post(mail, outbox);
        let mail = self.arbiter.poll(now);
        self.post(mail, outbox);
        let look = self.arbiter.is_settling().then(|| now + EXIT_INTERVAL);
        self.arbiter.deadline().into_iter().chain(look).min()
    }
}

/// A line over TCP, with a thread that listens to it and keeps the heartbeat, whatever the threads of the program do.
#[derive(Debug)]
pub(crate) struct TcpLine {
    birthplace: Birthplace,
    session: Arc<SessionSender>,
    /// It is closed from here: that is no breaking.
    closing: Arc<AtomicBool>,
    listener: Option<std::thread::JoinHandle<()>>,
}

impl TcpLine {
    /// Over a session with the arbiter; what that says goes to `watch`. If it says nothing for as long as `heartbeat`, it is lost. `doubt` asks
    /// for signs of life in other ways before that.
    ///
    /// # Errors
    /// The system starts no thread.
    pub(crate) fn new(
        session: Session,
        watch: Arc<Watch>,
        heartbeat: Option<Duration>,
        doubt: Option<Doubt>,
    ) -> Result<Self> {
        let (session, incoming) = session.split();
        let session = Arc::new(session);
        let closing = Arc::new(AtomicBool::new(false));
        let _ = watch.program.set(Program::Process);
        let ear = Ear::new(watch, heartbeat, Instant::now());
        let listener = Listener { incoming, outgoing: session.clone(), ear, doubt, closing: closing.clone() };
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
    outgoing: Arc<SessionSender>,
    ear: Ear,
    /// Where there is a heartbeat.
    doubt: Option<Doubt>,
    closing: Arc<AtomicBool>,
}

/// What this rank does while it hears nothing of the arbiter.
#[derive(Debug)]
pub(crate) struct Doubt {
    caller: Caller,
    knocker: Knocker,
    watch: Arc<Watch>,
}

impl Doubt {
    /// Of a rank that has said `hello` to the arbiter at `addr`.
    pub(crate) fn new(
        addr: String,
        secret: Secret,
        hello: Hello,
        watch: Arc<Watch>,
        limit: Duration,
    ) -> Self {
        let hello = Hello { purpose: Purpose::Pulse, ..hello };
        Self { caller: Caller::new(addr, secret, hello, limit), knocker: Knocker::new(limit), watch }
    }

    fn own(&self, addrs: &[SocketAddr]) -> Option<IpAddr> {
        Some(addrs.get(self.watch.recorder.me.rank)?.ip())
    }

    /// Asks for a sign of life in other ways; says when there was one.
    fn look(&self, is_in_doubt: bool) -> Option<Instant> {
        self.caller.want(is_in_doubt);
        if is_in_doubt {
            let addrs = self.watch.addrs();
            let own = self.own(&addrs);
            self.knocker.ask(addrs.into_iter().filter(|addr| Some(addr.ip()) != own));
        }
        self.caller.answered()
    }

    /// Whose trouble the arbiter's silence is.
    fn meaning(&self, now: Instant) -> Silence {
        let addrs = self.watch.addrs();
        let (Some(own), Some(arbiter)) = (self.own(&addrs), addrs.first()) else { return Silence::Peer };
        let answers: Vec<_> =
            addrs.iter().map(|addr| (addr.ip(), self.knocker.answers(addr.ip(), now))).collect();
        judge(own, arbiter.ip(), &answers)
    }
}

impl Listener {
    /// Waits for the launcher's word on the process at the other end, but not for long.
    fn how_it_broke(&self) -> Loss {
        let until = Instant::now() + EXIT_TIME;
        loop {
            match self.ear.exit() {
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
            let limit = self.ear.deadline().map_or(IDLE_TIME, |at| at.saturating_duration_since(now));
            match self.incoming.recv(&Deadline::after(now, limit)) {
                Ok(Some(message)) => self.ear.hear(&message, Instant::now()),
                Ok(None) => {}
                Err(_) if self.closing.load(Ordering::Relaxed) => return,
                Err(error) => {
                    let how = self.how_it_broke();
                    if self.ear.line_broke(how) {
                        tracing::warn!(%error, "the line to the arbiter broke");
                    }
                    return;
                }
            }
            let now = Instant::now();
            if let Some(doubt) = &self.doubt {
                let at = doubt.look(self.ear.is_in_doubt(now));
                at.into_iter().for_each(|at| self.ear.heard(at));
            }
            let notices =
                self.ear.poll(now, || self.doubt.as_ref().map_or(Silence::Peer, |doubt| doubt.meaning(now)));
            for notice in notices {
                // That a line is broken, its other direction shows.
                let _ = self.outgoing.send(&encoded(&notice));
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

    /// Whether nothing has come for long.
    pub(crate) fn is_in_doubt(&self, now: Instant) -> bool {
        self.pulse.as_ref().is_some_and(|pulse| pulse.in_doubt(now).next().is_some())
    }

    /// There was a sign of life of the arbiter, though not on this line.
    pub(crate) fn heard(&mut self, at: Instant) {
        self.pulse.iter_mut().for_each(|pulse| pulse.heard(Self::ARBITER, at));
    }

    /// Whether that is a loss.
    pub(crate) fn line_broke(&self, how: Loss) -> bool {
        self.watch.lost_arbiter(how)
    }

    /// How the arbiter's process ended, if the launcher has said so; or whether there is a launcher that may.
    fn exit(&self) -> Result<Loss, bool> {
        let launcher = self.watch.recorder.launcher.as_ref();
        launcher.and_then(|launcher| launcher.exit_of(Self::ARBITER)).ok_or(launcher.is_some())
    }

    /// When to [`poll`](Self::poll), if nothing comes before.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.pulse.as_ref().map(Pulse::deadline)
    }

    /// What is to be said now. Call it after everything that has arrived was heard. `meaning` says whose trouble it is if the arbiter is
    /// silent.
    pub(crate) fn poll(&mut self, now: Instant, meaning: impl FnOnce() -> Silence) -> Vec<Notice> {
        let mut notices = std::mem::take(&mut self.answers);
        let Some(pulse) = &mut self.pulse else { return notices };
        let Due { beat, silent } = pulse.poll(now);
        if !silent.is_empty() {
            let after = pulse.limit();
            let me = self.watch.recorder.me.rank;
            let failed = |cause| {
                let members = (0..self.watch.recorder.world_size).collect();
                Notice::Failed { group: phalanx_core::WORLD, members, cause }
            };
            match meaning() {
                Silence::Peer => {
                    self.watch.lost_arbiter(Loss::Silent { after });
                    notices.push(Notice::YouWereSilent);
                }
                // What is said now arrives if the cut heals, where nobody should be blamed for it but this host.
                Silence::Itself => notices.push(failed(self.watch.lost_itself(Loss::Silent { after }))),
                Silence::Between => {
                    let how = Loss::Apart { from: me, after };
                    self.watch.lost_arbiter(how);
                    let peer = self.watch.arbiter();
                    notices.push(failed(phalanx_core::Cause::Lost { peer, how }));
                }
            }
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
        self.session.send(&encoded(&notice))
    }
}

impl Drop for TcpLine {
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
