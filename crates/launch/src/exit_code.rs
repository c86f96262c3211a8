//! The code with which the launcher ends: that of the rank that its report names, as a shell has it.
//!
//! Which rank that is, [`headline`](crate::headline) says.

use crate::{ExitKind, Outcome};

impl ExitKind {
    /// The exit code, as a shell has it: the code, or 128 + signal; 1 when nothing is known.
    ///
    /// # Examples
    /// ```
    /// use phalanx_launch::ExitKind;
    ///
    /// assert_eq!(ExitKind::Code(3).exit_code(), 3);
    /// assert_eq!(ExitKind::Signal(9).exit_code(), 137);
    /// ```
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
            Self::Unknown | Self::StillRunning | Self::HostLost => 1,
        }
    }
}

impl Outcome {
    /// The code a launcher exits with: 0, [`Failure::exit_code`](crate::Failure::exit_code), 128 + signal, or 124 when time ran out.
    ///
    /// # Examples
    /// ```
    /// use phalanx_launch::{Launch, Outcome};
    /// use std::time::Duration;
    ///
    /// assert_eq!(Outcome::Interrupted { signal: 15 }.exit_code(), 143);
    /// assert_eq!(Outcome::TimedOut { limit: Duration::from_secs(60) }.exit_code(), 124);
    /// # if cfg!(unix) {
    /// assert_eq!(Launch::new("sh").args(["-c", "exit 3"]).run()?.exit_code(), 3);
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Success => 0,
            Self::Failure(failure) => failure.exit_code,
            Self::Interrupted { signal } => 128 + signal,
            Self::TimedOut { .. } => 124,
            Self::Led { exit_code, .. } => *exit_code,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn exit_codes_are_the_shells() {
        assert_eq!(ExitKind::Code(3).exit_code(), 3);
        assert_eq!(ExitKind::Signal(9).exit_code(), 137);
        assert_eq!(ExitKind::Unknown.exit_code(), 1);
        assert_eq!(Outcome::Success.exit_code(), 0);
        assert_eq!(Outcome::Interrupted { signal: 2 }.exit_code(), 130);
        assert_eq!(Outcome::TimedOut { limit: Duration::ZERO }.exit_code(), 124);
    }
}
