//! How a rank that noticed trouble learns what happened first. A state machine without a clock.
//!
//! It tells the arbiter and waits for the verdict. The arbiter may have doubts, so it insists, once. If there is still no verdict,
//! it believes its own eyes.

use phalanx_core::Cause;
use phalanx_transport::sabotage::{Mechanism, breaks};
use std::time::{Duration, Instant};

/// How long a verdict is waited for, each time.
const VERDICT_TIME: Duration = Duration::from_secs(1);
/// How often the arbiter is told.
const TELLINGS: u32 = 2;
/// How long it takes at most until a rank that noticed trouble knows what to say.
pub const SETTLE_TIME: Duration = Duration::from_secs(VERDICT_TIME.as_secs() * TELLINGS as u64);

/// One trouble that this rank has noticed, and how often it has told the arbiter.
#[derive(Debug)]
pub struct FailureReport {
    cause: Cause,
    /// The collective in which it was noticed; 0 where that was elsewhere.
    seq: u64,
    told: u32,
    /// Until when the verdict on the last telling is waited for.
    until: Option<Instant>,
}

/// The next step of a report.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Tell the arbiter now.
    Tell,
    /// A verdict may come until then.
    Wait(Instant),
    /// None came.
    Believe,
}

impl FailureReport {
    pub fn new(cause: Cause, seq: u64) -> Self {
        Self { cause, seq, told: 0, until: None }
    }

    pub fn cause(&self) -> &Cause {
        &self.cause
    }

    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The next step while no verdict has come.
    pub fn next(&mut self, now: Instant) -> Next {
        match self.until {
            Some(until) if now < until => Next::Wait(until),
            _ if self.told < TELLINGS && !breaks(Mechanism::FirstCause) => {
                self.told += 1;
                self.until = Some(now + VERDICT_TIME);
                Next::Tell
            }
            _ => Next::Believe,
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test has a clock")]
mod tests {
    use super::*;
    use phalanx_core::Peer;

    #[test]
    fn tells_twice_and_then_believes_its_own_eyes() {
        let peer = Peer { rank: 1, host: "h".into() };
        let mut report = FailureReport::new(Cause::Aborted { peer, reason: "r".into() }, 1);
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        assert_eq!(report.next(at(0.0)), Next::Tell);
        assert_eq!(report.next(at(0.9)), Next::Wait(at(1.0)));
        assert_eq!(report.next(at(1.5)), Next::Tell);
        assert_eq!(report.next(at(2.4)), Next::Wait(at(2.5)));
        assert_eq!(report.next(at(2.5)), Next::Believe);
    }
}
