//! The health of one group on one rank: whether it has failed, why, and how errors say so.

use crate::failure_latch::FailureLatch;
use crate::failure_report::{FailureReport, Next};
use crate::job_context::JobContext;
use crate::limits::cut;
use crate::notice::{Notice, Through};
use crate::reminder::{self, Reminder, Reminding};
use crate::runtime::{Here, Runtime};
use phalanx_core::{Cause, Context, Deadline, Envelope, Error, GroupId, Loss, Peer, Result, Signature};
use phalanx_trace::Trace;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a collective waits before it tells the arbiter, which then sees who waits for something else.
const STALL_TIME: Duration = Duration::from_millis(500);
/// How long the arbiter's word is waited for where this rank saw only the effect of something.
const HEARSAY_TIME: Duration = Duration::from_secs(2);
/// How long rank 0 waits at most until its own arbiter has told the others of its error.
const ARBITER_ERROR_TIME: Duration = Duration::from_millis(500);
/// How long after an orderly farewell a peer's last bytes may still be on their way.
pub const FAREWELL_TIME: Duration = Duration::from_secs(1);

/// A call as errors describe it.
#[derive(Debug, Clone, Copy)]
pub struct ErrorContext<'a> {
    /// What was called.
    pub signature: &'a Signature,
    /// Its place among the group's collectives; 0 for messages.
    pub seq: u64,
    /// Of a message: the other end, among those who work together here, or `None` while any rank may send it; and the tag.
    pub message: Option<(Option<usize>, u64)>,
    /// Payload bytes received, and all there are to receive.
    pub bytes: (u64, u64),
    /// Since it was called.
    pub elapsed: Duration,
}

/// A call of the group, of which a backend performs a part. Errors tell of the whole.
#[derive(Debug, Clone, Copy)]
pub struct ParentCall<'a> {
    /// What was called.
    pub signature: &'a Signature,
    /// Its place among the group's collectives.
    pub seq: u64,
    /// Since when its time runs …
    pub called: Instant,
    /// … and how much of that there is.
    pub limit: Duration,
}

/// The health of one group on one rank, as the part of it that works together sees it.
#[derive(Debug)]
pub struct GroupHealth {
    /// This rank's connection to its job.
    pub job: Arc<dyn JobContext>,
    /// Whether the group has failed, and its latest calls.
    pub latch: Arc<FailureLatch>,
    /// The ranks of the job that work together here: all members of the group, or some of them. Peers count in this order.
    members: Vec<usize>,
    /// This rank among them.
    pub rank: usize,
    shared: Arc<Shared>,
}

/// The state that the parts of a group on this rank share. It lasts until the last of them is done.
#[derive(Debug)]
struct Shared {
    job: Arc<dyn JobContext>,
    latch: Arc<FailureLatch>,
    /// The first trouble that this rank noticed. However many operations fail for it, it is reported once.
    report: Mutex<Option<FailureReport>>,
    /// The processes of those of its members that are on this host (ranks of the job, in the order of the processes).
    neighbours: OnceLock<(Vec<usize>, HasEnded)>,
}

/// Whether a process has ended, by its number.
struct HasEnded(Box<dyn Fn(usize) -> bool + Send + Sync>);

impl fmt::Debug for HasEnded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HasEnded")
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.job.membership().runtime().is_here() {
            return;
        }
        // Of a group that has failed nobody expects anything, and a panic does not end it in order.
        if self.latch.members().len() > 1 && self.latch.cause().is_none() && !std::thread::panicking() {
            let _ = self.job.control().send(self.latch.farewell());
        }
        self.job.forget(self.latch.group());
    }
}

impl GroupHealth {
    /// `members` are ranks of the job, in group order.
    pub fn new(job: Arc<dyn JobContext>, id: GroupId, members: Vec<usize>) -> Self {
        let latch = job.membership().latch(id, members.clone());
        let report = Mutex::default();
        let shared = Shared { job: job.clone(), latch: latch.clone(), report, neighbours: OnceLock::new() };
        Self::of(job, latch, members, Arc::new(shared))
    }

