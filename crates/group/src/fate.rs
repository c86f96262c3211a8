//! The fate of one group on one rank: whether it has failed, why, and how errors say so.

use crate::control::arbiter::Notice;
use crate::control::watch::Alarm;
use crate::realm::Realm;
use crate::trace::Trace;
use phalanx_core::{Cause, Context, Deadline, Error, GroupId, Loss, Peer, Result, Signature};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a collective waits before it tells the arbiter, which then sees who waits for something else.
const STALL_TIME: Duration = Duration::from_millis(500);
/// How long a rank that noticed trouble waits for the arbiter's verdict before it insists, and then before it believes its
/// own eyes.
const VERDICT_TIME: Duration = Duration::from_secs(1);
/// How long the arbiter's word is waited for where this rank saw only the effect of something.
#[cfg(target_os = "linux")]
const HEARSAY_TIME: Duration = Duration::from_secs(2);
/// How long after an orderly farewell a peer's last bytes may still be on their way.
pub(crate) const FAREWELL_TIME: Duration = Duration::from_secs(1);
/// Calls told to the arbiter, the current one included, for naming both sides of a late mismatch.
const HISTORY_LEN: usize = 64;

/// A call as errors describe it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told<'a> {
    pub(crate) signature: &'a Signature,
    /// Its place among the group's collectives; 0 for messages.
    pub(crate) seq: u64,
    /// Payload bytes received, and all there are to receive.
    pub(crate) bytes: (u64, u64),
    /// Since it was called.
    pub(crate) elapsed: Duration,
}

/// A call of the group, of which a backend performs a part. Errors tell of the whole.
#[cfg(target_os = "linux")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Whole<'a> {
    pub(crate) signature: &'a Signature,
    /// Its place among the group's collectives.
    pub(crate) seq: u64,
    /// Since when its time runs …
    pub(crate) called: Instant,
    /// … and how much of that there is.
    pub(crate) limit: Duration,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Fate {
    pub(crate) realm: Arc<dyn Realm>,
    pub(crate) alarm: Arc<Alarm>,
    /// Who works together here, as ranks of the job: all members of the group, or some of them. Peers count in this order.
    members: Vec<usize>,
    /// This rank among them.
    pub(crate) rank: usize,
    /// Whether the first cause was returned to the user; later calls say `Poisoned`.
    reported: Arc<AtomicBool>,
}

impl Fate {
    /// `members` are ranks of the job, in group order.
    pub(crate) fn new(realm: Arc<dyn Realm>, id: GroupId, members: Vec<usize>) -> Self {
        let alarm = realm.watch().alarm(id, members.clone());
        Self::of(realm, alarm, members, Arc::default())
    }

    /// The same fate, seen by `members` of the group (ranks of the job), which do a part of its work among themselves.
    #[cfg(target_os = "linux")]
    pub(crate) fn part(&self, members: Vec<usize>) -> Self {
        Self::of(self.realm.clone(), self.alarm.clone(), members, self.reported.clone())
    }

    fn of(realm: Arc<dyn Realm>, alarm: Arc<Alarm>, members: Vec<usize>, reported: Arc<AtomicBool>) -> Self {
        let rank = members.iter().position(|&m| m == realm.place().rank).expect("this rank is a member");
        Self { realm, alarm, members, rank, reported }
    }

    /// Who works together here, as ranks of the job.
    pub(crate) fn members(&self) -> &[usize] {
        &self.members
    }

    /// One of the members, as errors name it.
    pub(crate) fn peer(&self, rank: usize) -> Peer {
        self.realm.peer(self.members[rank])
    }

    /// How a peer is lost to which this rank finds no way.
    pub(crate) fn unreachable(&self) -> Loss {
        Loss::Unreachable { from: self.members[self.rank] }
    }

    /// This rank has begun a collective.
    pub(crate) fn remember(&self, seq: u64, signature: &Signature) {
        self.alarm.collectives.begin(seq, signature);
    }

