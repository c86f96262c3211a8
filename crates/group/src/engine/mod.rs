//! The engine of one group: runs operations over the wire, on whichever thread waits for them.
//!
//! A blocking call drives its own operation to the end on the caller's thread. Asynchronous ones are driven by one
//! progress thread a group, started at first use. All share the [`Core`] behind one lock, which nobody holds while
//! sleeping; a thread that finds nothing to do lets the others in.

pub(crate) mod backoff;
pub(crate) mod collective;
mod core_placement;
pub(crate) mod eager;
pub(crate) mod message;
pub(crate) mod message_queues;
pub(crate) mod own_thread;
pub(crate) mod partial;
pub(crate) mod plan;
pub(crate) mod progress_thread;
mod queue;
pub(crate) mod scratch;
pub(crate) mod task;
#[cfg(test)]
mod tests;

use crate::control::group_health::{ErrorContext, FAREWELL_TIME, GroupHealth, stall_time};
use crate::control::reminder::Reminder;
use crate::control::runtime::Here;
use crate::engine::own_thread::OwnThread;
use backoff::{Backoff, HostPlace};
use eager::Eager;
use message_queues::MessageQueues;
use phalanx_core::{Cause, Deadline, Error, Loss, Result, Signature};
use phalanx_transport::sabotage::{Mechanism, breaks};
use phalanx_transport::{Direction, LinkFault, WakeSource, Waker, Wire, WireFault};
use queue::Queue;
use scratch::SCRATCH_LEN;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
    Wire {
        peer: usize,
        fault: WireFault,
    },
    /// `tag` is that of a message; then `seq` is 0.
    Mismatch {
        peer: usize,
        seq: u64,
        tag: Option<u64>,
        ours: Box<Signature>,
        theirs: Option<Box<Signature>>,
    },
    Nonsense {
        peer: usize,
        what: String,
    },
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
    /// Whether nobody has to wonder that it waits: what it waits for need not come.
    fn may_be_in_vain(&self) -> bool {
        false
    }
    /// Of a message: the other end, as a rank of the group, and the tag.
    fn message(&self) -> Option<(usize, u64)> {
        None
    }
    /// The error with which it ends when it is late, where that is no failure of the group.
    fn give_up(&self, _health: &GroupHealth, _waited: Duration) -> Option<Error> {
        None
    }
}

/// An operation that owns its buffer and knows whom to tell.
pub(crate) trait Job: Operation + Send {
    fn complete(self: Box<Self>, outcome: Result<()>);
    /// Whether somebody does nothing but wait for it.
    fn is_awaited(&self) -> bool;
    /// How long it may take, once its turn has come.
    fn limit(&self) -> Duration;
}

/// What all operations of a group share.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) wire: Wire,
    pub(crate) world_size: usize,
    /// The collective whose turn it is: they run one after the other, in the order of the calls.
    pub(crate) turn: u64,
    pub(crate) queues: MessageQueues,
    /// Messages that are sent though nobody waits for it.
    pub(crate) eager: Eager,
    /// Aligned memory for received contributions.
    pub(crate) scratch: Vec<u64>,
    pub(crate) health: Arc<GroupHealth>,
}

impl Core {
    fn next_turn(&mut self) {
        self.turn += 1;
        self.wire.wake_sleepers();
    }
}

/// How often data may move before the clock is looked at: short operations end before.
const MOVES_UNTIMED: u32 = 4;

/// One operation's time.
#[derive(Debug)]
pub(crate) struct Attempt {
    called: Instant,
    limit: Duration,
    deadline: Option<Deadline>,
    /// It has waited for a while, and the arbiter knows if it is a collective.
    stalled: bool,
    /// Its thread is known to wait.
    here: Here,
    /// Of one that has.
    reminder: Option<Reminder>,
    /// How often its data moved while nobody looked at the clock.
    moves: u32,
    /// How many bytes it had received when that was looked at last, and since when.
    progress: Option<(u64, Instant)>,
    /// The rank of the job whose process had ended at the last look.
    ended: Option<usize>,
    /// It has failed. For what is being settled with the other ranks.
    troubled: bool,
}

impl Attempt {
    pub(crate) fn new(called: Instant, limit: Duration) -> Self {
        Self {
            called,
            limit,
            deadline: None,
            stalled: false,
            here: None,
            reminder: None,
            moves: 0,
            progress: None,
            ended: None,
            troubled: false,
        }
    }

    /// Of an operation whose time has been running since `called`.
    #[cfg(target_os = "linux")]
    pub(crate) fn since(called: Instant, limit: Duration) -> Self {
        Self { deadline: Some(Deadline::after(called, limit)), ..Self::new(called, limit) }
    }