    /// The same health, seen by `members` of the group (ranks of the job), which do a part of its work among themselves.
    pub fn part(&self, members: Vec<usize>) -> Self {
        Self::of(self.job.clone(), self.latch.clone(), members, self.shared.clone())
    }

    fn of(
        job: Arc<dyn JobContext>,
        latch: Arc<FailureLatch>,
        members: Vec<usize>,
        shared: Arc<Shared>,
    ) -> Self {
        let rank = members.iter().position(|&m| m == job.place().rank).expect("this rank is a member");
        Self { job, latch, members, rank, shared }
    }

    fn runtime(&self) -> &dyn Runtime {
        self.job.membership().runtime()
    }

    /// Whether this is the process that the group is of, and none that was forked from it: that must end nothing.
    pub fn is_here(&self) -> bool {
        self.runtime().is_here()
    }

    /// The ranks of the job that work together here.
    pub fn members(&self) -> &[usize] {
        &self.members
    }

    /// One of the members, as errors name it.
    pub fn peer(&self, rank: usize) -> Peer {
        self.job.peer(self.members[rank])
    }

    /// How a peer is lost to which this rank finds no way.
    pub fn unreachable(&self) -> Loss {
        Loss::Unreachable { from: self.members[self.rank] }
    }

    /// This rank has begun a collective; `clock` is that of the log.
    pub fn remember(&self, seq: u64, signature: &Signature, clock: impl FnOnce(&Signature) -> u64) {
        self.latch.collectives.begin(seq, signature, clock);
    }

    /// A collective has ended well.
    pub fn ended(&self, seq: u64, signature: &Signature, clock: impl FnOnce(&Signature) -> u64) {
        self.latch.collectives.end(seq, signature, clock);
    }

    /// This rank's call at that place, if it was lately.
    pub fn recall(&self, seq: u64) -> Option<Signature> {
        self.latch.collectives.find(seq)
    }

    /// Refuses a collective if the group has failed. `seq` is the place that it would have among the group's.
    pub fn check(&self, signature: &Signature, seq: impl FnOnce() -> u64) -> Result<()> {
        self.check_call(signature, || (seq(), None))
    }

    /// Refuses a message to or from `peer`, or from any rank, if the group has failed.
    pub fn check_message(&self, signature: &Signature, peer: Option<usize>, tag: u64) -> Result<()> {
        self.check_call(signature, || (0, Some((peer, tag))))
    }

    fn check_call(
        &self,
        signature: &Signature,
        place: impl FnOnce() -> (u64, Option<(Option<usize>, u64)>),
    ) -> Result<()> {
        let Some(cause) = self.latch.cause() else {
            if self.job.membership().error_state.goes_on(|| self.runtime().now()) {
                let _ = self.job.control().send(Notice::GoesOn);
            }
            return Ok(());
        };
        if self.latch.returned.swap(true, Ordering::AcqRel) {
            return Err(Error::Poisoned { op: signature.op, cause: Box::new(cause.clone()) });
        }
        let (seq, message) = place();
        let told = ErrorContext { signature, seq, message, bytes: (0, 0), elapsed: Duration::ZERO };
        let error = self.failed(cause.clone(), told);
        self.finish_trace();
        Err(error)
    }

    /// Fails the group: reports `cause`, and returns the error for the cause that came first.
    pub fn fail(&self, cause: Cause, told: ErrorContext<'_>) -> Error {
        self.accuse(cause, told.seq);
        let error = self.failed(self.wait_for_verdict(), told);
        self.finish_trace();
        error
    }

    /// This rank noticed trouble, in collective `seq`, or elsewhere if that is 0. What came first, [`verdict`](Self::verdict) says.
    pub fn accuse(&self, cause: Cause, seq: u64) {
        self.report().get_or_insert_with(|| FailureReport::new(cause, seq));
    }

    /// For what the group has failed, after an [`accuse`](Self::accuse); or until when that may still be open.
    pub fn verdict(&self, now: Instant) -> Result<Cause, Instant> {
        let mut report = self.report();
        loop {
            if let Some(first) = self.latch.cause() {
                return Ok(first.clone());
            }
            let report = report.as_mut().expect("who waits for a verdict has accused somebody");
            match report.next(now) {
                Next::Tell => self.notify(report.cause()),
                Next::Wait(until) => return Err(until),
                Next::Believe => {
                    let (cause, through) = self.own_view(report);
                    self.latch.raise(cause, through);
                }
            }
        }
    }

