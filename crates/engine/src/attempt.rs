//! One operation under the clock: polled, and looked at while it waits. What is late, gone or wrong becomes the group's failure.

use crate::any_peer::AnyPeer;
use crate::core::{Core, Fault, Progress};
use crate::operation::Operation;
use phalanx_control::group_health::{ErrorContext, FAREWELL_TIME, stall_time};
use phalanx_control::reminder::Reminder;
use phalanx_control::runtime::Here;
use phalanx_core::{Cause, Deadline, Error, Loss, Result};
use phalanx_transport::sabotage::{Mechanism, breaks};
use phalanx_transport::{Direction, LinkFault, WireFault};
use std::time::{Duration, Instant};

/// What [`Attempt::poll`] found.
#[derive(Debug)]
pub enum Outcome {
    /// It is done.
    Finished,
    /// Data moved.
    Moved,
    /// Nothing could be done.
    Idle,
    /// It has ended in this error, and so has the group, unless the error says otherwise.
    Failed(Error),
}

/// How often data may move before the clock is looked at: short operations end before.
const MOVES_UNTIMED: u32 = 4;

/// One operation's time.
#[derive(Debug)]
pub struct Attempt {
    called: Instant,
    limit: Duration,
    deadline: Option<Deadline>,
    /// Of its time, at the last look at the clock.
    left: Duration,
    /// It has waited for a while, and the arbiter knows if it is a collective.
    stalled: bool,
    /// Its thread is known to wait.
    here: Here,
    /// The thread that polls it need not wait for it.
    is_job: bool,
    /// Of one that has.
    reminder: Option<Reminder>,
    /// How often its data moved while nobody looked at the clock.
    moves: u32,
    /// How many bytes it had received when that was looked at last, and since when.
    progress: Option<(u64, Instant)>,
    /// How many links had ended on which any peer might send, and since when.
    ended_links: Option<(usize, Instant)>,
    /// The rank of the job whose process had ended at the last look.
    ended: Option<usize>,
    /// It has failed. For what is being settled with the other ranks.
    troubled: bool,
}

impl Attempt {
    /// Of an operation that was called then, and may take so long once its turn has come.
    pub fn new(called: Instant, limit: Duration) -> Self {
        Self {
            called,
            limit,
            left: limit,
            deadline: None,
            stalled: false,
            here: None,
            is_job: false,
            reminder: None,
            moves: 0,
            progress: None,
            ended_links: None,
            ended: None,
            troubled: false,
        }
    }

    /// The same for one that was begun: the thread that polls it goes back to the program, and whether it waits is that thread's affair.
    pub fn of_job(called: Instant, limit: Duration) -> Self {
        Self { is_job: true, ..Self::new(called, limit) }
    }

    /// Of an operation whose time has been running since `called`.
    pub fn since(called: Instant, limit: Duration) -> Self {
        Self { deadline: Some(Deadline::after(called, limit)), ..Self::new(called, limit) }
    }

    /// It has failed. For what is being settled with the other ranks.
    pub fn is_troubled(&self) -> bool {
        self.troubled
    }

