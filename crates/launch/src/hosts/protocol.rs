//! What an agent and the leader say to each other, over one session.
//!
//! ```text
//! agent (the launcher on another host)             leader (the launcher of node rank 0)
//!   | Here     host, places, cores, leader              |
//!   |-------------------------------------------------->|
//!   |      Start     task, start, environment           |
//!   |<--------------------------------------------------|
//!   | Started  task, pid                                |
//!   | Output   task, stream, bytes                      |
//!   |-------------------------------------------------->|
//!   |      Taken     task, stream, bytes                |
//!   |      Signal, Tell, Reap    task                   |
//!   |<--------------------------------------------------|
//!   | Closed   task, stream; Exited  task, exit         |
//!   | Asked    signal                                   |
//!   |-------------------------------------------------->|
//!   |      Over      exit code, words                   |
//!   |<--------------------------------------------------|
//! ```
//! Besides, each says `Alive` now and then. A task is one process that an agent starts: its number is never used again.
//!
//! The secret of a start of the job is made, on both sides, of that which both know and the number in `Start`: it never travels. The program, its
//! arguments and the variables that the user sets are those of the agent's own command line: they may hold what is nobody else's to read.

use crate::exit_kind::ExitKind;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Bytes of one stream that may be on their way, or wait to be shown: as much again as a pipe's page, and little enough that a thousand ranks
/// of a host have room in what a session keeps for a slow reader (64 MiB).
pub(crate) const WINDOW: usize = 16 << 10;
/// Longest piece of output in a message: two of them are under way, so that one is read while the other travels.
pub(crate) const PIECE: usize = WINDOW / 2;
/// Longest text of a host's name and of what is said at the end.
pub(crate) const NAME_LEN_MAX: usize = 64;
pub(crate) const WORDS_LEN_MAX: usize = 1 << 10;
/// Most variables that a leader sets for a process, and the longest name or value.
const VARIABLES_MAX: usize = 64;
const VALUE_LEN_MAX: usize = 4 << 10;

/// What a process writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Stream {
    Out,
    Err,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
    Unknown,
}

impl From<Exit> for ExitKind {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Code(code) => Self::Code(code),
            Exit::Signal(signal) => Self::Signal(signal),
            Exit::Unknown => Self::Unknown,
        }
    }
}

impl From<ExitKind> for Exit {
    fn from(exit: ExitKind) -> Self {
        match exit {
            ExitKind::Code(code) => Self::Code(code),
            ExitKind::Signal(signal) => Self::Signal(signal),
            ExitKind::Unknown | ExitKind::StillRunning | ExitKind::HostLost => Self::Unknown,
        }
    }
}

/// A host that takes part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Here {
    pub(crate) host: String,
    /// How many ranks it has room for.
    pub(crate) places: u32,
    pub(crate) cores: u32,
    /// The address at which it has reached the leader: its ranks will, too.
    pub(crate) leader: IpAddr,
}

/// A message of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Word {
    Here(Here),
    Alive,
    Started {
        task: u64,
        pid: u32,
    },
    Output {
        task: u64,
        stream: Stream,
        bytes: Vec<u8>,
    },
    /// No more output comes of that stream.
    Closed {
        task: u64,
        stream: Stream,
    },
    Exited {
        task: u64,
        exit: Exit,
    },
    /// A signal was not passed on to a process that would die of it.
    Deaf {
        task: u64,
        signal: i32,
    },
    /// The agent was sent a signal, which is meant for the job.
    Asked {
        signal: i32,
    },
}

/// A message of the leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    Alive,
    /// Start a process of the job's start of that number, with these variables.
    Start {
        task: u64,
        start: u64,
        env: Vec<(String, String)>,
    },
    /// Send a signal to the process and all of its group.
    Signal {
        task: u64,
        signal: i32,
    },
    /// Send it to the rank alone, if it has a handler.
    Tell {
        task: u64,
        signal: i32,
        behind: Option<u32>,
    },
    /// The process has ended: kill what it left behind.
    Reap {
        task: u64,
    },
    /// So much of its output was taken: as much again may come.
    Taken {
        task: u64,
        stream: Stream,
        bytes: u32,
    },
    /// The job is over, or goes on without this host.
    Over {
        code: i32,
        words: String,
    },
}

/// The bytes of a message.
pub(crate) fn encode(message: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(message).expect("encoding into memory does not fail")
}

