//! How a job ended, in words for a person who reads them at night and in a code for the shell.

use phalanx_rendezvous::lifeline::Exit;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Lines of a failed rank's stderr that its [`Failure`] quotes.
pub const TAIL_LINES: usize = 20;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExitKind {
    /// It returned this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// It is gone, but the system did not say how: another part of this program collected its exit status, or
    /// SIGCHLD is ignored here.
    Unknown,
}

impl ExitKind {
    /// Whether the process said that all went well.
    pub fn is_success(self) -> bool {
        self == Self::Code(0)
    }

    /// As the ranks are told.
    pub(crate) fn told(self) -> Exit {
        match self {
            Self::Code(code) => Exit::Code(code),
            Self::Signal(signal) => Exit::Signal(signal),
            Self::Unknown => Exit::Unknown,
        }
    }

    /// What a shell makes of it: the code, or 128 + signal; 1 when nothing is known.
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
            Self::Unknown => 1,
        }
    }
}

impl fmt::Display for ExitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => write!(f, "was killed by {}", signal_name(signal)),
            Self::Unknown => {
                f.write_str("ended in an unknown way (its exit status was taken by somebody else)")
            }
        }
    }
}

/// `SIGKILL` for 9, and so on; `signal 71` where the system has no name.
pub(crate) fn signal_name(signal: i32) -> String {
    #[cfg(unix)]
    if let Some(name) = signal_hook::low_level::signal_name(signal) {
        return name.to_owned();
    }
    format!("signal {signal}")
}

/// What usually stands behind a death by `signal`.
fn hint(signal: i32) -> Option<&'static str> {
    Some(match signal_name(signal).as_str() {
        "SIGKILL" => "likely out of memory, or killed by hand; see dmesg",
        "SIGSEGV" => "an invalid memory access, usually in native code",
        "SIGBUS" => "an invalid memory access; often a file or shared memory that has no room left",
        "SIGABRT" => "it aborted itself: a double panic, panic=abort, or an assertion in native code",
        "SIGILL" => "an instruction this processor does not have; was the program built for another one?",
        _ => return None,
    })
}

/// The first rank that failed, and what it left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// Its rank.
    pub rank: usize,
    /// Ranks in the job.
    pub world_size: usize,
    /// Its process.
    pub pid: u32,
    /// How it ended.
    pub exit: ExitKind,
    /// The end of its stderr, at most [`TAIL_LINES`] lines, oldest first.
    pub stderr_tail: Vec<String>,
    /// Its complete stderr, if the job has a log folder.
    pub stderr_log: Option<PathBuf>,
    /// Time from its start to its end.
    pub after: Duration,
    /// Whether somebody asked for the end of the job by a signal, after it.
    pub interrupted: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, world_size, pid, exit, stderr_tail, stderr_log, after, interrupted: _ } = self;
        write!(f, "rank {rank} of {world_size} (pid {pid}) {exit} after {:.1} s", after.as_secs_f64())?;
        if let ExitKind::Signal(signal) = *exit
            && let Some(hint) = hint(signal)
        {
            write!(f, ": {hint}")?;
        }
        if let Some(log) = stderr_log {
            write!(f, "\n  its stderr is in {}", log.display())?;
        }
        match stderr_tail.len() {
            0 => write!(f, "\n  it wrote nothing to stderr"),
            n => {
                write!(f, "\n  the last {n} lines of its stderr:")?;
                stderr_tail.iter().try_for_each(|line| write!(f, "\n  | {line}"))
            }
        }
    }
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "a job may have failed"]
pub enum Outcome {
    /// Every rank exited with code 0.
    Success,
    /// A rank failed, and the others were ended.
    Failure(Failure),
    /// This signal reached the launcher (or [`Running::signal`](crate::Running::signal) sent it) and ended the job.
    Interrupted {
        /// The signal.
        signal: i32,
    },
    /// The job took longer than [`Launch::timeout`](crate::Launch::timeout) allows, and was ended.
    TimedOut {
        /// The time allowed.
        limit: Duration,
    },
}

impl Outcome {
    /// Whether every rank exited with code 0.
    pub fn is_success(&self) -> bool {
        *self == Self::Success
    }

    /// The code a launcher exits with: 0, the failed rank's code, 128 + signal, or 124 when time ran out.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Success => 0,
            Self::Failure(failure) => failure.exit.exit_code(),
            Self::Interrupted { signal } => 128 + signal,
            Self::TimedOut { .. } => 124,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => f.write_str("all ranks succeeded"),
            Self::Failure(failure) => failure.fmt(f),
            Self::Interrupted { signal } => write!(f, "ended by {}", signal_name(*signal)),
            Self::TimedOut { limit } => {
                write!(f, "did not finish within {:.1} s and was ended", limit.as_secs_f64())
            }
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn killed() -> Failure {
        Failure {
            rank: 2,
            world_size: 4,
            pid: 4711,
            exit: ExitKind::Signal(9),
            stderr_tail: vec!["epoch 3".into(), "epoch 4".into()],
            stderr_log: Some("logs/7f3a/attempt_0/2/stderr.log".into()),
            after: Duration::from_millis(3210),
            interrupted: false,
        }
    }

    #[test]
    fn a_failure_reads_well() {
        insta::assert_snapshot!(killed(), @r"
        rank 2 of 4 (pid 4711) was killed by SIGKILL after 3.2 s: likely out of memory, or killed by hand; see dmesg
          its stderr is in logs/7f3a/attempt_0/2/stderr.log
          the last 2 lines of its stderr:
          | epoch 3
          | epoch 4
        ");
        let silent = Failure { exit: ExitKind::Code(3), stderr_tail: vec![], stderr_log: None, ..killed() };
        insta::assert_snapshot!(silent, @r"
        rank 2 of 4 (pid 4711) exited with code 3 after 3.2 s
          it wrote nothing to stderr
        ");
    }

    #[test]
    fn exit_codes_are_the_shells() {
        let failure = |exit| Outcome::Failure(Failure { exit, ..killed() }).exit_code();
        assert_eq!(failure(ExitKind::Code(3)), 3);
        assert_eq!(failure(ExitKind::Signal(9)), 137);
        assert_eq!(failure(ExitKind::Unknown), 1);
        assert_eq!(Outcome::Success.exit_code(), 0);
        assert_eq!(Outcome::Interrupted { signal: 2 }.exit_code(), 130);
        assert_eq!(Outcome::TimedOut { limit: Duration::ZERO }.exit_code(), 124);
    }
}