    fn told<'o>(&self, operation: &'o dyn Operation, now: Instant) -> ErrorContext<'o> {
        let (signature, seq, bytes) = (operation.signature(), operation.seq(), operation.bytes());
        let (message, elapsed) = (operation.message(), now.saturating_duration_since(self.called));
        ErrorContext { signature, seq, message, bytes, elapsed }
    }

    /// Polls an operation once, and asks for the time if nothing moved.
    pub fn poll(
        &mut self,
        core: &mut Core,
        operation: &mut dyn Operation,
        time: impl Fn() -> Instant,
    ) -> Outcome {
        self.poll_at(core, operation, true, time)
    }

    /// As [`poll`](Self::poll), but reads no clock where nothing could be done: for the first polls of a thread that waits awake.
    pub fn poll_untimed(
        &mut self,
        core: &mut Core,
        operation: &mut dyn Operation,
        time: impl Fn() -> Instant,
    ) -> Outcome {
        self.poll_at(core, operation, false, time)
    }

    fn poll_at(
        &mut self,
        core: &mut Core,
        operation: &mut dyn Operation,
        is_timed: bool,
        time: impl Fn() -> Instant,
    ) -> Outcome {
        if let Some(cause) = core.health.latch.cause().cloned() {
            core.wire.withdraw();
            return Outcome::Failed(core.health.failed(cause, self.told(operation, time())));
        }
        let mut trouble = None;
        if !self.troubled {
            core.polled_with(self.left);
            match operation.poll(core) {
                Ok(Progress::Finished) => return Outcome::Finished,
                Ok(Progress::Moved) if self.moves < MOVES_UNTIMED => {
                    self.moves += 1;
                    return Outcome::Moved;
                }
                Ok(Progress::Moved) => match self.late(core, operation, time()) {
                    Ok(None) => return Outcome::Moved,
                    Ok(cause) => trouble = cause,
                    Err(error) => return Outcome::Failed(error),
                },
                Ok(Progress::Idle) if !is_timed || !operation.is_due(core) => return Outcome::Idle,
                Ok(Progress::Idle) => {}
                Err(fault) => trouble = Some(cause_of(core, fault)),
            }
        }
        let now = time();
        if !self.troubled && trouble.is_none() {
            trouble = match self.look(core, operation, now) {
                Ok(cause) => cause,
                Err(error) => return Outcome::Failed(error),
            };
        }
        if let Some(cause) = trouble {
            self.troubled = true;
            core.health.accuse(cause, operation.seq());
        }
        if !self.troubled {
            return Outcome::Idle;
        }
        match core.health.verdict(now) {
            Ok(first) => {
                core.wire.withdraw();
                Outcome::Failed(core.health.failed(first, self.told(operation, now)))
            }
            Err(_) => Outcome::Idle,
        }
    }

    /// Why the group has failed, if the operation's time is over; whether or not its data move. An error ends the operation only.
    fn late(&mut self, core: &Core, operation: &dyn Operation, now: Instant) -> Result<Option<Cause>> {
        let deadline = *self.deadline.get_or_insert_with(|| Deadline::after(now, self.limit));
        self.left = deadline.remaining(now);
        if !deadline.has_passed(now) || breaks(Mechanism::Deadline) {
            return Ok(None);
        }
        let told = ErrorContext { elapsed: self.limit, ..self.told(operation, now) };
        match operation.give_up(&core.health, self.limit) {
            Some(error) => Err(error),
            None if operation.any_peer().is_some() => Ok(Some(core.health.nobody_sent(told))),
            None => Ok(Some(core.health.late(named(core, operation), told))),
        }
    }

    /// What the clock says about an operation that waits: why the group has failed, if it has. An error ends the operation only.
    fn look(&mut self, core: &mut Core, operation: &dyn Operation, now: Instant) -> Result<Option<Cause>> {
        if let Some(cause) = self.late(core, operation, now)? {
            return Ok(Some(cause));
        }
        if let Some(any) = operation.any_peer()
            && let Some(cause) = self.nobody_sends(core, any, now)
        {
            return Ok(Some(cause));
        }
        let deadline = *self.deadline.get_or_insert_with(|| Deadline::after(now, self.limit));
        if !self.stalled && deadline.elapsed(now) >= stall_time(deadline.limit()) {
            self.stalled = true;
            if operation.seq() > 0 {
                core.health.stalled();
            }
            if !operation.may_be_in_vain() {
                let here = core.health.waits();
                self.here = if self.is_job { None } else { here };
            }
        }
        if !self.stalled {
            return Ok(None);
        }
        if !operation.may_be_in_vain() {
            let waited = deadline.elapsed(now);
            let told = ErrorContext { elapsed: waited, ..self.told(operation, now) };
            let reminder = self.reminder.get_or_insert_with(|| Reminder::new(deadline.limit(), waited));
            core.health.remind(reminder, named(core, operation), told);
        }
        let received = operation.bytes().0;
        if self.progress.is_none_or(|(known, _)| known != received) {
            self.progress = Some((received, now));
        }
        let comes = self.progress.is_some_and(|(_, at)| now.saturating_duration_since(at) <= FAREWELL_TIME);
        // A link that stands tells of its end itself, behind all that was sent before; not one in memory, of a process that has ended.
        let gone = peers_of(core, operation).into_iter().find_map(|peer| {
            let gone = core.health.gone([peer], now)?;
            (!core.wire.is_linked(peer) || !comes && core.health.has_left_job(peer)).then_some(gone)
        });
        // One that has left is missed by nobody while another may send.
        if let Some(peer) = gone.filter(|_| operation.any_peer().is_none()) {
            return Ok(Some(Cause::Lost { peer, how: Loss::Left }));
        }
        if comes {
            return Ok(None);
        }
        Ok(core.health.ended_unheard(peers_of(core, operation), &mut self.ended))
    }

    /// Why the group has failed, if no peer can send any more what any might have sent. Whether one whose link has ended has left in order, is heard
    /// a little later.
    fn nobody_sends(&mut self, core: &mut Core, any: &AnyPeer, now: Instant) -> Option<Cause> {
        let ended = any.ended();
        if self.ended_links.is_none_or(|(known, _)| known != ended.len()) {
            self.ended_links = Some((ended.len(), now));
        }
        let is_old = |since| now.saturating_duration_since(since) > FAREWELL_TIME;
        let is_over = self.ended_links.is_some_and(|(_, since)| is_old(since));
        let has_left = |peer: usize| core.health.latch.left_at(core.health.members()[peer]).is_some();
        let all_ended = any.is_all() && any.open().is_empty();
        let is_lost = |(peer, fault): &&(usize, WireFault)| {
            !matches!(fault, WireFault::Gone(_, true)) && !has_left(*peer)
        };
        if let Some((peer, fault)) = ended.iter().find(is_lost).filter(|_| is_over || all_ended) {
            return Some(cause_of(core, Fault::Wire { peer: *peer, fault: fault.clone() }));
        }
        if all_ended && (is_over || ended.iter().all(|(peer, _)| has_left(*peer))) {
            let said = || ended.last().map(|(peer, _)| core.health.peer(*peer));
            let left = core.health.all_left().map(|(peer, _)| peer);
            return left.or_else(said).map(|peer| Cause::Lost { peer, how: Loss::LeftLast });
        }
        // What is on no link of these peers, or on one that was never made.
        let (last, at) = core.health.all_left()?;
        let may_come =
            any.open().iter().any(|&peer| core.wire.is_linked(peer) && !core.health.has_left_job(peer));
        (is_old(at) && !may_come).then_some(Cause::Lost { peer: last, how: Loss::LeftLast })
    }

    /// What an idle operation waits for: links, and how long until its clock must be looked at again.
    pub fn waits_for(
        &self,
        core: &Core,
        operation: &dyn Operation,
        wants: &mut Vec<(usize, Direction)>,
        now: Instant,
    ) -> Duration {
        if self.troubled {
            return core.health.verdict(now).map_or_else(|until| until - now, |_| Duration::ZERO);
        }
        operation.wants(core, wants);
        let Some(deadline) = &self.deadline else { return stall_time(Duration::MAX) };
        let left = deadline.remaining(now);
        if self.stalled {
            let waited = deadline.elapsed(now);
            let reminder = self.reminder.as_ref().map_or(Duration::MAX, |reminder| reminder.left(waited));
            return left.min(FAREWELL_TIME).min(reminder.max(Duration::from_millis(1)));
        }
        left.min(
            stall_time(deadline.limit()).saturating_sub(deadline.elapsed(now)).max(Duration::from_millis(1)),
        )
    }
}