    fn report(&self) -> MutexGuard<'_, Option<FailureReport>> {
        self.shared.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_verdict(&self) -> Cause {
        loop {
            let now = self.runtime().now();
            match self.verdict(now) {
                Ok(first) => return first,
                Err(until) => drop(self.latch.wait(&Deadline::after(now, until - now))),
            }
        }
    }

    /// The error for the cause for which the group has failed. Before it is returned, [`finish_trace`](Self::finish_trace).
    pub fn failed(&self, cause: Cause, told: ErrorContext<'_>) -> Error {
        if self.job.membership().error_state.enter(self.runtime().now()) {
            // If the program ends because of this error, the others hear why.
            let _ = self.job.control().send(Notice::InError { cause: cause.clone() });
        }
        // After that: who is asked meanwhile says either.
        self.latch.returned.store(true, Ordering::Release);
        Error::from_cause(cause, self.context(told))
    }

    /// The error for what went wrong elsewhere, if that is heard of soon.
    pub fn heard(&self, told: ErrorContext<'_>) -> Option<Error> {
        let first = self.latch.wait(&Deadline::after(self.runtime().now(), HEARSAY_TIME))?;
        let error = self.failed(first.clone(), told);
        self.finish_trace();
        Some(error)
    }

    /// The call was late and that is an error: the group has failed.
    pub fn timed_out(&self, peers: impl IntoIterator<Item = usize>, told: ErrorContext<'_>) -> Error {
        self.fail(self.late(peers, told), told)
    }

    /// Why a call failed that waited for `peers` until its time was over.
    pub fn late(&self, peers: impl IntoIterator<Item = usize>, told: ErrorContext<'_>) -> Cause {
        let mut awaited: Vec<Peer> = peers.into_iter().map(|peer| self.peer(peer)).collect();
        awaited.sort();
        awaited.dedup();
        let (op, seq, reporter) = (told.signature.op, told.seq, self.peer(self.rank));
        // As far as this rank can see. Of collectives the arbiter knows more.
        let missing = awaited.clone();
        let (site, envelope) = (Some(told.signature.site.clone()), self.envelope(told));
        let (waited, meanwhile) = (told.elapsed, Vec::new());
        Cause::TimedOut { reporter, op, seq, site, envelope, waited, awaited, missing, meanwhile }
    }

    /// Why a call failed in which no rank sent what any might have sent: nobody in particular was expected to.
    pub fn nobody_sent(&self, told: ErrorContext<'_>) -> Cause {
        let mut cause = self.late([], told);
        if let Cause::TimedOut { awaited, .. } = &mut cause {
            *awaited = self.others_here();
        }
        cause
    }

    /// The other members of the group that have not left.
    pub fn others_here(&self) -> Vec<Peer> {
        let own = self.members[self.rank];
        let others = self.latch.still_here().into_iter().filter(|&member| member != own);
        others.map(|member| self.job.peer(member)).collect()
    }

    /// The member that left last, and when that became known, if all others of the group have.
    pub fn all_left(&self) -> Option<(Peer, Instant)> {
        let (last, at) = self.latch.last_to_leave(self.members[self.rank])?;
        Some((self.job.peer(last), at))
    }

    /// Reports the cause to the arbiter. If the line is broken already, a verdict that came over it before may still have to be heard.
    fn notify(&self, cause: &Cause) {
        let (group, members) = (self.latch.group(), self.latch.members().to_vec());
        let _ = self.job.control().send(Notice::Failed { group, members, cause: cause.clone() });
    }

