//! The engine of one group: runs operations over the wire, on whichever thread waits for them.
//!
//! A blocking call drives its own operation to the end on the caller's thread. Asynchronous ones are driven by one
//! progress thread a group, started at first use. All share the [`Core`] behind one lock, which nobody holds while
//! sleeping; a thread that finds nothing to do lets the others in.

pub(crate) mod collective;
pub(crate) mod lines;
pub(crate) mod message;
pub(crate) mod patience;
pub(crate) mod plan;
pub(crate) mod progress;

use crate::control::arbiter::Notice;
use crate::control::watch::Alarm;
use crate::realm::Realm;
use collective::SCRATCH_LEN;
use lines::Lines;
use patience::Patience;
use phalanx_core::{Cause, Context, Deadline, Error, Loss, Peer, Result, Signature};
use phalanx_transport::{Direction, LinkFault, Wire, WireFault};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a collective waits before it tells the arbiter, which then sees who waits for something else.
const STALL_TIME: Duration = Duration::from_millis(500);
/// How long a rank that noticed trouble waits for the arbiter's verdict before it insists, and then before it believes its
/// own eyes.
const VERDICT_TIME: Duration = Duration::from_secs(1);
/// How long after an orderly farewell a peer's last bytes may still be on their way.
const FAREWELL_TIME: Duration = Duration::from_secs(1);
/// Calls remembered, the current one included, for naming both sides of a late mismatch.
const HISTORY_LEN: usize = 64;

/// What one poll of an operation did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Finished,
    Moved,
    Idle,
}

/// What goes wrong in one poll. Peers are ranks of the group.
#[derive(Debug)]
pub(crate) enum Fault {
    Wire { peer: usize, fault: WireFault },
    Mismatch { peer: usize, seq: u64, ours: Box<Signature>, theirs: Option<Box<Signature>> },
    Nonsense { peer: usize, what: String },
}

impl From<(usize, WireFault)> for Fault {
    fn from((peer, fault): (usize, WireFault)) -> Self {
        Self::Wire { peer, fault }
    }
}

/// Something that can be driven to its end.
pub(crate) trait Operation {
    /// Does all that can be done now.
    fn poll(&mut self, core: &mut Core) -> Result<Progress, Fault>;
    /// Which links it waits for.
    fn wants(&self, core: &Core, wants: &mut Vec<(usize, Direction)>);
    fn signature(&self) -> &Signature;
    /// Its place among the group's collectives; 0 for messages.
    fn seq(&self) -> u64;
    /// Payload bytes received, and all there are to receive.
    fn bytes(&self) -> (u64, u64);
    /// Whether its time has begun to run.
    fn is_due(&self, core: &Core) -> bool;
}

/// What all operations of a group share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) wire: Wire,
    pub(crate) world_size: usize,
    /// The collective whose turn it is: they run one after the other, in the order of the calls.
    pub(crate) turn: u64,
    pub(crate) lines: Lines,
    /// Aligned memory for received contributions.
    pub(crate) scratch: Vec<u64>,
    history: VecDeque<(u64, Signature)>,
}

impl Core {
    fn remember(&mut self, seq: u64, signature: &Signature) {
        if self.history.len() == HISTORY_LEN {
            self.history.pop_front();
        }
        self.history.push_back((seq, signature.clone()));
    }

    fn next_turn(&mut self) {
        self.turn += 1;
        self.wire.wake_sleepers();
    }
}

/// One operation's time.
#[derive(Debug)]
pub(crate) struct Attempt {
    called: Instant,
    limit: Duration,
    deadline: Option<Deadline>,
    /// It has waited for a while, and the arbiter knows if it is a collective.
    stalled: bool,
}

impl Attempt {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { called: Instant::now(), limit, deadline: None, stalled: false }
    }
}

