//! The time limits of a job that hold for those who start it, too.

use crate::env::Variables;
use phalanx_core::Result;
use std::time::Duration;

/// How long the processes of a job wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimeLimits {
    /// For each operation, unless the program sets another: `PHALANX_TIMEOUT_S`.
    pub timeout: Duration,
    /// For all to come together: `PHALANX_INIT_TIMEOUT_S`.
    pub init_timeout: Duration,
    /// How long one may show no sign of life before it is lost; `None`: for ever. `PHALANX_HEARTBEAT_TIMEOUT_S`.
    pub heartbeat_timeout: Option<Duration>,
}

impl TimeLimits {
    /// Reads the variables from `lookup`.
    ///
    /// # Errors
    /// [`Error::Config`](phalanx_core::Error::Config): one is no time in seconds.
    ///
    /// # Examples
    /// ```
    /// use phalanx_rendezvous::TimeLimits;
    ///
    /// let limits = TimeLimits::from_lookup(|_| None)?;
    /// assert_eq!(limits.init_timeout.as_secs(), 120);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let vars = Variables::of(lookup);
        Ok(Self {
            timeout: vars.timeout()?,
            init_timeout: vars.init_timeout()?,
            heartbeat_timeout: vars.heartbeat_timeout()?,
        })
    }
}