    fn told<'o>(&self, operation: &'o dyn Operation, now: Instant) -> ErrorContext<'o> {
        let (signature, seq, bytes) = (operation.signature(), operation.seq(), operation.bytes());
        let (message, elapsed) = (operation.message(), now.saturating_duration_since(self.called));
        ErrorContext { signature, seq, message, bytes, elapsed }
    }
}

/// What [`Engine::attempt`] found.
#[derive(Debug)]
pub(crate) enum Outcome {
    Finished,
    Moved,
    Idle,
    Failed(Error),
}

/// Drives the operations of one group on one rank.
#[derive(Debug)]
pub(crate) struct Engine {
    core: Mutex<Core>,
    /// Threads that want the core.
    contenders: AtomicUsize,
    pub(crate) health: Arc<GroupHealth>,
    pub(crate) queue: Queue<Box<dyn Job>>,
    /// Wakes the progress thread where it sleeps for links. There if the thread is.
    waker: Mutex<Option<Waker>>,
    pub(crate) thread: OwnThread,
    host_place: HostPlace,
    /// The transport's: whoever sleeps for links sleeps there.
    source: Option<Arc<dyn WakeSource>>,
}

impl Engine {
    pub(crate) fn new(health: Arc<GroupHealth>, wire: Wire) -> Self {
        let world_size = health.members().len();
        let source = wire.wake_source();
        let place = health.job.place();
        let placement = (place.local_world_size > 1).then_some(place.local_rank);
        let core = Core {
            wire,
            world_size,
            turn: 1,
            queues: MessageQueues::default(),
            eager: Eager::default(),
            scratch: vec![0; SCRATCH_LEN / 8],
            health: health.clone(),
        };
        Self {
            core: Mutex::new(core),
            contenders: AtomicUsize::new(0),
            host_place: HostPlace { crowded: health.job.ranks_share_cores(), placement },
            health,
            queue: Queue::default(),
            waker: Mutex::default(),
            thread: OwnThread::default(),
            source,
        }
    }

    /// A waker for one thread that sleeps for links.
    fn waker(&self) -> std::io::Result<Waker> {
        self.source.clone().map_or_else(Waker::new, |source| Ok(Waker::at(source)))
    }

