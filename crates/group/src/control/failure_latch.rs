//! Whether a group has failed on this rank, and why: set once, and everybody who waits is woken.

use super::limits::CALLS_MAX;
use super::notice::{Notice, Through};
use phalanx_core::{Cause, Deadline, GroupId};
use phalanx_trace::{GroupRecord, Log};
use phalanx_transport::{Tally, Waker};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

mod standing;

/// The health of one group on this rank.
#[derive(Debug)]
pub(crate) struct FailureLatch {
    group: GroupId,
    /// Ranks of the job, in group order.
    members: Vec<usize>,
    cause: OnceLock<Verdicted>,
    raised: AtomicBool,
    /// Ranks of the job that left it, or this group, and when that became known here.
    left: Mutex<BTreeMap<usize, Departure>>,
    wakers: Mutex<Vec<Waker>>,
    heard: (Mutex<()>, Condvar),
    /// Whether the program has got the error for the cause; later calls say that the group is poisoned.
    pub(crate) returned: AtomicBool,
    /// The ranks that have not come to a collective, and its number, as the arbiter said last.
    behind: Mutex<Option<(u64, Vec<usize>)>>,
    /// The group's latest operations on this rank.
    pub(crate) collectives: Log,
    pub(crate) messages: Log,
    /// What has moved over the links of the group, each with its members.
    links: Mutex<Vec<(Vec<usize>, Arc<Tally>)>>,
    /// Receives that need not get anything.
    pub(crate) in_vain: AtomicUsize,
    /// Whether a collective takes messages off the links while it waits.
    pub(crate) takes_messages: AtomicBool,
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
}

/// Takes the cause of a failure, and words for it.
type TakesCause = dyn Fn(&Cause, String) + Send + Sync;

/// What is done with the cause before anybody hears of it.
pub(super) struct OnFailure(pub(super) Box<TakesCause>);

impl fmt::Debug for OnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnFailure")
    }
}

impl FailureLatch {
    /// Of a group that has not failed. `members` are ranks of the job, in group order; `left` those that are gone already; `log_len` operations
    /// of each kind are remembered.
    pub(super) fn new(
        group: GroupId,
        members: Vec<usize>,
        left: BTreeMap<usize, Departure>,
        log_len: usize,
        on_failure: OnFailure,
    ) -> Self {
        Self {
            group,
            members,
            cause: OnceLock::new(),
            raised: AtomicBool::new(false),
            left: Mutex::new(left),
            wakers: Mutex::default(),
            heard: Default::default(),
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

    pub(crate) fn members(&self) -> &[usize] {
        &self.members
    }

    pub(crate) fn group(&self) -> GroupId {
        self.group
    }

    /// Why the group has failed, if it has. One atomic load while it has not.
    pub(crate) fn cause(&self) -> Option<&Cause> {
        if self.raised.load(Ordering::Acquire) { self.first_cause() } else { None }
    }

    /// The rank that brought the cause into this group by leaving or ending, if it happened in another.
    pub(crate) fn through(&self) -> Through {
        self.cause.get()?.through.clone()
    }

    /// Like [`cause`](Self::cause), but visible while the failure is still being published.
    pub(crate) fn first_cause(&self) -> Option<&Cause> {
        self.cause.get().map(|verdict| &verdict.cause)
    }

    /// Fails the group, unless it has failed already, and wakes all its sleepers.
    pub(crate) fn raise(&self, cause: Cause, through: Through) {
        let reason = format!("{}: {cause}", self.group);
        if self.cause.set(Verdicted { cause, through }).is_ok() {
            // Before anybody hears of it, and may end the process.
            if let Some(verdict) = self.cause.get() {
                (self.on_failure.0)(&verdict.cause, reason);
            }
            self.raised.store(true, Ordering::Release);
            let _heard = lock(&self.heard.0);
            self.heard.1.notify_all();
        }
        self.wake();
    }

    /// Waits for somebody else to raise it.
    pub(crate) fn wait(&self, deadline: &Deadline) -> Option<&Cause> {
        let mut heard = lock(&self.heard.0);
        while !self.raised.load(Ordering::Acquire) {
            let left = deadline.remaining(Instant::now());
            if left.is_zero() {
                return None;
            }
            heard = self.heard.1.wait_timeout(heard, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(heard);
        self.cause()
    }

    /// The group has links between these members, ranks of the job.
    pub(crate) fn has_links(&self, members: Vec<usize>, tally: Arc<Tally>) {
        lock(&self.links).push((members, tally));
    }

    /// What this rank remembers of the group.
    pub(crate) fn record(&self) -> GroupRecord<'_> {
        GroupRecord {
            group: self.group,
            members: &self.members,
            failed: self.first_cause(),
            collectives: &self.collectives,
            messages: &self.messages,
        }
    }

    /// The group's latest collectives on this rank, as the arbiter wants to know them.
    pub(crate) fn calls(&self) -> Notice {
        Notice::Calls { group: self.group, calls: self.collectives.latest(CALLS_MAX) }
    }

    /// When it became known that `rank` (of the job) left.
    pub(crate) fn left_at(&self, rank: usize) -> Option<Instant> {
        lock(&self.left).get(&rank).map(|departure| departure.at)
    }

    /// For what an operation of `rank` had failed before it left, if that was so.
    pub(crate) fn left_after(&self, rank: usize) -> Option<Cause> {
        lock(&self.left).get(&rank)?.after.clone()
    }

    pub(super) fn leaves(&self, rank: usize, departure: Departure) {
        lock(&self.left).entry(rank).or_insert(departure);
        self.wake();
    }

    /// The ranks of the job that have not come to this collective, if the arbiter was asked and has answered.
    pub(crate) fn behind(&self, seq: u64) -> Option<Vec<usize>> {
        lock(&self.behind).clone().filter(|(of, _)| *of == seq).map(|(_, ranks)| ranks)
    }

    /// Wakes `waker` when anything changes, until [`hush`](Self::hush).
    pub(crate) fn listen(&self, waker: &Waker) {
        lock(&self.wakers).push(waker.clone());
    }

    /// Undoes [`listen`](Self::listen).
    pub(crate) fn hush(&self, waker: &Waker) {
        lock(&self.wakers).retain(|other| !other.is(waker));
    }

    fn wake(&self) {
        lock(&self.wakers).iter().for_each(Waker::wake);
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