/// What [`Engine::attempt`] found.
#[derive(Debug)]
pub(crate) enum Outcome {
    Finished,
    Moved,
    Idle,
    /// The deadline has passed; nothing else is wrong.
    Late,
    Failed(Error),
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Engine {
    core: Mutex<Core>,
    /// Threads that want the core.
    knocking: AtomicUsize,
    pub(crate) alarm: Arc<Alarm>,
    /// Whether the first cause was returned to the user; later calls say `Poisoned`.
    reported: AtomicBool,
    pub(crate) realm: Arc<dyn Realm>,
    /// This rank within the group.
    pub(crate) rank: usize,
    pub(crate) queue: progress::Queue,
    crowded: bool,
}

impl Engine {
    pub(crate) fn new(realm: Arc<dyn Realm>, wire: Wire, alarm: Arc<Alarm>, rank: usize) -> Self {
        let world_size = alarm.members().len();
        let core = Core {
            wire,
            world_size,
            turn: 1,
            lines: Lines::default(),
            scratch: vec![0; SCRATCH_LEN / 8],
            history: VecDeque::new(),
        };
        Self {
            core: Mutex::new(core),
            knocking: AtomicUsize::new(0),
            alarm,
            reported: AtomicBool::new(false),
            crowded: realm.ranks_share_cores(),
            realm,
            rank,
            queue: progress::Queue::default(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        if let Ok(core) = self.core.try_lock() {
            return core;
        }
        self.knocking.fetch_add(1, Ordering::Relaxed);
        let core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        self.knocking.fetch_sub(1, Ordering::Relaxed);
        core
    }

    /// A member of the group, as errors name it.
    pub(crate) fn peer(&self, rank: usize) -> Peer {
        self.realm.peer(self.alarm.members()[rank])
    }

    /// Refuses if the group has failed.
    pub(crate) fn check(&self, signature: &Signature) -> Result<()> {
        let Some(cause) = self.alarm.cause() else { return Ok(()) };
        if self.reported.swap(true, Ordering::Relaxed) {
            return Err(Error::Poisoned { op: signature.op, cause: Box::new(cause.clone()) });
        }
        Err(Error::from_cause(cause.clone(), self.context(signature, 0, (0, 0), Duration::ZERO)))
    }

    /// Drives one operation to its end on this thread. `Ok(false)`: its time is over, and nothing else is wrong.
    pub(crate) fn drive(&self, operation: &mut dyn Operation, limit: Duration) -> Result<bool> {
        let mut attempt = Attempt::new(limit);
        let mut patience = Patience::new(self.crowded);
        let mut core = self.lock();
        loop {
            match self.attempt(&mut core, operation, &mut attempt) {
                Outcome::Finished => return Ok(true),
                Outcome::Late => return Ok(false),
                Outcome::Failed(error) => return Err(error),
                Outcome::Moved => patience.reset(),
                Outcome::Idle => {}
            }
            let mut wants = Vec::new();
            if patience.is_at_end() {
                operation.wants(&core, &mut wants);
            }
            let limit = self.time_to_next(&attempt);
            core = self.idle(core, &mut patience, &wants, limit);
        }
    }

    /// Polls an operation once, and looks at its clock if nothing moved.
    pub(crate) fn attempt(
        &self,
        core: &mut Core,
        operation: &mut dyn Operation,
        attempt: &mut Attempt,
    ) -> Outcome {
        if let Some(cause) = self.alarm.cause() {
            return Outcome::Failed(self.failed(cause.clone(), operation, attempt));
        }
        match operation.poll(core) {
            Ok(Progress::Finished) => return Outcome::Finished,
            Ok(Progress::Moved) => return Outcome::Moved,
            Ok(Progress::Idle) => {}
            Err(fault) => {
                let cause = self.cause_of(core, fault);
                return Outcome::Failed(self.fail(cause, operation, attempt));
            }
        }
        if !operation.is_due(core) {
            return Outcome::Idle;
        }
        let now = Instant::now();
        let deadline = *attempt.deadline.get_or_insert_with(|| Deadline::after(now, attempt.limit));
        if deadline.has_passed(now) {
            return Outcome::Late;
        }
        if !attempt.stalled && deadline.elapsed(now) >= stall_time(&deadline) {
            attempt.stalled = true;
            if operation.seq() > 0 {
                let (group, calls) = (self.alarm.group(), core.history.iter().cloned().collect());
                // If the line is broken, the watch knows.
                let _ = self.realm.control().send(Notice::Stalled { group, calls });
            }
        }
        if attempt.stalled
            && let Some(peer) = self.gone_peer(core, operation, now)
        {
            return Outcome::Failed(self.fail(Cause::Lost { peer, how: Loss::Left }, operation, attempt));
        }
        Outcome::Idle
    }

    /// A peer this operation waits for that left some time ago.
    fn gone_peer(&self, core: &Core, operation: &dyn Operation, now: Instant) -> Option<Peer> {
        let mut wants = Vec::new();
        operation.wants(core, &mut wants);
        let is_gone = |&&(peer, _): &&(usize, Direction)| {
            let left = self.alarm.left_at(self.alarm.members()[peer]);
            left.is_some_and(|at| now.saturating_duration_since(at) > FAREWELL_TIME)
        };
        wants.iter().find(is_gone).map(|&(peer, _)| self.peer(peer))
    }

    /// When the clock of an idle operation must be looked at again.
    pub(crate) fn time_to_next(&self, attempt: &Attempt) -> Duration {
        let Some(deadline) = &attempt.deadline else { return STALL_TIME };
        let now = Instant::now();
        let left = deadline.remaining(now);
        if attempt.stalled {
            return left.min(FAREWELL_TIME);
        }
        left.min(stall_time(deadline).saturating_sub(deadline.elapsed(now)).max(Duration::from_millis(1)))
    }

    /// Nothing can be done: spins, lets others in, or sleeps until a link in `wants` is ready.
    pub(crate) fn idle<'e>(
        &'e self,
        mut core: MutexGuard<'e, Core>,
        patience: &mut Patience,
        wants: &[(usize, Direction)],
        limit: Duration,
    ) -> MutexGuard<'e, Core> {
        let knocked = self.knocking.load(Ordering::Relaxed) > 0;
        if knocked {
            drop(core);
            std::thread::yield_now();
            core = self.lock();
        }
        if !patience.is_at_end() {
            patience.pause();
            return core;
        }
        if knocked {
            // Whoever came in may have read for us: look again before sleeping.
            return core;
        }
        let Some(wait) = patience.wait() else {
            drop(core);
            std::thread::sleep(Duration::from_millis(1));
            return self.lock();
        };
        wait.clear();
        self.alarm.listen(wait.bell());
        core.wire.add_sleeper(wait.bell());
        let mut ready = self.alarm.cause().is_some();
        for &(peer, direction) in wants {
            ready |= core.wire.watch(peer, direction, wait);
        }
        drop(core);
        if !ready {
            wait.sleep(limit);
        }
        self.alarm.hush(wait.bell());
        let mut core = self.lock();
        core.wire.remove_sleeper(wait.bell());
        core
    }

