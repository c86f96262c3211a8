//! How a job ended, in words for a person who reads them at night and in a code for the shell.

use crate::exit_kind::{ExitKind, signal_name};
use crate::headline::NamedBy;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Lines of a failed rank's stderr that its [`Failure`] quotes.
pub const TAIL_LINES: usize = 20;

/// The usual reason of a death by `signal`.
fn hint(signal: i32) -> Option<&'static str> {
    Some(match signal_name(signal).as_str() {
        "SIGKILL" => "likely out of memory, or killed by hand; see dmesg",
        "SIGSEGV" => "an invalid memory access, usually in native code",
        "SIGBUS" => "an invalid memory access; often a file or shared memory that has no room left",
        "SIGABRT" => "it aborted itself: a double panic, panic=abort, or an assertion in native code",
        "SIGUSR1" | "SIGUSR2" => "the program has no handler for it",
        "SIGILL" => "an instruction this processor does not have; was the program built for another one?",
        _ => return None,
    })
}

/// The rank that failed first, and what it left behind.
///
/// Its `Display` is the launcher's report. The first line is one of
/// ```text
/// rank R of N (pid P) exited with code C after T s
/// rank R of N (pid P) exited with code 0 after T s, while the others still needed it
/// rank R of N (pid P) was killed by SIGNAL after T s: what that often means
/// rank R of N (pid P) was still running after T s, when the others gave it up
/// rank R of N (pid P on HOST) was lost with its host after T s: why
/// no single rank is at fault: WORDS
/// ```
/// (in a job over several hosts all with `pid P on HOST`), and the words of the first cause follow on the second (`  first cause: WORDS`), where the ranks have told the launcher of it; where no single rank is at
/// fault, the first process that ended of it stands there (`  first ended: rank R of N …`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// Its rank.
    pub rank: usize,
    /// Ranks in the job.
    pub world_size: usize,
    /// Its process; 0 if that never began, on another host.
    pub pid: u32,
    /// The name of its host, in a job over several hosts.
    pub host: Option<String>,
    /// Why its host is lost, if that is what ended it.
    pub host_fault: Option<String>,
    /// How it ended.
    pub exit: ExitKind,
    /// Why this rank is named, and not another one that failed as well.
    pub named_by: NamedBy,
    /// The first cause, as the ranks have told the launcher.
    pub first_cause: Option<String>,
    /// The launcher's exit code: the rank's own, or 128 + signal; where it ended with 0 or had to be ended, those of the first of the
    /// others that failed of it.
    pub exit_code: i32,
    /// Its panic message on stderr, without the backtrace.
    pub panic: Vec<String>,
    /// The end of its stderr, at most [`TAIL_LINES`] lines, oldest first.
    pub stderr_tail: Vec<String>,
    /// Its complete stderr, if the job has a log folder.
    pub stderr_log: Option<PathBuf>,
    /// Time from its start to its end, or until the others gave it up.
    pub after: Duration,
    /// Why the job did not go on, if it is elastic.
    pub spares: Option<Replacements>,
    /// Whether somebody asked for the end of the job by a signal, after it.
    pub interrupted: bool,
}

/// The replacements that an elastic job had left when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replacements {
    /// Processes that were replaced.
    pub used: usize,
    /// How many may be: [`Launch::max_restarts`](crate::Launch::max_restarts).
    pub most: usize,
    /// Ranks that had not failed.
    pub sound: usize,
    /// The fewest with which it goes on.
    pub min: usize,
}

impl fmt::Display for Replacements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { used, most, sound, min } = self;
        let left = if used == most { ": none was left" } else { "" };
        let (verb, plural) = if *sound == 1 { ("has", "") } else { ("have", "s") };
        write!(
            f,
            "{used} of {most} replacements were used{left}; {sound} rank{plural} {verb} not failed, and the job goes on with at least {min}"
        )
    }
}

impl Failure {
    fn who(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, world_size, pid, host, exit, after, named_by, .. } = self;
        let process = match (host, pid) {
            (Some(host), 0) => format!("on {host}"),
            (Some(host), pid) => format!("pid {pid} on {host}"),
            (None, pid) => format!("pid {pid}"),
        };
        write!(f, "rank {rank} of {world_size} ({process}) {exit} after {:.1} s", after.as_secs_f64())?;
        match *exit {
            ExitKind::Code(0) if *named_by == NamedBy::Ranks => {
                f.write_str(", while the others still needed it")
            }
            ExitKind::StillRunning => f.write_str(", when the others gave it up"),
            ExitKind::HostLost => self.host_fault.as_ref().map_or(Ok(()), |why| write!(f, ": {why}")),
            ExitKind::Signal(signal) => hint(signal).map_or(Ok(()), |hint| write!(f, ": {hint}")),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.first_cause.as_deref();
        if self.named_by == NamedBy::Nobody {
            write!(
                f,
                "no single rank is at fault: {}\n  first ended: ",
                words.unwrap_or("the ranks disagree")
            )?;
            self.who(f)?;
        } else {
            self.who(f)?;
            words.map_or(Ok(()), |words| write!(f, "\n  first cause: {words}"))?;
        }
        if let Some(spares) = &self.spares {
            write!(f, "\n  {spares}")?;
        }
        if let Some(log) = &self.stderr_log {
            write!(f, "\n  its stderr is in {}", log.display())?;
        }
        if self.panic.first().is_some_and(|line| !self.stderr_tail.contains(line)) {
            f.write_str("\n  it panicked:")?;
            self.panic.iter().try_for_each(|line| write!(f, "\n  | {line}"))?;
        }
        match self.stderr_tail.len() {
            0 => return write!(f, "\n  it wrote nothing to stderr"),
            1 => f.write_str("\n  its last line on stderr:")?,
            n => write!(f, "\n  its last {n} lines on stderr:")?,
        }
        self.stderr_tail.iter().try_for_each(|line| write!(f, "\n  | {line}"))
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
    Failure(Box<Failure>),
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
    /// The job failed, was interrupted or took too long, and this launcher was not the one that led it, which reports that: it started the ranks of
    /// [its host](crate::Launch::node).
    Led {
        /// The job's exit code.
        exit_code: i32,
        /// The first line of the report.
        words: String,
    },
}

impl Outcome {
    /// Whether every rank exited with code 0.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_launch::Launch;
    /// # if cfg!(unix) {
    /// assert!(Launch::new("true").run()?.is_success());
    /// assert!(!Launch::new("false").run()?.is_success());
    /// # }
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn is_success(&self) -> bool {
        *self == Self::Success
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
            Self::Led { words, .. } => write!(f, "the job was ended: {words} (node 0 has the report)"),
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
            host: None,
            host_fault: None,
            exit: ExitKind::Signal(9),
            named_by: NamedBy::Exit,
            first_cause: None,
            exit_code: 137,
            panic: vec![],
            stderr_tail: vec!["epoch 3".into(), "epoch 4".into()],
            stderr_log: Some("logs/7f3a/attempt_0/2/stderr.log".into()),
            after: Duration::from_millis(3210),
            spares: None,
            interrupted: false,
        }
    }

