//! The one error type: whose trouble it is, and what a person reading the log needs.

use crate::{Cause, GroupId, Loss, OpKind, Peer, Signature};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What every fallible call of phalanx returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Which call failed, where, and how far it had come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// The operation.
    pub op: OpKind,
    /// Its place in the group's sequence of collectives (0 for point-to-point).
    pub seq: u64,
    /// The group.
    pub group: GroupId,
    /// This rank within the job.
    pub rank: usize,
    /// Ranks in the group.
    pub world_size: usize,
    /// Payload bytes this rank had received, and all it was to receive.
    pub bytes: (u64, u64),
    /// Time since the operation began on this rank.
    pub elapsed: Duration,
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}/{}: {}", self.rank, self.world_size, self.op)?;
        if self.seq > 0 {
            write!(f, " #{}", self.seq)?;
        }
        write!(f, " in {}", self.group)?;
        if self.bytes.1 > 0 {
            write!(f, ", {} of {} bytes received", self.bytes.0, self.bytes.1)?;
        }
        write!(f, ", after {:.3} s", self.elapsed.as_secs_f64())
    }
}

/// Everything that can go wrong, by whose trouble it is.
///
/// After [`Misuse`](Self::Misuse), [`Unsupported`](Self::Unsupported) and [`NoMessage`](Self::NoMessage) nothing
/// was sent and the group works on. After [`PeerLost`](Self::PeerLost), [`Timeout`](Self::Timeout),
/// [`Mismatch`](Self::Mismatch), [`Protocol`](Self::Protocol) and [`Aborted`](Self::Aborted) the group is poisoned:
/// the contents of the buffers of that call are unspecified, and every later call returns
/// [`Poisoned`](Self::Poisoned) with the first cause.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller asked for something impossible. Nothing was sent; the group is fine.
    #[error("{op}: {what}")]
    Misuse {
        /// The operation.
        op: OpKind,
        /// What is wrong with the call, and what would be right.
        what: String,
    },
    /// This backend cannot do this. Nothing was sent; the group is fine.
    #[error("{op} is not supported by the {backend} backend: {hint}")]
    Unsupported {
        /// The operation.
        op: OpKind,
        /// The backend's name.
        backend: &'static str,
        /// What to do instead.
        hint: String,
    },
    /// No message came within the time given to `recv_timeout`. The group is fine; the message may still come.
    #[error("{at}: no message with tag {tag} from {from} within {:.3} s", waited.as_secs_f64())]
    NoMessage {
        /// From whom it was awaited.
        from: Peer,
        /// Its tag.
        tag: u64,
        /// How long.
        waited: Duration,
        /// Which call.
        at: Box<Context>,
    },
    /// A rank died, left, or cannot be reached. The group is poisoned.
    #[error("{at}: {peer} {how}")]
    PeerLost {
        /// Who.
        peer: Peer,
        /// How.
        how: Loss,
        /// Which call on this rank.
        at: Box<Context>,
    },
    /// The operation did not finish in time. The group is poisoned.
    #[error("{at}: {cause} (PHALANX_TIMEOUT_S, or with_timeout, sets another limit)")]
    Timeout {
        /// Who had not arrived, as far as is known.
        missing: Vec<Peer>,
        /// The report of the rank whose deadline passed first.
        cause: Box<Cause>,
        /// Which call on this rank.
        at: Box<Context>,
    },
    /// Ranks called different operations, or the same with other types, counts or roots. No data was used. The group is poisoned.
    #[error("{at}: ranks disagree at operation #{seq}: {} called {}, but {} called {}", left.0, left.1, right.0, right.1)]
    Mismatch {
        /// Where in the group's sequence they disagreed.
        seq: u64,
        /// One side: who, and what it called where.
        left: Box<(Peer, Signature)>,
        /// The other side.
        right: Box<(Peer, Signature)>,
        /// Which call on this rank.
        at: Box<Context>,
    },
    /// A peer sent what no correct peer sends. The group is poisoned.
    #[error("{at}: {peer} broke the protocol: {what}")]
    Protocol {
        /// Who.
        peer: Peer,
        /// What it sent.
        what: String,
        /// Which call on this rank.
        at: Box<Context>,
    },
    /// Somebody called `abort`. The group is poisoned.
    #[error("{at}: {peer} aborted the group: {reason}")]
    Aborted {
        /// Who.
        peer: Peer,
        /// Its words.
        reason: String,
        /// Which call on this rank.
        at: Box<Context>,
    },
    /// The group failed earlier and does nothing more. Nothing was sent.
    #[error("{op}: the group failed earlier and can no longer be used: {cause}")]
    Poisoned {
        /// The operation that was refused.
        op: OpKind,
        /// What happened first.
        cause: Box<Cause>,
    },
    /// The ranks did not find each other.
    #[error("{}the ranks did not come together within {:.1} s: {what}", who(*rank, *world_size), waited.as_secs_f64())]
    Rendezvous {
        /// This rank.
        rank: usize,
        /// Ranks expected; 0 where that is not known.
        world_size: usize,
        /// Who is missing, or what did not answer.
        what: String,
        /// How long it was tried.
        waited: Duration,
    },
    /// The self-test of `init` got a wrong sum: a machine of the job, its memory, or the way between two of them changes numbers,
    /// and no result can be trusted. The group is aborted on all ranks.
    #[error("{}this machine, or the way to another, computes wrong sums; the self-test {what}", who(*rank, *world_size))]
    WrongSum {
        /// This rank.
        rank: usize,
        /// Ranks in the group.
        world_size: usize,
        /// What was computed how, what was expected, and what came out.
        what: String,
    },
    /// The configuration (arguments or environment) makes no sense.
    #[error("configuration: {what}")]
    Config {
        /// What is wrong and what to set.
        what: String,
    },
    /// Something this machine does not have.
    #[error("{what} is not available (tried: {tried})")]
    Unavailable {
        /// What is missing.
        what: String,
        /// Where it was looked for.
        tried: String,
    },
    /// A library below phalanx failed or refused.
    #[error("{call} of {library}: {what}")]
    Library {
        /// Which, with version and file.
        library: String,
        /// Its function.
        call: Cow<'static, str>,
        /// What it said.
        what: String,
    },
    /// The operating system refused.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done, to what.
        doing: String,
        /// What the system said.
        source: Arc<std::io::Error>,
    },
    /// An object could not be encoded or decoded, or is over the size limit. The group is fine.
    #[error("{op}: {what}")]
    Object {
        /// The operation.
        op: OpKind,
        /// What is wrong with it.
        what: String,
    },
    /// A bug in phalanx. Please report it.
    #[error("a bug in phalanx, please report it: {what}")]
    Internal {
        /// What was found.
        what: String,
    },
}