/// Why the group fails by what an operation has met.
fn cause_of(core: &Core, fault: Fault) -> Cause {
    let unknown = || "something it did not describe".to_owned();
    match fault {
        Fault::Wire { peer, fault: WireFault::Gone(fault, farewell) } => {
            let how = match fault {
                LinkFault::Nonsense(what) => {
                    return Cause::Protocol { peer: core.health.peer(peer), what };
                }
                // Not the fault of whoever was to be at the other end.
                starved @ LinkFault::Starved(_) => {
                    return core.health.own_fault(&starved.to_string());
                }
                _ if farewell => Loss::Left,
                LinkFault::Closed => Loss::Died,
                LinkFault::Unreachable(why) => {
                    tracing::warn!(peer = %core.health.peer(peer), %why, "no connection");
                    core.health.unreachable()
                }
            };
            Cause::Lost { peer: core.health.peer(peer), how }
        }
        Fault::Wire { peer, fault: WireFault::Nonsense(what) } | Fault::Nonsense { peer, what } => {
            Cause::Protocol { peer: core.health.peer(peer), what }
        }
        Fault::Wire { peer, fault: WireFault::Stale(seq, theirs) } => {
            match (core.health.recall(seq), theirs) {
                (Some(ours), Some(theirs)) => core.health.mismatch(seq, None, ours, peer, *theirs),
                (_, theirs) => {
                    let called = theirs.map_or_else(unknown, |t| t.to_string());
                    let what = format!("a late frame of operation #{seq}, where it called {called}");
                    Cause::Protocol { peer: core.health.peer(peer), what }
                }
            }
        }
        Fault::Mismatch { peer, seq, tag, ours, theirs } => match theirs {
            Some(theirs) => core.health.mismatch(seq, tag, *ours, peer, *theirs),
            None => {
                let place = match tag {
                    Some(tag) => format!("of the message with tag {tag}"),
                    None => format!("at operation #{seq}"),
                };
                let what = format!("{place} it called {}, and this rank {ours}", unknown());
                Cause::Protocol { peer: core.health.peer(peer), what }
            }
        },
    }
}

/// The peers that a call is told to wait for: of a message, its other end.
fn named(core: &Core, operation: &dyn Operation) -> Vec<usize> {
    let peer = operation.message().and_then(|(peer, _)| peer);
    peer.map_or_else(|| peers_of(core, operation), |peer| vec![peer])
}

/// The peers that an operation waits for.
fn peers_of(core: &Core, operation: &dyn Operation) -> Vec<usize> {
    let mut wants = Vec::new();
    operation.wants(core, &mut wants);
    wants.into_iter().map(|(peer, _)| peer).collect()
}