    #[test]
    fn a_failure_reads_well() {
        insta::assert_snapshot!(killed(), @r"
        rank 2 of 4 (pid 4711) was killed by SIGKILL after 3.2 s: likely out of memory, or killed by hand; see dmesg
          its stderr is in logs/7f3a/attempt_0/2/stderr.log
          its last 2 lines on stderr:
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
    fn what_the_ranks_have_said_is_in_the_report() {
        let told = |exit, words: &str| Failure {
            exit,
            named_by: NamedBy::Ranks,
            first_cause: Some(words.into()),
            stderr_tail: vec![],
            stderr_log: None,
            ..killed()
        };
        insta::assert_snapshot!(told(ExitKind::Code(0), "rank 2 (h:4711) left"), @r"
        rank 2 of 4 (pid 4711) exited with code 0 after 3.2 s, while the others still needed it
          first cause: rank 2 (h:4711) left
          it wrote nothing to stderr
        ");
        insta::assert_snapshot!(told(ExitKind::StillRunning, "rank 0 waited 10.0 s for rank 2"), @r"
        rank 2 of 4 (pid 4711) was still running after 3.2 s, when the others gave it up
          first cause: rank 0 waited 10.0 s for rank 2
          it wrote nothing to stderr
        ");
        let panic = ["thread 'main' panicked at src/main.rs:7:5:", "out of ideas"].map(String::from).to_vec();
        let panicked = told(ExitKind::Code(101), "rank 2 (h:4711) panicked");
        let panicked = Failure { panic: panic.clone(), stderr_tail: vec!["  20: main".into()], ..panicked };
        insta::assert_snapshot!(panicked, @r"
        rank 2 of 4 (pid 4711) exited with code 101 after 3.2 s
          first cause: rank 2 (h:4711) panicked
          it panicked:
          | thread 'main' panicked at src/main.rs:7:5:
          | out of ideas
          its last line on stderr:
          |   20: main
        ");
        let once = Failure { stderr_tail: panic, ..panicked }.to_string();
        assert_eq!(once.matches("out of ideas").count(), 1, "{once}");
        let mismatch = told(ExitKind::Code(1), "ranks disagree: a.rs:1 and b.rs:2");
        insta::assert_snapshot!(Failure { named_by: NamedBy::Nobody, ..mismatch }, @r"
        no single rank is at fault: ranks disagree: a.rs:1 and b.rs:2
          first ended: rank 2 of 4 (pid 4711) exited with code 1 after 3.2 s
          it wrote nothing to stderr
        ");
    }

    #[test]
    fn of_several_hosts_the_one_is_named() {
        let on = |exit, pid, host_fault: Option<&str>| {
            let (host, host_fault) = (Some("node-b".into()), host_fault.map(String::from));
            Failure { exit, pid, host, host_fault, stderr_tail: vec![], stderr_log: None, ..killed() }
        };
        insta::assert_snapshot!(on(ExitKind::Code(127), 0, None), @r"
        rank 2 of 4 (on node-b) exited with code 127 after 3.2 s
          it wrote nothing to stderr
        ");
        let silent = Some("nothing was heard of its agent for 6.0 s");
        insta::assert_snapshot!(on(ExitKind::HostLost, 4711, silent), @r"
        rank 2 of 4 (pid 4711 on node-b) was lost with its host after 3.2 s: nothing was heard of its agent for 6.0 s
          it wrote nothing to stderr
        ");
    }

    #[test]
    fn an_elastic_job_says_why_it_did_not_go_on() {
        let spares = Some(Replacements { used: 12, most: 12, sound: 1, min: 2 });
        let failure =
            Failure { exit: ExitKind::Code(7), stderr_tail: vec![], stderr_log: None, spares, ..killed() };
        insta::assert_snapshot!(failure, @r"
        rank 2 of 4 (pid 4711) exited with code 7 after 3.2 s
          12 of 12 replacements were used: none was left; 1 rank has not failed, and the job goes on with at least 2
          it wrote nothing to stderr
        ");
    }
}
