//! The error state of a rank: an operation has returned an error, and the program has not gone on since. What becomes of the rank then follows from that error.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A rank that calls operations of other groups so long after an error has gone on. Ends that follow from the error come sooner.
const GOES_ON_TIME: Duration = Duration::from_secs(5);

/// Whether an operation of this rank has failed, and the program has not gone on since.
#[derive(Debug, Default)]
pub struct ErrorState {
    is: AtomicBool,
    since: Mutex<Option<Instant>>,
}

impl ErrorState {
    /// An operation returns an error. Whether that is the first.
    pub fn enter(&self, now: Instant) -> bool {
        self.is.store(true, Ordering::Relaxed);
        self.since.lock().unwrap_or_else(PoisonError::into_inner).replace(now).is_none()
    }

    /// Whether the rank is in the error state.
    #[inline]
    pub fn is(&self) -> bool {
        self.is.load(Ordering::Relaxed)
    }

    /// An operation begins in a group that works. Whether by that the rank has gone on after an error. One load if there was none.
    #[inline]
    pub fn goes_on(&self, now: impl FnOnce() -> Instant) -> bool {
        self.is() && self.has_gone_on(now())
    }

    #[cold]
    fn has_gone_on(&self, now: Instant) -> bool {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        let goes_on = since.is_some_and(|at| now.saturating_duration_since(at) >= GOES_ON_TIME);
        if goes_on {
            *since = None;
            self.is.store(false, Ordering::Relaxed);
        }
        goes_on
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test has a clock")]
mod tests {
    use super::*;

    #[test]
    fn whoever_works_long_after_an_error_has_gone_on_once() {
        let (state, start) = (ErrorState::default(), Instant::now());
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        assert!(!state.goes_on(|| unreachable!("the clock is not asked")));
        assert!(state.enter(at(0.0)) && !state.enter(at(1.0)));
        assert!(!state.goes_on(|| at(5.9)), "five seconds after the last error");
        assert!(state.goes_on(|| at(6.1)));
        assert!(!state.goes_on(|| unreachable!("once")));
        assert!(state.enter(at(7.0)), "the next error is a new one");
    }
}