    /// A collective has ended well.
    pub(crate) fn ended(&self, seq: u64, signature: &Signature) {
        self.alarm.collectives.end(seq, signature);
    }

    /// What this rank called at that place, if that was lately.
    pub(crate) fn recall(&self, seq: u64) -> Option<Signature> {
        self.alarm.collectives.find(seq)
    }

    /// Refuses if the group has failed.
    pub(crate) fn check(&self, signature: &Signature) -> Result<()> {
        let Some(cause) = self.alarm.cause() else { return Ok(()) };
        if self.reported.swap(true, Ordering::Relaxed) {
            return Err(Error::Poisoned { op: signature.op, cause: Box::new(cause.clone()) });
        }
        self.finish_trace();
        let told = Told { signature, seq: 0, bytes: (0, 0), elapsed: Duration::ZERO };
        Err(Error::from_cause(cause.clone(), self.context(told)))
    }

    /// Fails the group: reports `cause`, and returns the error for the cause that came first.
    pub(crate) fn fail(&self, cause: Cause, told: Told<'_>) -> Error {
        if !self.report(&cause) {
            self.alarm.raise(self.own_view(cause.clone(), told.seq > 0));
        }
        let first = self.alarm.cause().cloned().unwrap_or(cause);
        self.failed(first, told)
    }

    /// The error for the cause for which the group has failed.
    pub(crate) fn failed(&self, cause: Cause, told: Told<'_>) -> Error {
        self.finish_trace();
        self.reported.store(true, Ordering::Relaxed);
        Error::from_cause(cause, self.context(told))
    }

    /// The error for what went wrong elsewhere, if that is heard of soon.
    #[cfg(target_os = "linux")]
    pub(crate) fn heard(&self, told: Told<'_>) -> Option<Error> {
        let first = self.alarm.wait(&Deadline::after(Instant::now(), HEARSAY_TIME))?;
        Some(self.failed(first.clone(), told))
    }

    /// The call was late and that is an error: the group has failed.
    pub(crate) fn timed_out(&self, peers: impl IntoIterator<Item = usize>, told: Told<'_>) -> Error {
        let mut missing: Vec<Peer> = peers.into_iter().map(|peer| self.peer(peer)).collect();
        missing.sort();
        missing.dedup();
        let (op, seq, reporter) = (told.signature.op, told.seq, self.peer(self.rank));
        self.fail(Cause::TimedOut { reporter, op, seq, waited: told.elapsed, missing }, told)
    }

    /// Tells the arbiter and waits for its verdict, twice: it may have doubts. Whether a verdict came.
    pub(crate) fn report(&self, cause: &Cause) -> bool {
        (0..2).any(|_| {
            self.notify(cause);
            self.alarm.wait(&Deadline::after(Instant::now(), VERDICT_TIME)).is_some()
        })
    }

    /// Where the line is broken already, a verdict that came over it before may still have to be heard.
    fn notify(&self, cause: &Cause) {
        let (group, members) = (self.alarm.group(), self.alarm.members().to_vec());
        let _ = self.realm.control().send(Notice::Failed { group, members, cause: cause.clone() });
    }

    /// What to believe without a verdict. The arbiter is on rank 0: if that has left, nobody decides who of the others was
    /// lost first, but all know of this one, and a collective could not do without it.
    fn own_view(&self, cause: Cause, in_collective: bool) -> Cause {
        let has_left = |rank| self.alarm.members().contains(&rank) && self.alarm.left_at(rank).is_some();
        let left = |peer| Cause::Lost { peer, how: Loss::Left };
        match cause {
            Cause::Lost { .. } if in_collective && has_left(0) => left(self.realm.peer(0)),
            Cause::Lost { peer, .. } if has_left(peer.rank) => left(peer),
            other => other,
        }
    }

