//! Why a group can no longer work: the one first cause that all its ranks report.

use crate::wait::Wait;
use crate::{CallSite, OpKind, Peer, Signature};
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

/// How a peer was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Loss {
    /// The peer's connection closed or was reset without a farewell, and nobody knows why: its process died, or the network cut it off.
    Died,
    /// The peer's process ended with this exit code, without a farewell. Known where a launcher tells the ranks.
    Exited {
        /// Its exit code.
        code: i32,
    },
    /// A signal killed its process. Known where a launcher tells the ranks.
    Killed {
        /// The signal's number.
        signal: i32,
    },
    /// The peer left in order (finalize, or its group was dropped) while others still needed it.
    Left,
    /// The peer left in order, as all others had before it: nobody is there from whom a message that is awaited from any rank may come.
    LeftLast,
    /// The peer left, or did not come any more, after one of its operations had returned an error. That error is the cause; this is what
    /// follows.
    LeftAfterError,
    /// The peer was unwinding from a panic.
    Panicked,
    /// Nothing answers at the address it advertised, or answers any more.
    Unreachable {
        /// The rank (of the job) that tried.
        from: usize,
    },
    /// The network between its host and that of another rank is cut: for so long neither has heard of the other, and there is no third host
    /// that could say which of the two is cut off.
    Apart {
        /// The rank (of the job) at the other end.
        from: usize,
        /// How long nothing came.
        after: Duration,
    },
    /// The peer's heartbeat stopped although its connection stands: the process is stopped, its host is frozen or gone, or the
    /// network cut it off.
    Silent {
        /// How long it said nothing.
        after: Duration,
    },
}

/// Between whom a message goes, as one of the two sees it, and its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Envelope {
    /// The other rank, as a rank of the job. `None`: any rank may send it, and none has yet.
    pub peer: Option<usize>,
    /// The message's tag.
    pub tag: u64,
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
        /// The operation's place in the group's sequence; 0 for a message.
        seq: u64,
        /// Where it was called.
        site: Option<CallSite>,
        /// If it was a message: with whom, and its tag.
        envelope: Option<Envelope>,
        /// How long it waited.
        waited: Duration,
        /// The ranks whose data it waited for.
        awaited: Vec<Peer>,
        /// For whom it waited in the end; who was furthest behind first. They had not come to that operation, or those that had not were
        /// waiting for them elsewhere, and they themselves waited for nobody, or could not say so, or all waited in a circle. Where the arbiter could not be
        /// asked: whom it waited for.
        missing: Vec<Peer>,
        /// The waits of ranks that had not come because they waited for others, as far as they are known.
        meanwhile: Vec<Wait>,
    },
    /// Ranks wait for each other in a circle, each for the next and the last for the first.
    Deadlock {
        /// Each waiting rank, its call, and the rank it waits for, from the lowest rank on.
        waits: Vec<Wait>,
    },
    /// Two ranks called different things at the same place of the sequence, or performed the same in different [ways](crate::Method).
    Mismatch {
        /// The operation's place in the group's sequence; 0 for a message.
        seq: u64,
        /// The tag, if it was a message.
        tag: Option<u64>,
        /// One side.
        left: (Peer, Signature),
        /// The other.
        right: (Peer, Signature),
    },
    /// A peer sent what no correct peer sends.
    Protocol {
        /// The rank that sent it.
        peer: Peer,
        /// The mistake in it.
        what: String,
    },
    /// A rank called `abort`.
    Aborted {
        /// Who.
        peer: Peer,
        /// The words that it gave.
        reason: String,
    },
}

impl Cause {
    /// The rank at fault, where one is.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::{Cause, Peer};
    ///
    /// let peer = Peer { rank: 1, host: "node7:4211".into() };
    /// let cause = Cause::Aborted { peer: peer.clone(), reason: "the loss is not a number".into() };
    /// assert_eq!(cause.culprit(), Some(&peer));
    /// assert_eq!(Cause::Deadlock { waits: vec![] }.culprit(), None); // nobody more than the others
    /// ```
    pub fn culprit(&self) -> Option<&Peer> {
        match self {
            Self::Lost { peer, .. } | Self::Protocol { peer, .. } | Self::Aborted { peer, .. } => Some(peer),
            Self::TimedOut { missing, .. } => missing.first(),
            Self::Mismatch { .. } | Self::Deadlock { .. } => None,
        }
    }
}
