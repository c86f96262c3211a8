//! The lifeline: one session of each rank to the launcher that started it, from the start of `init` to the end of the process.
//!
//! ```text
//! rank                                             launcher (phalanx run)
//!   | Here     worker, pid                              |
//!   |-------------------------------------------------->|
//!   |      Ended   worker, exit: all until now          |
//!   |<--------------------------------------------------|
//!   | Formed   generation                               |
//!   | Failed   generation, culprit, words               |
//!   | GaveUp   culprit, words                           |
//!   |-------------------------------------------------->|
//!   |      Ended   worker, exit: as it happens          |
//!   |<--------------------------------------------------|
//! ```
//!
//! - When the launcher is gone, the connection breaks, and the rank ends itself: the kernel does that to a direct child of the launcher
//!   only, and not to a rank behind `sh -c`, behind a change of user, or started by a script.
//! - A rank says what went wrong first in the job before anybody on it hears of that, so the launcher knows more than exit codes tell.
//! - The launcher tells the ranks how processes have ended.
//!
//! Processes are named by their number among all that the job had (`PHALANX_WORKER`, else the rank): ranks change with generations.

mod client;
mod end;
mod server;

pub use client::Lifeline;
pub use server::{Heard, LifelineServer};

use serde::{Deserialize, Serialize};
use std::fmt;

/// Longest text that is passed on, in bytes: an error with two call sites and a few hundred missing ranks.
const WORDS_LEN_MAX: usize = 8 << 10;

/// The first cause of a failure, as a rank has heard it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstCause {
    /// The worker at fault; `None` where no single one is, as when two ranks call different operations.
    pub culprit: Option<u64>,
    /// What happened, for a person: one sentence.
    pub words: String,
}

impl FirstCause {
    /// Cuts the words to the length that is passed on.
    fn cut(mut self) -> Self {
        if self.words.len() > WORDS_LEN_MAX {
            let end = (0..=WORDS_LEN_MAX).rev().find(|&end| self.words.is_char_boundary(end)).unwrap_or(0);
            self.words.truncate(end);
            self.words.push('…');
        }
        self
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// The process returned this code.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// The process is gone, and the launcher can't say how: it started another program, which started the rank.
    Unknown,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => write!(f, "was killed by signal {signal}"),
            Self::Unknown => f.write_str("ended"),
        }
    }
}

/// A process of the job has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The process's number among all that the job had; the rank, in a job that is not elastic.
    pub worker: u64,
    /// How.
    pub exit: Exit,
}

/// A message of a rank to its launcher.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Word {
    /// This process is that worker.
    Here { worker: u64, pid: u32 },
    /// The process is a rank of this generation.
    Formed { generation: u64 },
    /// A group of that generation has failed.
    Failed { generation: u64, first: FirstCause },
    /// The process could not become a rank.
    GaveUp { first: FirstCause },
}

fn encode(message: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(message).expect("encoding into memory does not fail")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_words_are_cut_between_characters() {
        let words = |words: String| FirstCause { culprit: None, words }.cut().words;
        assert_eq!(words("short".into()), "short");
        let long = words("é".repeat(WORDS_LEN_MAX));
        assert_eq!(long, "é".repeat(WORDS_LEN_MAX / 2) + "…");
    }
}