    /// Fails the group on all its ranks.
    pub(crate) fn abort(&self, reason: &str) {
        if self.alarm.cause().is_none() {
            let cause = Cause::Aborted { peer: self.peer(self.rank), reason: reason.to_owned() };
            if !self.report(&cause) {
                self.alarm.raise(cause);
            }
            self.finish_trace();
        }
    }

    /// A thread of this rank is unwinding: the others are told why, before the closing links look like a death. What is in
    /// flight here ends as well.
    pub(crate) fn panicked(&self) {
        if self.alarm.cause().is_none() {
            let cause = Cause::Lost { peer: self.peer(self.rank), how: Loss::Panicked };
            self.notify(&cause);
            // Where the arbiter is on this rank, its word has reached the others when it is heard here. Without the line, the closing
            // links say as much as can be said.
            let verdict = self.alarm.wait(&Deadline::after(Instant::now(), VERDICT_TIME)).is_some();
            if !verdict {
                self.alarm.raise(cause);
            }
            self.finish_trace();
        }
    }

    /// Does what others on this rank wait for: a panic in it becomes an error, and fails the group.
    pub(crate) fn contain<R>(&self, work: impl FnOnce() -> R) -> Result<R> {
        catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
            self.reported.store(true, Ordering::Relaxed);
            self.panicked();
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words");
            Error::Internal { what: format!("the progress thread panicked: {words}") }
        })
    }

    /// What this rank did lately, in all its groups.
    pub(crate) fn trace(&self) -> Trace {
        self.realm.watch().trace("the program asked for it")
    }

    /// Who hears that the group has failed may end the process: before that, what led to it is written.
    fn finish_trace(&self) {
        self.realm.watch().recorder.finish_writing();
    }

    /// Tells the arbiter where this rank waits: it sees who waits elsewhere.
    pub(crate) fn stalled(&self) {
        let (group, calls) = (self.alarm.group(), self.alarm.collectives.latest(HISTORY_LEN));
        // If the line is broken, the watch knows.
        let _ = self.realm.control().send(Notice::Stalled { group, calls });
    }

    /// A peer of these that left some time ago.
    pub(crate) fn gone(&self, peers: impl IntoIterator<Item = usize>, now: Instant) -> Option<Peer> {
        self.gone_of(peers.into_iter().map(|peer| self.members[peer]), now)
    }

    /// A rank of the whole group that left some time ago.
    #[cfg(target_os = "linux")]
    pub(crate) fn anybody_gone(&self, now: Instant) -> Option<Peer> {
        self.gone_of(self.alarm.members().iter().copied(), now)
    }

    /// Of these ranks of the job.
    fn gone_of(&self, mut ranks: impl Iterator<Item = usize>, now: Instant) -> Option<Peer> {
        let is_gone = |&rank: &usize| {
            let left = self.alarm.left_at(rank);
            left.is_some_and(|at| now.saturating_duration_since(at) > FAREWELL_TIME)
        };
        ranks.find(is_gone).map(|rank| self.realm.peer(rank))
    }

    pub(crate) fn context(&self, told: Told<'_>) -> Context {
        Context {
            op: told.signature.op,
            seq: told.seq,
            group: self.alarm.group(),
            rank: self.members[self.rank],
            world_size: self.alarm.members().len(),
            bytes: told.bytes,
            elapsed: told.elapsed,
        }
    }

    /// Both sides of a disagreement.
    pub(crate) fn mismatch(&self, seq: u64, ours: Signature, peer: usize, theirs: Signature) -> Cause {
        let mut sides = [(self.peer(self.rank), ours), (self.peer(peer), theirs)];
        sides.sort_by_key(|(peer, _)| peer.rank);
        let [left, right] = sides;
        Cause::Mismatch { seq, left, right }
    }
}

/// How long a call with this limit waits before it tells the arbiter.
pub(crate) fn stall_time(limit: Duration) -> Duration {
    STALL_TIME.min(limit / 2)
}