    fn progress_waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        if let Ok(core) = self.core.try_lock() {
            return core;
        }
        self.contenders.fetch_add(1, Ordering::Relaxed);
        let core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        self.contenders.fetch_sub(1, Ordering::Relaxed);
        core
    }

    /// Drives one operation to its end on this thread.
    pub(crate) fn drive(&self, operation: &mut dyn Operation, mut attempt: Attempt) -> Result<()> {
        self.drive_until(operation, &mut attempt, |_| false).map(drop)
    }

    /// As [`drive`](Self::drive), but asks before it sleeps whether to leave the operation as it is; returns whether it is at its end.
    pub(crate) fn drive_until(
        &self,
        operation: &mut dyn Operation,
        attempt: &mut Attempt,
        leaves: impl Fn(&mut Core) -> bool,
    ) -> Result<bool> {
        let mut backoff = Backoff::new(self.host_place);
        let mut core = self.lock();
        loop {
            match self.attempt(&mut core, operation, attempt, Instant::now) {
                Outcome::Finished => return Ok(true),
                Outcome::Failed(error) => {
                    drop(core);
                    self.health.finish_trace();
                    return Err(error);
                }
                Outcome::Moved => backoff.reset(),
                Outcome::Idle => {}
            }
            let (mut wants, mut limit) = (Vec::new(), Duration::ZERO);
            if backoff.is_at_end() {
                if !attempt.troubled && leaves(&mut core) {
                    return Ok(false);
                }
                limit = self.waits_for(&core, operation, attempt, &mut wants, Instant::now());
            }
            core = self.idle(core, &mut backoff, &wants, limit);
        }
    }

    /// Polls an operation once, and asks for the time if nothing moved.
    pub(crate) fn attempt(
        &self,
        core: &mut Core,
        operation: &mut dyn Operation,
        attempt: &mut Attempt,
        time: impl Fn() -> Instant,
    ) -> Outcome {
        if let Some(cause) = self.health.latch.cause() {
            return Outcome::Failed(self.health.failed(cause.clone(), attempt.told(operation, time())));
        }
        let mut trouble = None;
        if !attempt.troubled {
            match operation.poll(core) {
                Ok(Progress::Finished) => return Outcome::Finished,
                Ok(Progress::Moved) if attempt.moves < MOVES_UNTIMED => {
                    attempt.moves += 1;
                    return Outcome::Moved;
                }
                Ok(Progress::Moved) => match self.late(core, operation, attempt, time()) {
                    Ok(None) => return Outcome::Moved,
                    Ok(cause) => trouble = cause,
                    Err(error) => return Outcome::Failed(error),
                },
                Ok(Progress::Idle) if !operation.is_due(core) => return Outcome::Idle,
                Ok(Progress::Idle) => {}
                Err(fault) => trouble = Some(self.cause_of(core, fault)),
            }
        }
        let now = time();
        if !attempt.troubled && trouble.is_none() {
            trouble = match self.look(core, operation, attempt, now) {
                Ok(cause) => cause,
                Err(error) => return Outcome::Failed(error),
            };
        }
        if let Some(cause) = trouble {
            attempt.troubled = true;
            self.health.accuse(cause, operation.seq() > 0);
        }
        if !attempt.troubled {
            return Outcome::Idle;
        }
        match self.health.verdict(now) {
            Ok(first) => Outcome::Failed(self.health.failed(first, attempt.told(operation, now))),
            Err(_) => Outcome::Idle,
        }
    }

    /// Why the group has failed, if the operation's time is over; whether or not its data move. An error ends the operation only.
    fn late(
        &self,
        core: &Core,
        operation: &dyn Operation,
        attempt: &mut Attempt,
        now: Instant,
    ) -> Result<Option<Cause>> {
        let deadline = *attempt.deadline.get_or_insert_with(|| Deadline::after(now, attempt.limit));
        if !deadline.has_passed(now) || breaks(Mechanism::Deadline) {
            return Ok(None);
        }
        let told = ErrorContext { elapsed: attempt.limit, ..attempt.told(operation, now) };
        match operation.give_up(&self.health, attempt.limit) {
            Some(error) => Err(error),
            None => Ok(Some(self.health.late(peers_of(core, operation), told))),
        }
    }

    /// What the clock says about an operation that waits: why the group has failed, if it has. An error ends the operation only.
    fn look(
        &self,
        core: &mut Core,
        operation: &dyn Operation,
        attempt: &mut Attempt,
        now: Instant,
    ) -> Result<Option<Cause>> {
        if let Some(cause) = self.late(core, operation, attempt, now)? {
            return Ok(Some(cause));
        }
        let deadline = *attempt.deadline.get_or_insert_with(|| Deadline::after(now, attempt.limit));
        if !attempt.stalled && deadline.elapsed(now) >= stall_time(deadline.limit()) {
            attempt.stalled = true;
            if operation.seq() > 0 {
                self.health.stalled();
            }
            if !operation.may_be_in_vain() {
                attempt.here = self.health.waits();
            }
        }
        if !attempt.stalled {
            return Ok(None);
        }
        if !operation.may_be_in_vain() {
            let waited = deadline.elapsed(now);
            let told = ErrorContext { elapsed: waited, ..attempt.told(operation, now) };
            let reminder = attempt.reminder.get_or_insert_with(|| Reminder::new(deadline.limit(), waited));
            self.health.remind(reminder, peers_of(core, operation), told);
        }
        let received = operation.bytes().0;
        if attempt.progress.is_none_or(|(known, _)| known != received) {
            attempt.progress = Some((received, now));
        }
        let comes =
            attempt.progress.is_some_and(|(_, at)| now.saturating_duration_since(at) <= FAREWELL_TIME);
        // A link that stands tells of its end itself, behind all that was sent before; not one in memory, of a process that has ended.
        let gone = peers_of(core, operation).into_iter().find_map(|peer| {
            let gone = self.health.gone([peer], now)?;
            (!core.wire.is_linked(peer) || !comes && self.health.has_left_job(peer)).then_some(gone)
        });
        if let Some(peer) = gone {
            return Ok(Some(Cause::Lost { peer, how: Loss::Left }));
        }
        if comes {
            return Ok(None);
        }
        Ok(self.health.ended_unheard(peers_of(core, operation), &mut attempt.ended))
    }

    /// What an idle operation waits for: links, and how long until its clock must be looked at again.
    pub(crate) fn waits_for(
        &self,
        core: &Core,
        operation: &dyn Operation,
        attempt: &Attempt,
        wants: &mut Vec<(usize, Direction)>,
        now: Instant,
    ) -> Duration {
        if attempt.troubled {
            return self.health.verdict(now).map_or_else(|until| until - now, |_| Duration::ZERO);
        }
        operation.wants(core, wants);
        let Some(deadline) = &attempt.deadline else { return stall_time(Duration::MAX) };
        let left = deadline.remaining(now);
        if attempt.stalled {
            let waited = deadline.elapsed(now);
            let reminder = attempt.reminder.as_ref().map_or(Duration::MAX, |reminder| reminder.left(waited));
            return left.min(FAREWELL_TIME).min(reminder.max(Duration::from_millis(1)));
        }
        left.min(
            stall_time(deadline.limit()).saturating_sub(deadline.elapsed(now)).max(Duration::from_millis(1)),
        )
    }

    /// Nothing can be done: spins, lets others in, or sleeps until a link in `wants` is ready.
    pub(crate) fn idle<'e>(
        &'e self,
        mut core: MutexGuard<'e, Core>,
        backoff: &mut Backoff,
        wants: &[(usize, Direction)],
        limit: Duration,
    ) -> MutexGuard<'e, Core> {
        let contended = self.contenders.load(Ordering::Relaxed) > 0;
        if contended {
            drop(core);
            std::thread::yield_now();
            core = self.lock();
        }
        if !backoff.is_at_end() {
            backoff.pause();
            return core;
        }
        if contended {
            // Whoever came in may have read for us: look again before sleeping.
            return core;
        }
        let Some(wait) = backoff.wait(self.source.as_ref()) else {
            drop(core);
            std::thread::sleep(Duration::from_millis(1));
            return self.lock();
        };
        wait.clear();
        self.health.latch.listen(wait.waker());
        core.wire.add_sleeper(wait.waker());
        let mut ready = self.health.latch.cause().is_some();
        for &(peer, direction) in wants {
            ready |= core.wire.watch(peer, direction, wait);
        }
        drop(core);
        if !ready {
            wait.sleep(limit);
        }
        self.health.latch.hush(wait.waker());
        let mut core = self.lock();
        core.wire.remove_sleeper(wait.waker());
        core
    }

    fn cause_of(&self, core: &Core, fault: Fault) -> Cause {
        let unknown = || "something it did not describe".to_owned();
        match fault {
            Fault::Wire { peer, fault: WireFault::Gone(fault, farewell) } => {
                let how = match fault {
                    LinkFault::Nonsense(what) => {
                        return Cause::Protocol { peer: self.health.peer(peer), what };
                    }
                    // Not the fault of whoever was to be at the other end.
                    starved @ LinkFault::Starved(_) => {
                        return self.health.own_fault(&starved.to_string());
                    }
                    _ if farewell => Loss::Left,
                    LinkFault::Closed => Loss::Died,
                    LinkFault::Unreachable(why) => {
                        tracing::warn!(peer = %self.health.peer(peer), %why, "no connection");
                        self.health.unreachable()
                    }
                };
                Cause::Lost { peer: self.health.peer(peer), how }
            }
            Fault::Wire { peer, fault: WireFault::Nonsense(what) } | Fault::Nonsense { peer, what } => {
                Cause::Protocol { peer: self.health.peer(peer), what }
            }
            Fault::Wire { peer, fault: WireFault::Stale(seq, theirs) } => {
                match (core.health.recall(seq), theirs) {
                    (Some(ours), Some(theirs)) => self.health.mismatch(seq, None, ours, peer, *theirs),
                    (_, theirs) => {
                        let called = theirs.map_or_else(unknown, |t| t.to_string());
                        let what = format!("a late frame of operation #{seq}, where it called {called}");
                        Cause::Protocol { peer: self.health.peer(peer), what }
                    }
                }
            }
            Fault::Mismatch { peer, seq, tag, ours, theirs } => match theirs {
                Some(theirs) => self.health.mismatch(seq, tag, *ours, peer, *theirs),
                None => {
                    let place = match tag {
                        Some(tag) => format!("of the message with tag {tag}"),
                        None => format!("at operation #{seq}"),
                    };
                    let what = format!("{place} it called {}, and this rank {ours}", unknown());
                    Cause::Protocol { peer: self.health.peer(peer), what }
                }
            },
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let core = self.core.get_mut().unwrap_or_else(PoisonError::into_inner);
        if self.health.is_here() && self.health.latch.cause().is_none() {
            for peer in (0..core.world_size).filter(|&p| p != self.health.rank) {
                core.wire.farewell(peer);
            }
        }
    }
}

/// The peers that an operation waits for.
fn peers_of(core: &Core, operation: &dyn Operation) -> Vec<usize> {
    let mut wants = Vec::new();
    operation.wants(core, &mut wants);
    wants.into_iter().map(|(peer, _)| peer).collect()
}
