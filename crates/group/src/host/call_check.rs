//! The state of a collective whose rank waits for others: the clock, the failure latch, who left.

use crate::control::group_health::{ErrorContext, GroupHealth, ParentCall, stall_time};
use crate::control::reminder::Reminder;
use crate::control::runtime::Here;
use phalanx_core::{Cause, Error, Loss, Signature};
use std::time::{Duration, Instant};

/// One collective that waits, on one rank.
#[derive(Debug)]
pub(crate) struct CallCheck<'a> {
    pub(crate) health: &'a GroupHealth,
    pub(crate) signature: &'a Signature,
    /// Its place among the group's collectives; 0 for what is none.
    pub(crate) seq: u64,
    limit: Duration,
    /// Since when its time runs: when it first had to wait for long, or before.
    since: Option<Instant>,
    /// The ranks share memory: of one that has left, nothing is on its way.
    in_memory: bool,
    /// Once it has waited long enough to look around.
    wait: Option<Box<LongWait>>,
}

/// What a check knows of a wait that takes long. Most calls do not wait long, so this is in a box.
#[derive(Debug, Default)]
struct LongWait {
    /// The arbiter knows that we wait.
    stalled: bool,
    /// The thread is known to wait.
    here: Here,
    reminder: Option<Reminder>,
    /// The rank of the job that had left at the last look, where they do.
    left: Option<usize>,
    /// The rank of the job whose process had ended at the last look.
    ended: Option<usize>,
    seen: Option<Seen>,
}

/// What ends the wait.
#[derive(Debug)]
enum Seen {
    /// The group has failed.
    Failure,
    /// Time is up, and this rank has not come.
    Late(usize),
    /// A rank left, or has ended.
    Gone(Box<Cause>),
}

/// The wait is over without what was waited for: the check knows why.
#[derive(Debug)]
pub(crate) struct WaitEnds;

impl<'a> CallCheck<'a> {
    #[inline(always)]
    pub(crate) fn new(health: &'a GroupHealth, signature: &'a Signature, seq: u64, limit: Duration) -> Self {
        Self { health, signature, seq, limit, since: None, in_memory: false, wait: None }
    }

    /// For a part of a call, whose time is running.
    pub(crate) fn of_part(health: &'a GroupHealth, whole: ParentCall<'a>) -> Self {
        let ParentCall { signature, seq, called, limit } = whole;
        Self { since: Some(called), ..Self::new(health, signature, seq, limit) }
    }

    /// For ranks that share memory.
    #[inline(always)]
    pub(crate) fn in_memory(self) -> Self {
        Self { in_memory: true, ..self }
    }

    /// Whether anybody was waited for long enough to look around.
    pub(crate) fn has_waited(&self) -> bool {
        self.since.is_some()
    }

    /// The call as errors describe it.
    pub(crate) fn told(&self) -> ErrorContext<'a> {
        let elapsed = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        self.after(elapsed)
    }

    fn after(&self, elapsed: Duration) -> ErrorContext<'a> {
        ErrorContext { signature: self.signature, seq: self.seq, message: None, bytes: (0, 0), elapsed }
    }

    /// The error for what a look has seen, unless that is no more than that the group has failed.
    pub(crate) fn error(&mut self) -> Option<Error> {
        let told = self.told();
        match self.wait.as_mut()?.seen.take()? {
            Seen::Failure => None,
            Seen::Late(peer) => Some(self.health.timed_out([peer], told)),
            Seen::Gone(cause) => Some(self.health.fail(*cause, told)),
        }
    }

    /// For how long its time has been running at `now`, of which the last wait, for `peer`, took `waited`.
    pub(crate) fn elapsed(
        &mut self,
        peer: usize,
        waited: Duration,
        now: Instant,
    ) -> Result<Duration, WaitEnds> {
        if self.health.latch.cause().is_some() {
            return self.ends(Seen::Failure);
        }
        let since = *self.since.get_or_insert(now.checked_sub(waited).unwrap_or(now));
        let elapsed = now.saturating_duration_since(since);
        if elapsed >= self.limit {
            return self.ends(Seen::Late(peer));
        }
        Ok(elapsed)
    }

    /// Looks around, as is due every few milliseconds while `peer` has not come, which this wait has been for `waited`.
    pub(crate) fn look(&mut self, peer: usize, waited: Duration) -> Result<(), WaitEnds> {
        let now = Instant::now();
        let elapsed = self.elapsed(peer, waited, now)?;
        let told = self.after(elapsed);
        let wait = self.wait.get_or_insert_default();
        if self.in_memory
            && let Some(peer) = self.health.left_memory([peer], &mut wait.left)
        {
            return self.ends(Seen::Gone(Box::new(Cause::Lost { peer, how: Loss::Left })));
        }
        if elapsed < stall_time(self.limit) {
            return Ok(());
        }
        if !std::mem::replace(&mut wait.stalled, true) && self.seq > 0 {
            self.health.stalled();
            wait.here = self.health.waits();
        }
        let reminder = wait.reminder.get_or_insert_with(|| Reminder::new(self.limit, elapsed));
        self.health.remind(reminder, [peer], told);
        if let Some(peer) = self.health.gone([peer], now) {
            return self.ends(Seen::Gone(Box::new(Cause::Lost { peer, how: Loss::Left })));
        }
        if let Some(cause) = self.health.ended_unheard([peer], &mut wait.ended) {
            return self.ends(Seen::Gone(Box::new(cause)));
        }
        Ok(())
    }

    fn ends<T>(&mut self, seen: Seen) -> Result<T, WaitEnds> {
        self.wait.get_or_insert_default().seen = Some(seen);
        Err(WaitEnds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::thread_job::ThreadJob;
    use phalanx_core::{CallSite, OpKind, WORLD};
    use std::sync::Arc;

    /// Whatever time has passed since the farewell: it counts from the second look on, for what came before it is taken after the first.
    #[test]
    fn who_has_left_is_gone_at_once_where_ranks_share_memory() {
        let minute = Duration::from_secs(60);
        let mut jobs = ThreadJob::create(2, minute).into_iter();
        let mut health = || GroupHealth::new(Arc::new(jobs.next().expect("two")), WORLD, vec![0, 1]);
        let (zero, one) = (health(), health());
        let signature = Signature::bare(OpKind::Barrier, CallSite::caller());
        let mut there = CallCheck::new(&zero, &signature, 1, minute).in_memory();
        (0..2).for_each(|_| there.look(1, Duration::ZERO).expect("nobody has left"));
        drop(one);
        assert!(zero.latch.left_at(1).is_some());
        there.look(1, Duration::ZERO).expect("what it gave before may lie there");
        there.look(1, Duration::ZERO).expect_err("it does not");
        let error = there.error().expect("it knows why");
        let is_it =
            |error: &Error| matches!(error, Error::PeerLost { peer, how: Loss::Left, .. } if peer.rank == 1);
        assert!(is_it(&error), "{error}");
        // Bytes may be on their way.
        let mut by_messages = CallCheck::new(&zero, &signature, 1, minute);
        assert!((0..2).all(|_| by_messages.health.gone([1], Instant::now()).is_none()));
        by_messages.elapsed(1, Duration::ZERO, Instant::now()).expect_err("the group has failed by now");
    }
}
