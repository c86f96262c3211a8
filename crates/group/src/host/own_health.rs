//! The health of a group for a backend that another crate writes, and that performs operations itself.

use crate::control::failure_report::SETTLE_TIME;
use crate::control::group_health::GroupHealth;
use crate::host::call_check::{CallCheck, WaitEnds};
use crate::trace::{Trace, clock};
use phalanx_core::{Cause, Deadline, Error, GroupId, Peer, Result, Signature, WORLD};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The health of one group on one rank: whether it has failed and why, and the errors that say so on every rank.
///
/// A backend takes one from its [`JobHandle`](crate::JobHandle::health) for each group, and keeps it for as long as the group lives. Dropping it
/// leaves the group: from then on ranks that wait for this one are told that it left.
///
/// # Examples
/// The collectives of a backend begin with [`begin`](Self::begin). A rank that waits looks around every few milliseconds:
/// ```
/// use phalanx_core::{Result, Signature};
/// use phalanx_group::Health;
/// use std::time::Duration;
///
/// fn wait_for(health: &Health, call: &Signature, limit: Duration, has_come: impl Fn(usize) -> bool) -> Result<()> {
///     let mut running = health.begin(call, limit)?;
///     for rank in 0..health.members().len() {
///         while !has_come(rank) {
///             std::thread::sleep(Duration::from_millis(5));
///             running.wait_for(rank)?; // an error names the rank that is lost, late, or failed the group
///         }
///     }
///     running.done();
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Health {
    health: GroupHealth,
    /// Collectives begun.
    seq: AtomicU64,
}

impl Health {
    pub(crate) fn new(health: GroupHealth) -> Self {
        Self { health, seq: AtomicU64::new(0) }
    }

    pub(crate) fn inner(&self) -> &GroupHealth {
        &self.health
    }

    /// The group, for [`Backend::id`](crate::Backend::id).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::Health;
    /// fn is_of_all_ranks(health: &Health) -> bool {
    ///     health.id() == phalanx_core::WORLD
    /// }
    /// ```
    pub fn id(&self) -> GroupId {
        self.health.latch.group()
    }

    /// This rank in the group.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::Health;
    /// fn is_first(health: &Health) -> bool {
    ///     health.rank() == 0
    /// }
    /// ```
    pub fn rank(&self) -> usize {
        self.health.rank
    }

    /// The members as ranks of the job, in the order of the group.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::Health;
    /// fn rank_in_job(health: &Health) -> usize {
    ///     health.members()[health.rank()]
    /// }
    /// ```
    pub fn members(&self) -> &[usize] {
        self.health.members()
    }

    /// A rank of the group, as errors name it.
    ///
    /// # Panics
    /// If there is no such rank.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::Health;
    /// fn complaint(health: &Health, rank: usize) -> String {
    ///     format!("{} sent nonsense", health.peer(rank)) // rank 3 (host-a:4711) sent nonsense
    /// }
    /// ```
    pub fn peer(&self, rank: usize) -> Peer {
        self.health.peer(rank)
    }

    /// Why the group has failed, if it has.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::Health;
    /// fn is_usable(health: &Health) -> bool {
    ///     health.failure().is_none()
    /// }
    /// ```
    pub fn failure(&self) -> Option<Cause> {
        self.health.latch.cause().cloned()
    }

    /// Fails the group on all its ranks, unless it has failed, and returns the first cause. Waits for the arbiter's verdict, some milliseconds.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Cause;
    /// # use phalanx_group::Health;
    /// fn abort(health: &Health, reason: &str) -> Cause {
    ///     let peer = health.peer(health.rank());
    ///     health.fail(Cause::Aborted { peer, reason: reason.to_owned() })
    /// }
    /// ```
    pub fn fail(&self, cause: Cause) -> Cause {
        self.health.give_up(cause)
    }

    /// What this rank did lately, in all its groups.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::Health;
    /// // For `Backend::trace`:
    /// fn trace(health: &Health) -> Option<phalanx_group::trace::Trace> {
    ///     Some(health.trace())
    /// }
    /// ```
    pub fn trace(&self) -> Trace {
        self.health.trace()
    }

    /// Ends an orderly life, for [`Backend::leave`](crate::Backend::leave): of the group of all ranks, waits at most `timeout` and a moment until
    /// the others have left too.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::Health;
    /// // For `Backend::leave`:
    /// fn leave(health: &Health) {
    ///     health.leave(std::time::Duration::from_secs(30));
    /// }
    /// ```
    pub fn leave(&self, timeout: Duration) {
        if self.id() == WORLD {
            self.health.job.leave(&Deadline::after(Instant::now(), timeout + SETTLE_TIME));
        }
    }