/// Reads what an agent says. The error says what is wrong with it.
pub(crate) fn word(bytes: &[u8]) -> Result<Word, String> {
    let word = read(bytes)?;
    match &word {
        Word::Here(here) if !is_name(&here.host) => Err("it has no name that can be shown".into()),
        Word::Here(here) if !(1..=crate::RANKS_MAX as u32).contains(&here.places) => {
            Err(format!("it has room for {} ranks", here.places))
        }
        Word::Asked { signal } if !(1..=31).contains(signal) => Err(format!("{signal} is no signal")),
        Word::Output { bytes, .. } if bytes.len() > PIECE => {
            Err(format!("{} bytes of output in one piece", bytes.len()))
        }
        _ => Ok(word),
    }
}

/// Reads what the leader says. The error says what is wrong with it.
pub(crate) fn order(bytes: &[u8]) -> Result<Order, String> {
    let order = read(bytes)?;
    match &order {
        Order::Start { env, .. } if env.len() > VARIABLES_MAX => Err(format!("{} variables", env.len())),
        Order::Start { env, .. } => {
            let is_bad = |(name, value): &&(String, String)| {
                let plain = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
                name.is_empty()
                    || !name.chars().all(plain)
                    || value.contains('\0')
                    || name.len().max(value.len()) > VALUE_LEN_MAX
            };
            match env.iter().find(is_bad) {
                Some((name, _)) => Err(format!("a variable {:?} that can't be set", cut(name, NAME_LEN_MAX))),
                None => Ok(order),
            }
        }
        Order::Over { words, .. } if words.len() > WORDS_LEN_MAX => Err("too many last words".into()),
        _ => Ok(order),
    }
}

fn read<'m, T: Deserialize<'m>>(bytes: &'m [u8]) -> Result<T, String> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(format!("{} bytes too many", rest.len())),
        Err(error) => Err(error.to_string()),
    }
}

/// The host's name in every line and report: no control characters, and not long.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_LEN_MAX && !name.contains(char::is_control)
}

/// A name of which [`is_name`] is true.
pub(crate) fn name(text: &str) -> String {
    let plain = text.replace(char::is_control, "?");
    if plain.is_empty() { "?".into() } else { cut(&plain, NAME_LEN_MAX).into() }
}

/// The text, or as much of its start as fits.
pub(crate) fn cut(text: &str, len_max: usize) -> &str {
    let fits = |&end: &usize| text.is_char_boundary(end);
    &text[..(0..=len_max.min(text.len())).rev().find(fits).unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_its_limits_is_refused() {
        let here = |host: &str, places| {
            let here = Here { host: host.into(), places, cores: 2, leader: IpAddr::from([10, 0, 0, 7]) };
            word(&encode(&Word::Here(here)))
        };
        assert!(here("node-7", 8).is_ok());
        assert!(here("", 8).is_err() && here("a\nb", 8).is_err() && here(&"x".repeat(65), 8).is_err());
        assert!(here("a", 0).is_err() && here("a", 1025).is_err());
        let asked = |signal| word(&encode(&Word::Asked { signal }));
        assert!(asked(15).is_ok() && asked(0).is_err() && asked(64).is_err());
        let output = |len| word(&encode(&Word::Output { task: 1, stream: Stream::Err, bytes: vec![7; len] }));
        assert!(output(PIECE).is_ok() && output(PIECE + 1).is_err());
        let start = |name: &str, value: &str, count| {
            let env = vec![(name.to_owned(), value.to_owned()); count];
            order(&encode(&Order::Start { task: 1, start: 2, env }))
        };
        assert!(start("RANK", "3", 1).is_ok() && start("RANK", "3", VARIABLES_MAX + 1).is_err());
        assert!(start("", "3", 1).is_err() && start("A=B", "3", 1).is_err() && start("A", "\0", 1).is_err());
        assert!(start("A", &"x".repeat(VALUE_LEN_MAX + 1), 1).is_err());
        let over = |len| order(&encode(&Order::Over { code: 1, words: "x".repeat(len) }));
        assert!(over(WORDS_LEN_MAX).is_ok() && over(WORDS_LEN_MAX + 1).is_err());
        let mut long = encode(&Word::Alive);
        long.push(0);
        assert_eq!(word(&long).unwrap_err(), "1 bytes too many");
        assert!(word(&[]).is_err() && order(&[0xff; 9]).is_err());
    }

    #[test]
    fn names_can_be_shown() {
        for (text, shown) in [("node-7", "node-7"), ("", "?"), ("a\u{1b}[31m", "a?[31m")] {
            assert_eq!(name(text), shown);
        }
        assert!(is_name(&name(&"é".repeat(100))));
    }
}
