//! Whether a group has failed on this rank, and why: set once, and everybody who waits is woken.

use crate::changes::Changes;
use crate::limits::CALLS_MAX;
use crate::lock::lock;
use crate::notice::{Notice, Through};
use crate::runtime::Runtime;
use phalanx_core::{Cause, Deadline, GroupId};
use phalanx_trace::{GroupRecord, Log};
use phalanx_transport::{Tally, Waker};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

mod standing;

/// The health of one group on this rank.
#[derive(Debug)]
pub struct FailureLatch {
    group: GroupId,
    /// Ranks of the job, in group order.
    members: Vec<usize>,
    cause: OnceLock<Verdicted>,
    raised: AtomicBool,
    /// Ranks of the job that left it, or this group, and when that became known here.
    left: Mutex<BTreeMap<usize, Departure>>,
    changes: Changes,
    runtime: Arc<dyn Runtime>,
    /// Whether the program has got the error for the cause; later calls say that the group is poisoned.
    pub returned: AtomicBool,
    /// The ranks that have not come to a collective, and its number, as the arbiter said last.
    behind: Mutex<Option<(u64, Vec<usize>)>>,
    /// The group's latest operations on this rank.
    pub collectives: Log,
    /// The same of its point-to-point messages.
    pub messages: Log,
    /// The counts of bytes that have moved over the links of the group, each with its members.
    links: Mutex<Vec<(Vec<usize>, Arc<Tally>)>>,
    /// Receives that need not get anything.
    pub in_vain: AtomicUsize,
    /// Whether a collective takes messages off the links while it waits.
    pub takes_messages: AtomicBool,
    on_failure: OnFailure,
}

/// Why a group has failed.
#[derive(Debug)]
struct Verdicted {
    cause: Cause,
    /// How that came into this group, if it happened in another.
    through: Through,
}

/// A rank that left.
#[derive(Debug, Clone)]
pub(super) struct Departure {
    pub(super) at: Instant,
    /// For what one of its operations had failed before, if that was so.
    pub(super) after: Option<Cause>,
    /// The group of which it said how far it came, and its last collective there that ended well; 0 for none.
    pub(super) finished: (GroupId, u64),
}

/// Takes the cause of a failure, and words for it.
type TakesCause = dyn Fn(&Cause, String) + Send + Sync;

/// A function that gets the cause before anybody else hears of it.
pub(super) struct OnFailure(pub(super) Box<TakesCause>);

impl fmt::Debug for OnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnFailure")
    }
}

impl FailureLatch {
    /// The latch of a group that has not failed. `members` are ranks of the job, in group order; `left` those that are gone already; `log_len` operations
    /// of each kind are remembered.
    pub(super) fn new(
        group: GroupId,
        members: Vec<usize>,
        left: BTreeMap<usize, Departure>,
        log_len: usize,
        runtime: Arc<dyn Runtime>,
        on_failure: OnFailure,
    ) -> Self {
        Self {
            group,
            members,
            cause: OnceLock::new(),
            raised: AtomicBool::new(false),
            left: Mutex::new(left),
            changes: Changes::default(),
            runtime,
            behind: Mutex::default(),
            collectives: Log::new(log_len),
            messages: Log::new(log_len),
            links: Mutex::default(),
            returned: AtomicBool::new(false),
            in_vain: AtomicUsize::new(0),
            takes_messages: AtomicBool::new(true),
            on_failure,
        }
    }

    /// The arbiter has said who has not come to collective `seq`.
    pub(super) fn fall_behind(&self, seq: u64, ranks: Vec<usize>) {
        *lock(&self.behind) = Some((seq, ranks));
    }

    /// Ranks of the job, in group order.
    pub fn members(&self) -> &[usize] {
        &self.members
    }

    /// The group.
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// Why the group has failed, if it has. One atomic load while it has not.
    pub fn cause(&self) -> Option<&Cause> {
        if self.raised.load(Ordering::Acquire) { self.first_cause() } else { None }
    }

    /// The rank that brought the cause into this group by leaving or ending, if it happened in another.
    pub fn through(&self) -> Through {
        self.cause.get()?.through.clone()
    }

    /// Like [`cause`](Self::cause), but visible while the failure is still being published.
    pub fn first_cause(&self) -> Option<&Cause> {
        self.cause.get().map(|verdict| &verdict.cause)
    }