fn who(rank: usize, world_size: usize) -> String {
    if world_size == 0 { String::new() } else { format!("rank {rank}/{world_size}: ") }
}

/// The same words as `Display`: what `fn main() -> phalanx::Result<()>` and `unwrap` print is what a person wants to read.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// An [`Error::Io`] from what was being done and what the system said.
    pub fn io(doing: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { doing: doing.into(), source: Arc::new(source) }
    }

    /// An [`Error::Misuse`].
    pub fn misuse(op: OpKind, what: impl Into<String>) -> Self {
        Self::Misuse { op, what: what.into() }
    }

    /// An [`Error::Config`].
    pub fn config(what: impl Into<String>) -> Self {
        Self::Config { what: what.into() }
    }

    /// The error of the call `at` when its group fails for `cause`.
    pub fn from_cause(cause: Cause, at: Context) -> Self {
        let at = Box::new(at);
        match cause {
            Cause::Lost { peer, how } => Self::PeerLost { peer, how, at },
            Cause::TimedOut { ref missing, .. } => {
                Self::Timeout { missing: missing.clone(), cause: Box::new(cause), at }
            }
            Cause::Mismatch { seq, left, right } => {
                Self::Mismatch { seq, left: Box::new(left), right: Box::new(right), at }
            }
            Cause::Protocol { peer, what } => Self::Protocol { peer, what, at },
            Cause::Aborted { peer, reason } => Self::Aborted { peer, reason, at },
        }
    }

    /// Whether the group can still be used after this error.
    pub fn group_is_usable(&self) -> bool {
        matches!(
            self,
            Self::Misuse { .. } | Self::Unsupported { .. } | Self::NoMessage { .. } | Self::Object { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WORLD;

    fn context() -> Context {
        Context {
            op: OpKind::AllReduce,
            seq: 118,
            group: WORLD,
            rank: 3,
            world_size: 4,
            bytes: (0, 262_144),
            elapsed: Duration::from_millis(21),
        }
    }

    #[test]
    fn reads_well_at_night() {
        let peer = Peer { rank: 1, host: "node7:4211".into() };
        let lost = Error::from_cause(Cause::Lost { peer: peer.clone(), how: Loss::Died }, context());
        assert_eq!(
            lost.to_string(),
            "rank 3/4: all_reduce #118 in world, 0 of 262144 bytes received, after 0.021 s: rank 1 (node7:4211) died (its connection \
             closed without a farewell)"
        );
        assert_eq!(format!("{lost:?}"), lost.to_string());
        let silent = Loss::Silent { after: Duration::from_secs(10) };
        let silent =
            Error::from_cause(Cause::Lost { peer: peer.clone(), how: silent }, context()).to_string();
        assert!(
            silent.ends_with("rank 1 (node7:4211) has been silent for 10 s (stopped, or cut off?)"),
            "{silent}"
        );
        let reporter = Peer { rank: 0, host: "node7:4210".into() };
        let waited = Duration::from_secs(60);
        let missing = vec![peer, Peer { rank: 2, host: "node8:99".into() }];
        let awaited = vec![missing[0].clone()];
        let cause = Cause::TimedOut { reporter, op: OpKind::Barrier, seq: 118, waited, awaited, missing };
        let late = Error::from_cause(cause, context()).to_string();
        assert!(
            late.ends_with(
                "rank 0 (node7:4210) waited 60.0 s in barrier #118; not arrived: rank 1 (node7:4211), rank 2 (node8:99) \
                 (PHALANX_TIMEOUT_S, or with_timeout, sets another limit)"
            ),
            "{late}"
        );
        let (reporter, missing) =
            (Peer { rank: 0, host: "a:1".into() }, vec![Peer { rank: 1, host: "b:2".into() }]);
        let (op, waited, awaited) = (OpKind::Recv, Duration::from_secs(2), Vec::new());
        let message = Cause::TimedOut { reporter, op, seq: 0, waited, awaited, missing };
        assert_eq!(message.to_string(), "rank 0 (a:1) waited 2.0 s in recv; not arrived: rank 1 (b:2)");
    }
}