    /// Begins the next collective of the group, which may take `limit`. All ranks begin their collectives in one order, one after the other; a
    /// [`CallQueue`](crate::CallQueue) keeps it where some of them are asynchronous.
    ///
    /// # Errors
    /// The group has failed: [`Poisoned`](Error::Poisoned), or the first cause where this rank has not heard of it yet.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::{Result, Signature};
    /// # use phalanx_group::Health;
    /// fn place(health: &Health, call: &Signature) -> Result<u64> {
    ///     let running = health.begin(call, std::time::Duration::from_secs(60))?;
    ///     Ok(running.seq())
    /// }
    /// ```
    pub fn begin<'a>(&'a self, signature: &'a Signature, limit: Duration) -> Result<Running<'a>> {
        self.health.check(signature, || self.seq.load(Ordering::Acquire) + 1)?;
        let seq = self.seq.fetch_add(1, Ordering::AcqRel) + 1;
        self.health.remember(seq, signature, clock::now);
        let called = Instant::now();
        Ok(Running { check: CallCheck::new(&self.health, signature, seq, limit), called })
    }
}

impl Drop for Health {
    fn drop(&mut self) {
        if self.health.is_here() && std::thread::panicking() {
            self.health.panicked();
        }
    }
}

/// A collective that a backend has [begun](Health::begin) and that is not over.
#[derive(Debug)]
pub struct Running<'a> {
    check: CallCheck<'a>,
    called: Instant,
}

impl Running<'_> {
    /// The collective's place in the group: 1 for the first. The same on all ranks, for they call in one order.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::Running;
    /// /// Under which the parts of one collective are found.
    /// fn key(running: &Running<'_>) -> String {
    ///     format!("collective {}", running.seq())
    /// }
    /// ```
    pub fn seq(&self) -> u64 {
        self.check.seq
    }

    /// To be called every 5 to 50 milliseconds while this rank waits for `rank`, a rank of the group. It reads a clock, and tells the arbiter where
    /// this rank waits once that takes half a second.
    ///
    /// # Errors
    /// The call is over: `rank` is lost or has left, the time is up, or the group has failed. The group has failed then on all its ranks, and the error
    /// is that of the first cause.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::Running;
    /// fn wait(running: &mut Running<'_>, rank: usize, has_come: impl Fn() -> bool) -> phalanx_core::Result<()> {
    ///     while !has_come() {
    ///         std::thread::sleep(std::time::Duration::from_millis(5));
    ///         running.wait_for(rank)?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    pub fn wait_for(&mut self, rank: usize) -> Result<()> {
        let waited = self.called.elapsed();
        let Err(WaitEnds) = self.check.look(rank, waited) else { return Ok(()) };
        if let Some(error) = self.check.error() {
            return Err(error);
        }
        let (health, told) = (self.check.health, self.check.told());
        let first =
            health.latch.cause().cloned().unwrap_or_else(|| health.own_fault("the wait was given up"));
        let error = health.failed(first, told);
        health.finish_trace();
        Err(error)
    }

    /// `rank` has called something else at this place: fails the group, and returns the error that names both call sites.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::{Error, Signature};
    /// # use phalanx_group::Running;
    /// fn compare(running: &Running<'_>, ours: &Signature, rank: usize, theirs: Signature) -> Result<(), Error> {
    ///     if theirs.matches(ours) { Ok(()) } else { Err(running.mismatch(rank, theirs)) }
    /// }
    /// ```
    pub fn mismatch(&self, rank: usize, theirs: Signature) -> Error {
        let check = &self.check;
        let cause = check.health.mismatch(check.seq, None, check.signature.clone(), rank, theirs);
        check.health.fail(cause, check.told())
    }

    /// Fails the group for `cause`, and returns the error for the cause that came first.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::{Cause, Error, Loss, Peer};
    /// # use phalanx_group::Running;
    /// fn link_closed(running: &Running<'_>, peer: Peer) -> Error {
    ///     running.fail(Cause::Lost { peer, how: Loss::Died })
    /// }
    /// ```
    pub fn fail(&self, cause: Cause) -> Error {
        self.check.health.fail(cause, self.check.told())
    }

    /// The collective has ended well on this rank.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::{Result, Signature};
    /// # use phalanx_group::Health;
    /// fn nothing_to_do(health: &Health, call: &Signature) -> Result<()> {
    ///     health.begin(call, std::time::Duration::from_secs(60))?.done();
    ///     Ok(())
    /// }
    /// ```
    pub fn done(self) {
        self.check.health.ended(self.check.seq, self.check.signature, clock::now);
    }
}