    /// The cause to believe without a verdict. The arbiter is on rank 0: if that has left, nobody decides who of the others was
    /// lost first. But of a member that left before it had come through this collective all have heard, and the collective cannot end without it.
    fn own_view(&self, report: &FailureReport) -> (Cause, Through) {
        let has_left = |rank| self.latch.members().contains(&rank) && self.latch.left_at(rank).is_some();
        let left = |peer: Peer, how| match self.latch.left_after(peer.rank) {
            Some(first) => (first, Some((peer, Loss::LeftAfterError))),
            None => (Cause::Lost { peer, how }, None),
        };
        if report.seq() > 0
            && matches!(report.cause(), Cause::Lost { .. } | Cause::TimedOut { .. })
            && let Some(missed) = self.latch.first_that_left_before(report.seq())
        {
            return left(self.job.peer(missed), Loss::Left);
        }
        match (report.cause().clone(), self.job.membership().arbiter_error()) {
            (Cause::Lost { peer, how: how @ Loss::LeftLast }, _) => left(peer, how),
            (Cause::Lost { peer, .. }, _) if has_left(peer.rank) => left(peer, Loss::Left),
            // The arbiter ended after an error. So, most likely, did whoever is lost after that, or does not come.
            (Cause::Lost { peer, how }, Some(first)) => (first, Some((peer, how))),
            (Cause::TimedOut { .. }, Some(first)) if !self.job.membership().has_arbiter() => {
                (first, Some((self.job.peer(0), Loss::LeftAfterError)))
            }
            (other, _) => (other, None),
        }
    }

    /// Whether rank 0, and with it the arbiter, is in the error state.
    pub fn arbiter_ended_after_error(&self) -> bool {
        self.job.membership().arbiter_error().is_some()
    }

    /// Fails the group on all its ranks.
    pub fn abort(&self, reason: &str) {
        self.give_up(self.own_fault(reason));
    }

    /// The cause of a failure for which this rank alone is to be named.
    pub fn own_fault(&self, reason: &str) -> Cause {
        Cause::Aborted { peer: self.peer(self.rank), reason: cut(reason) }
    }