    /// The operation was late and that is an error: the group has failed.
    pub(crate) fn timed_out(&self, operation: &dyn Operation, limit: Duration) -> Error {
        let mut wants = Vec::new();
        operation.wants(&self.lock(), &mut wants);
        let mut missing: Vec<Peer> = wants.iter().map(|&(peer, _)| self.peer(peer)).collect();
        missing.sort();
        missing.dedup();
        let (op, seq) = (operation.signature().op, operation.seq());
        let reporter = self.peer(self.rank);
        let attempt = Attempt { called: Instant::now() - limit, limit, deadline: None, stalled: true };
        self.fail(Cause::TimedOut { reporter, op, seq, waited: limit, missing }, operation, &attempt)
    }

    /// Fails the group: reports `cause`, and returns the error for the cause that came first.
    fn fail(&self, cause: Cause, operation: &dyn Operation, attempt: &Attempt) -> Error {
        if !self.report(&cause) {
            self.alarm.raise(self.own_view(cause.clone(), operation));
        }
        let first = self.alarm.cause().cloned().unwrap_or(cause);
        self.failed(first, operation, attempt)
    }

    /// Tells the arbiter and waits for its verdict, twice: it may have doubts. Whether a verdict came.
    pub(crate) fn report(&self, cause: &Cause) -> bool {
        (0..2).any(|_| {
            let (group, members) = (self.alarm.group(), self.alarm.members().to_vec());
            // Where the line is broken already, a verdict that came over it before may still have to be heard.
            let _ = self.realm.control().send(Notice::Failed { group, members, cause: cause.clone() });
            self.alarm.wait(&Deadline::after(Instant::now(), VERDICT_TIME)).is_some()
        })
    }