    /// Fails the group, unless it has failed already, and wakes all its sleepers.
    pub fn raise(&self, cause: Cause, through: Through) {
        let reason = format!("{}: {cause}", self.group);
        if self.cause.set(Verdicted { cause, through }).is_ok() {
            // Before anybody hears of it, and may end the process.
            if let Some(verdict) = self.cause.get() {
                (self.on_failure.0)(&verdict.cause, reason);
            }
            self.raised.store(true, Ordering::Release);
        }
        self.changes.tell();
    }

    /// Waits for somebody else to raise it.
    pub fn wait(&self, deadline: &Deadline) -> Option<&Cause> {
        loop {
            let seen = self.changes.seen();
            if let Some(cause) = self.cause() {
                return Some(cause);
            }
            let left = deadline.remaining(self.runtime.now());
            if left.is_zero() {
                return None;
            }
            self.runtime.sleep(&self.changes, seen, left);
        }
    }

    /// The group has links between these members, ranks of the job.
    pub fn has_links(&self, members: Vec<usize>, tally: Arc<Tally>) {
        lock(&self.links).push((members, tally));
    }

    /// This rank's record of the group's latest operations.
    pub fn record(&self) -> GroupRecord<'_> {
        GroupRecord {
            group: self.group,
            members: &self.members,
            failed: self.first_cause(),
            collectives: &self.collectives,
            messages: &self.messages,
        }
    }

    /// The number of the collective that is called next, if all before it were remembered.
    pub fn next_collective(&self) -> u64 {
        self.collectives.open_collective().1 + 1
    }

    /// The group's latest collectives on this rank, as the arbiter wants to know them.
    pub fn calls(&self) -> Notice {
        Notice::Calls { group: self.group, calls: self.collectives.latest(CALLS_MAX) }
    }

    /// When it became known that `rank` (of the job) left.
    pub fn left_at(&self, rank: usize) -> Option<Instant> {
        lock(&self.left).get(&rank).map(|departure| departure.at)
    }

    /// The members that have not left.
    pub fn still_here(&self) -> Vec<usize> {
        let left = lock(&self.left);
        self.members.iter().copied().filter(|member| !left.contains_key(member)).collect()
    }

    /// The member that left last, if all but `rank` (of the job) have.
    pub fn last_to_leave(&self, rank: usize) -> Option<(usize, Instant)> {
        let left = lock(&self.left);
        if left.len() + 1 < self.members.len() {
            return None;
        }
        let others = self.members.iter().filter(|&&member| member != rank);
        let departures = others.map(|&member| Some((member, left.get(&member)?.at)));
        departures.collect::<Option<Vec<_>>>()?.into_iter().max_by_key(|(_, at)| *at)
    }

    /// For what an operation of `rank` had failed before it left, if that was so.
    pub fn left_after(&self, rank: usize) -> Option<Cause> {
        lock(&self.left).get(&rank)?.after.clone()
    }

    /// Whether `rank` (of the job) left, and is not known to have come through collective `seq` before: the others need it there. Nobody is known to have
    /// come through what has no number (`seq` 0).
    pub fn left_before(&self, rank: usize, seq: u64) -> bool {
        let left = lock(&self.left);
        left.get(&rank).is_some_and(|Departure { finished: (group, last), .. }| {
            seq == 0 || *group != self.group || *last < seq
        })
    }

    /// The first of the members that [left before](Self::left_before) this collective.
    pub fn first_that_left_before(&self, seq: u64) -> Option<usize> {
        self.members.iter().copied().find(|&member| self.left_before(member, seq))
    }

    /// The notice with which this rank leaves the group in order, and stays in the job.
    pub fn farewell(&self) -> Notice {
        let (group, members, finished) = (self.group, self.members.clone(), self.collectives.finished());
        Notice::LeaveGroup { group, members, finished }
    }

    pub(super) fn leaves(&self, rank: usize, departure: Departure) {
        lock(&self.left).entry(rank).or_insert(departure);
        self.changes.tell();
    }

    /// The ranks of the job that have not come to this collective, if the arbiter was asked and has answered.
    pub fn behind(&self, seq: u64) -> Option<Vec<usize>> {
        lock(&self.behind).clone().filter(|(of, _)| *of == seq).map(|(_, ranks)| ranks)
    }

    /// Wakes `waker` when anything changes, until [`hush`](Self::hush).
    pub fn listen(&self, waker: &Waker) {
        self.changes.listen(waker);
    }

    /// Undoes [`listen`](Self::listen).
    pub fn hush(&self, waker: &Waker) {
        self.changes.hush(waker);
    }
}