    /// Reports the outcome of a step that each rank takes by itself in a collective. If it failed here, the others hear why this rank does not come.
    pub fn alone<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| self.abort(&error.to_string()))
    }

    /// Fails a group that this one is divided into, on all its ranks: it will not have this rank. Nothing is known of it here but its name.
    pub fn forgo(&self, group: GroupId, why: &Error) {
        if !self.is_here() {
            return;
        }
        let cause = match self.latch.cause() {
            Some(first) if !matches!(first, Cause::TimedOut { .. }) => first.clone(),
            // Nobody was late in the new group.
            _ => self.own_fault(&why.to_string()),
        };
        for group in [group, meeting_of(group)] {
            let notice =
                Notice::Failed { group, members: self.latch.members().to_vec(), cause: cause.clone() };
            // Who insists is not doubted.
            for notice in [notice.clone(), notice] {
                let _ = self.job.control().send(notice);
            }
        }
    }

    /// The health of this group's members while they wait for each other, before the group is made. To [`forgo`](Self::forgo) the group fails that too.
    pub fn meeting(&self) -> Self {
        Self::new(self.job.clone(), meeting_of(self.latch.group()), self.latch.members().to_vec())
    }

    /// A thread of this rank is unwinding: the others are told why, before the closing links look like a death. What is in
    /// flight here ends as well. Where the arbiter is on this rank, its word has reached the others when it is heard here.
    ///
    /// All groups of this rank fail by that, at once, for the thread is about to drop them one after the other.
    pub fn panicked(&self) {
        let cause = Cause::Lost { peer: self.peer(self.rank), how: Loss::Panicked };
        if self.latch.cause().is_some() {
            self.notify(&cause);
        }
        self.give_up(cause);
    }

    /// Fails the group on all its ranks, unless it has failed; why it has.
    pub fn give_up(&self, cause: Cause) -> Cause {
        if !self.is_here() {
            return cause;
        }
        self.begin_to_give_up(cause);
        let first = self.wait_for_verdict();
        self.finish_trace();
        first
    }

    /// Says why this rank fails the group, unless that has failed already. What came first, [`verdict`](Self::verdict) says.
    pub fn begin_to_give_up(&self, cause: Cause) -> bool {
        let begins = self.latch.cause().is_none();
        if begins {
            if self.report().is_some() {
                // Whatever else is being settled: this needs no second telling.
                self.notify(&cause);
            }
            self.accuse(cause, 0);
        }
        begins
    }

    /// Does what others on this rank wait for: a panic in it becomes an error, and fails the group.
    pub fn contain<R>(&self, work: impl FnOnce() -> R) -> Result<R> {
        catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
            self.latch.returned.store(true, Ordering::Release);
            self.panicked();
            Error::Internal { what: format!("an operation in flight panicked: {}", words_of(&*panic)) }
        })
    }

    /// The trace of this rank: its latest operations in all its groups.
    pub fn trace(&self) -> Trace {
        self.job.membership().trace("the program asked for it")
    }

    /// Writes what led to the failure before the program hears of it and may end the process. Sleeps, so call it without a lock.
    pub fn finish_trace(&self) {
        let Some(cause) = self.latch.cause() else { return };
        let membership = self.job.membership();
        membership.runtime().finish_traces();
        // Of the loss of a rank all groups hear, of any other cause this one alone.
        let is_known = matches!(cause, Cause::Lost { peer, .. } if peer.rank == 0);
        if self.job.place().rank == 0 && !is_known && membership.error_state.is() {
            // With this process the arbiter ends: the others must know why, before.
            membership.wait_arbiter_error(&Deadline::after(self.runtime().now(), ARBITER_ERROR_TIME));
        }
    }

    /// Tells the arbiter where this rank waits: it sees who waits elsewhere.
    pub fn stalled(&self) {
        // If the line is broken, the membership knows.
        let _ = self.job.control().send(self.latch.calls());
    }

    /// Tells the arbiter for what this rank waits: it sees who waits for each other. The calling thread counts as one that waits, for as long
    /// as what is returned lives.
    pub fn waits(&self) -> Here {
        let membership = self.job.membership();
        let here = membership.runtime().wait_begins();
        let _ = self.job.control().send(Notice::Waits { round: 0, standing: membership.waits() });
        here
    }

    /// The calling thread counts as one that waits, for as long as what is returned lives.
    pub fn waits_here(&self) -> Here {
        self.runtime().wait_begins()
    }

    /// This call has waited for `told.elapsed`, now for `peers`: says so where that is due.
    pub fn remind(
        &self,
        reminder: &mut Reminder,
        peers: impl IntoIterator<Item = usize>,
        told: ErrorContext<'_>,
    ) {
        let group = self.latch.group();
        match reminder.poll(told.elapsed) {
            Reminding::Nothing => {}
            Reminding::Ask if told.seq == 0 => {}
            Reminding::Ask => {
                let members = self.latch.members().to_vec();
                let _ = self.job.control().send(Notice::WhoIsBehind { group, seq: told.seq, members });
            }
            Reminding::Say => {
                // Whom this rank waits for may itself wait for another. That all have come says nothing better.
                let behind = self.latch.behind(told.seq).filter(|behind| !behind.is_empty() && told.seq > 0);
                let mut awaited: Vec<Peer> = match behind {
                    Some(ranks) => ranks.into_iter().map(|rank| self.job.peer(rank)).collect(),
                    None if matches!(told.message, Some((None, _))) => self.others_here(),
                    None => peers.into_iter().map(|peer| self.peer(peer)).collect(),
                };
                awaited.sort();
                awaited.dedup();
                let of = group.to_string();
                self.job.remind(&reminder::words(&awaited, told.signature, told.seq, &of, told.elapsed));
            }
        }
    }

    /// All whose health this is are on this host, and `has_ended` says whether the process of a member is gone.
    pub fn know(&self, has_ended: impl Fn(usize) -> bool + Send + Sync + 'static) {
        let _ = self.shared.neighbours.set((self.members.clone(), HasEnded(Box::new(has_ended))));
    }

    /// The end of a peer's process on this host, where nobody is left who would say so: the arbiter left before it. `seen` keeps whose end was seen at
    /// the last look, for what that rank gave before it is taken first.
    pub fn ended_unheard(
        &self,
        peers: impl IntoIterator<Item = usize>,
        seen: &mut Option<usize>,
    ) -> Option<Cause> {
        let (members, HasEnded(has_ended)) = self.shared.neighbours.get()?;
        if self.job.membership().has_arbiter() {
            return None;
        }
        let place = |rank| members.iter().position(|&member| member == rank);
        let mut ranks = peers.into_iter().map(|peer| self.members[peer]);
        let ended = ranks.find(|&rank| place(rank).is_some_and(has_ended))?;
        let is_known = seen.replace(ended) == Some(ended);
        is_known.then(|| Cause::Lost { peer: self.job.peer(ended), how: Loss::Died })
    }

    /// A peer of these that left, where ranks share memory: whatever it gave was there before its farewell was heard. `seen` keeps whose farewell
    /// had been heard at the last look, for what that rank gave is taken first.
    pub fn left_memory(
        &self,
        peers: impl IntoIterator<Item = usize>,
        seen: &mut Option<usize>,
    ) -> Option<Peer> {
        let mut ranks = peers.into_iter().map(|peer| self.members[peer]);
        let left = ranks.find(|&rank| self.latch.left_at(rank).is_some())?;
        let is_known = seen.replace(left) == Some(left);
        is_known.then(|| self.job.peer(left))
    }

    /// A peer of these that left some time ago.
    pub fn gone(&self, peers: impl IntoIterator<Item = usize>, now: Instant) -> Option<Peer> {
        self.gone_of(peers.into_iter().map(|peer| self.members[peer]), now)
    }

    /// Whether a peer has left, not this group, but the job, or is lost.
    pub fn has_left_job(&self, peer: usize) -> bool {
        self.job.membership().gone().contains(&self.members[peer])
    }

    /// A rank of the whole group that left some time ago, before it had come through collective `seq`.
    pub fn anybody_gone(&self, seq: u64, now: Instant) -> Option<Peer> {
        let members = self.latch.members().iter().copied();
        self.gone_of(members.filter(|&rank| self.latch.left_before(rank, seq)), now)
    }

    /// The ranks among these that are gone.
    fn gone_of(&self, mut ranks: impl Iterator<Item = usize>, now: Instant) -> Option<Peer> {
        let is_gone = |&rank: &usize| {
            let left = self.latch.left_at(rank);
            left.is_some_and(|at| now.saturating_duration_since(at) > FAREWELL_TIME)
        };
        ranks.find(is_gone).map(|rank| self.job.peer(rank))
    }

    /// A call as the error says it that it ends in.
    pub fn context(&self, told: ErrorContext<'_>) -> Context {
        Context {
            op: told.signature.op,
            seq: told.seq,
            site: Some(told.signature.site.clone()),
            envelope: self.envelope(told),
            group: self.latch.group(),
            members: self.latch.members().to_vec(),
            rank: self.members[self.rank],
            bytes: told.bytes,
            elapsed: told.elapsed,
            through: self.latch.through(),
        }
    }

    fn envelope(&self, told: ErrorContext<'_>) -> Option<Envelope> {
        told.message.map(|(peer, tag)| Envelope { peer: peer.map(|peer| self.members[peer]), tag })
    }

    /// Both sides of a disagreement.
    pub fn mismatch(
        &self,
        seq: u64,
        tag: Option<u64>,
        ours: Signature,
        peer: usize,
        theirs: Signature,
    ) -> Cause {
        let mut sides = [(self.peer(self.rank), ours), (self.peer(peer), theirs)];
        sides.sort_by_key(|(peer, _)| peer.rank);
        let [left, right] = sides;
        Cause::Mismatch { seq, tag, left, right }
    }
}

/// The words of a panic.
pub fn words_of(panic: &(dyn Any + Send)) -> &str {
    let words = panic.downcast_ref::<String>().map(String::as_str);
    words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words")
}

/// The name under which the members of a group meet before it is made.
fn meeting_of(group: GroupId) -> GroupId {
    /// Tells these names from those of groups, and of links between hosts.
    const MEETING: usize = usize::MAX - 2;
    GroupId(Signature::detail_of(&[group.0 as usize, MEETING]))
}

/// How long a call with this limit waits before it tells the arbiter.
pub fn stall_time(limit: Duration) -> Duration {
    STALL_TIME.min(limit / 2)
}

#[cfg(test)]
mod tests;
