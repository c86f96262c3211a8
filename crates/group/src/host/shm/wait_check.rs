//! What a rank that waits for others of its host looks at: the clock, the latch, who left.

use super::fault::cause;
use crate::control::group_health::{ErrorContext, GroupHealth, ParentCall, stall_time};
use crate::control::reminder::Reminder;
use crate::control::runtime::Here;
use phalanx_core::{Cause, Error, Loss, Signature};
use phalanx_shm::{Fault, Stopped, WaitCheck};
use std::time::{Duration, Instant};

/// One call's wait_check.
#[derive(Debug)]
pub(super) struct GroupCheck<'a> {
    health: &'a GroupHealth,
    signature: &'a Signature,
    seq: u64,
    limit: Duration,
    /// Since when its time runs: when it first had to wait for long, or before.
    since: Option<Instant>,
    /// The arbiter knows that we wait.
    stalled: bool,
    /// The thread is known to wait.
    here: Here,
    reminder: Option<Reminder>,
    /// The rank of the job whose process had ended at the last look.
    ended: Option<usize>,
    seen: Option<Seen>,
}

/// Why it ended the wait.
#[derive(Debug)]
enum Seen {
    /// The group has failed.
    FailureLatch,
    /// Time is up, and this rank has not come.
    Late(usize),
    /// This rank left, or has ended. Boxed: a wait_check is made for every call, and hardly ever sees anything.
    Gone(Box<Cause>),
}

impl<'a> GroupCheck<'a> {
    pub(super) fn new(health: &'a GroupHealth, signature: &'a Signature, seq: u64, limit: Duration) -> Self {
        Self {
            health,
            signature,
            seq,
            limit,
            since: None,
            stalled: false,
            here: None,
            reminder: None,
            ended: None,
            seen: None,
        }
    }

    /// For a part of a call, whose time is running.
    pub(super) fn of_part(health: &'a GroupHealth, whole: ParentCall<'a>) -> Self {
        let ParentCall { signature, seq, called, limit } = whole;
        Self { since: Some(called), ..Self::new(health, signature, seq, limit) }
    }

    /// Whether anybody was waited for long enough to look around.
    pub(super) fn has_waited(&self) -> bool {
        self.since.is_some()
    }

    /// The error for the cause that came first; the group has failed.
    pub(super) fn error(self, fault: Fault) -> Error {
        let elapsed = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        let told =
            ErrorContext { signature: self.signature, seq: self.seq, message: None, bytes: (0, 0), elapsed };
        match (fault, self.seen) {
            (Fault::Stopped, Some(Seen::Late(peer))) => self.health.timed_out([peer], told),
            (Fault::Stopped, Some(Seen::Gone(cause))) => self.health.fail(*cause, told),
            (Fault::Mismatch { peer, their_seq, theirs: Some(theirs), method, .. }, _)
                if their_seq == self.seq && !(theirs.calls_as(self.signature) && theirs.method == method) =>
            {
                let ours = Signature { method, ..self.signature.clone() };
                self.health.fail(self.health.mismatch(self.seq, None, ours, peer, *theirs), told)
            }
            (Fault::Failed(error), _) => {
                self.health.abort(&error.to_string());
                *error
            }
            (fault @ Fault::Counts { .. }, _) => self.health.fail(cause(self.health, &fault), told),
            // What happened, another rank knows; or all of them together, if they tell the arbiter what they called.
            (fault, _) => {
                self.health.stalled();
                self.health.heard(told).unwrap_or_else(|| self.health.fail(cause(self.health, &fault), told))
            }
        }
    }
}

impl GroupCheck<'_> {
    /// For how long its time has been running at `now`, of which the last wait took `waited`.
    fn elapsed(&mut self, peer: usize, waited: Duration, now: Instant) -> Result<Duration, Stopped> {
        if self.health.latch.cause().is_some() {
            self.seen = Some(Seen::FailureLatch);
            return Err(Stopped);
        }
        let since = *self.since.get_or_insert(now.checked_sub(waited).unwrap_or(now));
        let elapsed = now.saturating_duration_since(since);
        if elapsed >= self.limit {
            self.seen = Some(Seen::Late(peer));
            return Err(Stopped);
        }
        Ok(elapsed)
    }
}

impl WaitCheck for GroupCheck<'_> {
    fn look_meanwhile(&mut self, peer: usize) -> Result<(), Stopped> {
        // Whoever has left has given what it had to give, or will be waited for.
        self.elapsed(peer, Duration::ZERO, Instant::now()).map(drop)
    }

    fn look(&mut self, peer: usize, waited: Duration) -> Result<(), Stopped> {
        let now = Instant::now();
        let waited = self.elapsed(peer, waited, now)?;
        if waited < stall_time(self.limit) {
            return Ok(());
        }
        if !std::mem::replace(&mut self.stalled, true) && self.seq > 0 {
            self.health.stalled();
            self.here = self.health.waits();
        }
        let reminder = self.reminder.get_or_insert_with(|| Reminder::new(self.limit, waited));
        let told = ErrorContext {
            signature: self.signature,
            seq: self.seq,
            message: None,
            bytes: (0, 0),
            elapsed: waited,
        };
        self.health.remind(reminder, [peer], told);
        if let Some(peer) = self.health.gone([peer], now) {
            self.seen = Some(Seen::Gone(Box::new(Cause::Lost { peer, how: Loss::Left })));
            return Err(Stopped);
        }
        if let Some(cause) = self.health.ended_unheard([peer], &mut self.ended) {
            self.seen = Some(Seen::Gone(Box::new(cause)));
            return Err(Stopped);
        }
        Ok(())
    }
}