    /// What to believe without a verdict. The arbiter is on rank 0: if that has left, nobody decides who of the others was
    /// lost first, but all know of this one, and a collective could not do without it.
    fn own_view(&self, cause: Cause, operation: &dyn Operation) -> Cause {
        let has_left = |rank| self.alarm.members().contains(&rank) && self.alarm.left_at(rank).is_some();
        let left = |peer| Cause::Lost { peer, how: Loss::Left };
        match cause {
            Cause::Lost { .. } if operation.seq() > 0 && has_left(0) => left(self.realm.peer(0)),
            Cause::Lost { peer, .. } if has_left(peer.rank) => left(peer),
            other => other,
        }
    }

    /// The user's thread is unwinding: the others are told why, before the closing links look like a death. What is in
    /// flight here ends as well.
    pub(crate) fn panicked(&self) {
        if self.alarm.cause().is_none() {
            let (group, members) = (self.alarm.group(), self.alarm.members().to_vec());
            let cause = Cause::Lost { peer: self.peer(self.rank), how: Loss::Panicked };
            // Without the line, the closing links say as much as can be said.
            let _ = self.realm.control().send(Notice::Failed { group, members, cause: cause.clone() });
            self.alarm.raise(cause);
        }
    }

    fn failed(&self, cause: Cause, operation: &dyn Operation, attempt: &Attempt) -> Error {
        self.reported.store(true, Ordering::Relaxed);
        let elapsed = attempt.called.elapsed();
        Error::from_cause(
            cause,
            self.context(operation.signature(), operation.seq(), operation.bytes(), elapsed),
        )
    }

    pub(crate) fn context(
        &self,
        signature: &Signature,
        seq: u64,
        bytes: (u64, u64),
        elapsed: Duration,
    ) -> Context {
        Context {
            op: signature.op,
            seq,
            group: self.alarm.group(),
            rank: self.alarm.members()[self.rank],
            world_size: self.alarm.members().len(),
            bytes,
            elapsed,
        }
    }

    fn cause_of(&self, core: &Core, fault: Fault) -> Cause {
        let unknown = || "something it did not describe".to_owned();
        match fault {
            Fault::Wire { peer, fault: WireFault::Gone(fault, farewell) } => {
                let how = match fault {
                    _ if farewell => Loss::Left,
                    LinkFault::Closed => Loss::Died,
                    LinkFault::Unreachable(why) => {
                        tracing::warn!(peer = %self.peer(peer), %why, "no connection");
                        Loss::Unreachable
                    }
                };
                Cause::Lost { peer: self.peer(peer), how }
            }
            Fault::Wire { peer, fault: WireFault::Nonsense(what) } | Fault::Nonsense { peer, what } => {
                Cause::Protocol { peer: self.peer(peer), what }
            }
            Fault::Wire { peer, fault: WireFault::Stale(seq, theirs) } => {
                let ours =
                    core.history.iter().find(|(s, _)| *s == seq).map(|(_, signature)| signature.clone());
                match (ours, theirs) {
                    (Some(ours), Some(theirs)) => self.mismatch(seq, ours, peer, *theirs),
                    (_, theirs) => {
                        let called = theirs.map_or_else(unknown, |t| t.to_string());
                        let what = format!("a late frame of operation #{seq}, where it called {called}");
                        Cause::Protocol { peer: self.peer(peer), what }
                    }
                }
            }
            Fault::Mismatch { peer, seq, ours, theirs } => match theirs {
                Some(theirs) => self.mismatch(seq, *ours, peer, *theirs),
                None => Cause::Protocol {
                    peer: self.peer(peer),
                    what: format!("at operation #{seq} it called {}, here it was {ours}", unknown()),
                },
            },
        }
    }

    fn mismatch(&self, seq: u64, ours: Signature, peer: usize, theirs: Signature) -> Cause {
        let mut sides = [(self.peer(self.rank), ours), (self.peer(peer), theirs)];
        sides.sort_by_key(|(peer, _)| peer.rank);
        let [left, right] = sides;
        Cause::Mismatch { seq, left, right }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let core = self.core.get_mut().unwrap_or_else(PoisonError::into_inner);
        if self.alarm.cause().is_none() {
            for peer in (0..core.world_size).filter(|&p| p != self.rank) {
                core.wire.farewell(peer);
            }
        }
    }
}

fn stall_time(deadline: &Deadline) -> Duration {
    STALL_TIME.min(deadline.limit() / 2)
}
