//! The code with which the launcher ends. Of a job that fails it is that of the rank that its report names, as a shell has it; which rank that
//! is, [`headline`](crate::headline) says.

use crate::{ExitKind, Outcome};
use phalanx_core::Error;
use std::io::ErrorKind;
use std::time::Instant;

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

/// Of a job that fails: how the rank ended that the report names, or, if that ended with 0 or still runs, how the first ended of those that failed,
/// with when.
pub(crate) fn of_failure(named: ExitKind, failed: impl Iterator<Item = (Instant, ExitKind)>) -> i32 {
    if named.is_success() || named == ExitKind::StillRunning {
        failed.min_by_key(|&(at, _)| at).map_or(1, |(_, exit)| exit.exit_code())
    } else {
        named.exit_code()
    }
}

/// The exit code of a launcher that fails with `error`, as a shell has it in the same case: 127 if there is no such program, 126 if it can't be executed, 2
/// for a configuration that makes no sense, else 1.
///
/// # Examples
/// ```
/// let error = phalanx_launch::Launch::new("no-such-program").run().unwrap_err();
/// assert_eq!(phalanx_launch::exit_code(&error), 127);
/// ```
pub fn exit_code(error: &Error) -> i32 {
    match error {
        Error::Config { .. } => 2,
        Error::Io { source, .. } if source.kind() == ErrorKind::PermissionDenied => 126,
        Error::Unavailable { .. } => 127,
        _ => 1,
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

    #[test]
    fn a_rank_that_is_named_and_has_no_code_of_its_own_has_that_of_the_first_that_failed() {
        let begun = Instant::now();
        let failed = [(1, ExitKind::Code(7)), (0, ExitKind::Signal(9))];
        let failed = || failed.into_iter().map(|(at, exit)| (begun + Duration::from_secs(at), exit));
        assert_eq!(of_failure(ExitKind::Code(3), failed()), 3);
        assert_eq!(of_failure(ExitKind::Code(0), failed()), 137);
        assert_eq!(of_failure(ExitKind::StillRunning, failed()), 137);
        assert_eq!(of_failure(ExitKind::StillRunning, std::iter::empty()), 1);
    }
}
