//! Time limits as values: computed once, compared often, never a running clock.

use std::time::{Duration, Instant};

/// The moment at which waiting ends.
///
/// A deadline is made from a caller's `now`; it never looks at a clock itself, so code that takes one runs under a
/// simulated clock as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    started: Instant,
    limit: Duration,
}

impl Deadline {
    /// Ends `limit` after `now`.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Deadline;
    /// use std::time::{Duration, Instant};
    ///
    /// let now = Instant::now();
    /// let deadline = Deadline::after(now, Duration::from_secs(5));
    /// assert!(!deadline.has_passed(now));
    /// assert!(deadline.has_passed(now + Duration::from_secs(5)));
    /// ```
    pub fn after(now: Instant, limit: Duration) -> Self {
        Self { started: now, limit }
    }

    /// The time that is left at `now`; zero once the deadline has passed.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Deadline;
    /// # use std::time::{Duration, Instant};
    /// let start = Instant::now();
    /// let deadline = Deadline::after(start, Duration::from_secs(5));
    /// assert_eq!(deadline.remaining(start + Duration::from_secs(2)), Duration::from_secs(3));
    /// assert_eq!(deadline.remaining(start + Duration::from_secs(9)), Duration::ZERO);
    /// ```
    pub fn remaining(&self, now: Instant) -> Duration {
        self.limit.saturating_sub(self.elapsed(now))
    }

    /// How long this deadline has been running at `now`.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Deadline;
    /// # use std::time::{Duration, Instant};
    /// let start = Instant::now();
    /// let deadline = Deadline::after(start, Duration::from_secs(5));
    /// assert_eq!(deadline.elapsed(start + Duration::from_secs(9)), Duration::from_secs(9));
    /// ```
    pub fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }

    /// Whether it has passed at `now`.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Deadline;
    /// # use std::time::{Duration, Instant};
    /// let start = Instant::now();
    /// assert!(Deadline::after(start, Duration::ZERO).has_passed(start)); // to look, and not to wait
    /// assert!(!Deadline::after(start, Duration::MAX).has_passed(start)); // never
    /// ```
    pub fn has_passed(&self, now: Instant) -> bool {
        self.remaining(now).is_zero()
    }

    /// The moment to wait for at `now`: its end; in an hour, if that is later, as clocks don't go as far as limits.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Deadline;
    /// # use std::time::{Duration, Instant};
    /// let start = Instant::now();
    /// let deadline = Deadline::after(start, Duration::from_secs(5));
    /// let (sooner, later) = (start + Duration::from_secs(1), start + Duration::from_secs(9));
    /// assert_eq!(deadline.until(sooner), start + Duration::from_secs(5));
    /// assert_eq!(deadline.until(later), later); // it has passed: no waiting
    /// ```
    pub fn until(&self, now: Instant) -> Instant {
        now + self.remaining(now).min(Duration::from_secs(3600))
    }

    /// The whole time it grants.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Deadline;
    /// # use std::time::{Duration, Instant};
    /// let deadline = Deadline::after(Instant::now(), Duration::from_secs(5));
    /// assert_eq!(deadline.limit(), Duration::from_secs(5));
    /// ```
    pub fn limit(&self) -> Duration {
        self.limit
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test has a clock")]
mod tests {
    use super::*;

    #[test]
    fn counts_down_to_zero_and_stays() {
        let start = Instant::now();
        let deadline = Deadline::after(start, Duration::from_secs(2));
        assert_eq!(deadline.remaining(start), Duration::from_secs(2));
        assert_eq!(deadline.remaining(start + Duration::from_secs(1)), Duration::from_secs(1));
        assert!(!deadline.has_passed(start));
        assert!(deadline.has_passed(start + Duration::from_secs(2)));
        assert_eq!(deadline.remaining(start + Duration::from_secs(9)), Duration::ZERO);
        assert_eq!(deadline.until(start + Duration::from_secs(1)), start + Duration::from_secs(2));
        assert_eq!(deadline.until(start + Duration::from_secs(9)), start + Duration::from_secs(9));
        let never = Deadline::after(start, Duration::MAX);
        assert!(!never.has_passed(start + Duration::from_secs(9)));
        assert!(never.until(start) > start);
    }
}
