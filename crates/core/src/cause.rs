//! Why a group can no longer work: the one first cause that all its ranks report.

use crate::{OpKind, Signature};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Names a group within a job: equal on its members, different for every other group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupId(pub u64);

/// The group of all ranks.
pub const WORLD: GroupId = GroupId(0);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == WORLD { f.write_str("world") } else { write!(f, "group {:08x}", self.0 as u32) }
    }
}

/// A rank of the job and where it runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Peer {
    /// Rank in the job (not in a subgroup).
    pub rank: usize,
    /// Host name and process, as `host:pid`; a thread's name for ranks in one process.
    pub host: String,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} ({})", self.rank, self.host)
    }
}

/// How a peer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Loss {
    /// Its connection closed or was reset without a farewell: the process died, or the network cut it off.
    Died,
    /// It left in order (finalize, or its group was dropped) while others still needed it.
    Left,
    /// It was unwinding from a panic.
    Panicked,
    /// Nothing answers at the address it advertised, or answers any more.
    Unreachable {
        /// The rank (of the job) that tried.
        from: usize,
    },
    /// Its heartbeat stopped although its connection stands: the process is stopped, its host is frozen or gone, or the
    /// network cut it off.
    Silent {
        /// How long it said nothing.
        after: Duration,
    },
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Died => "died (its connection closed without a farewell)",
            Self::Left => "left the group (finalize or drop) while others still needed it",
            Self::Panicked => "panicked",
            Self::Unreachable { from } => {
                return write!(
                    f,
                    "cannot be reached from rank {from} (is the network cut, or PHALANX_HOST wrong?)"
                );
            }
            Self::Silent { after } => {
                return write!(f, "has been silent for {} s (stopped, or cut off?)", after.as_secs_f64());
            }
        })
    }
}

/// The first thing that went wrong in a group. All its ranks report the same one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Cause {
    /// A rank is gone.
    Lost {
        /// Who.
        peer: Peer,
        /// How.
        how: Loss,
    },
    /// An operation did not finish in time.
    TimedOut {
        /// The rank whose deadline passed first.
        reporter: Peer,
        /// Its operation.
        op: OpKind,
        /// The operation's place in the group's sequence.
        seq: u64,
        /// How long it waited.
        waited: Duration,
        /// Whose data it waited for.
        awaited: Vec<Peer>,
        /// Who had not come to that operation, or could not say so; who was furthest behind first. Where the arbiter could not be
        /// asked: whom it waited for.
        missing: Vec<Peer>,
    },
    /// Two ranks called different things at the same place of the sequence.
    Mismatch {
        /// The operation's place in the group's sequence.
        seq: u64,
        /// One side.
        left: (Peer, Signature),
        /// The other.
        right: (Peer, Signature),
    },
    /// A peer sent what no correct peer sends.
    Protocol {
        /// Who sent it.
        peer: Peer,
        /// What it was.
        what: String,
    },
    /// A rank called `abort`.
    Aborted {
        /// Who.
        peer: Peer,
        /// Its words.
        reason: String,
    },
}

impl Cause {
    /// The rank at fault, where one is.
    pub fn culprit(&self) -> Option<&Peer> {
        match self {
            Self::Lost { peer, .. } | Self::Protocol { peer, .. } | Self::Aborted { peer, .. } => Some(peer),
            Self::TimedOut { missing, .. } => missing.first(),
            Self::Mismatch { .. } => None,
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, peers: &[Peer]) -> fmt::Result {
    let mut peers = peers.iter().enumerate();
    peers.try_for_each(|(i, peer)| write!(f, "{} {peer}", if i > 0 { "," } else { "" }))
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost { peer, how } => write!(f, "{peer} {how}"),
            Self::TimedOut { reporter, op, seq, waited, awaited, missing } => {
                write!(f, "{reporter} waited {:.1} s in {op}", waited.as_secs_f64())?;
                // Messages have no place in the sequence.
                if *seq > 0 {
                    write!(f, " #{seq}")?;
                }
                f.write_str("; ")?;
                match (missing.as_slice(), awaited.as_slice()) {
                    ([], []) => f.write_str("what it waited for did not come"),
                    ([], some) => {
                        f.write_str("all ranks had arrived, but not the data between it and")?;
                        list(f, some)
                    }
                    (some, _) => {
                        f.write_str("not arrived:")?;
                        list(f, some)
                    }
                }
            }
            Self::Mismatch { seq, left, right } => write!(
                f,
                "ranks disagree at operation #{seq}: {} called {}, but {} called {}",
                left.0, left.1, right.0, right.1
            ),
            Self::Protocol { peer, what } => write!(f, "{peer} broke the protocol: {what}"),
            Self::Aborted { peer, reason } => write!(f, "{peer} aborted the group: {reason}"),
        }
    }
}
