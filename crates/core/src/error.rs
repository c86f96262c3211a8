//! The one error type: whose trouble it is, and what a person reading the log needs.

use crate::cause::Envelope;
use crate::cause_text::{Called, Disagreement};
use crate::{CallSite, Cause, GroupId, Loss, OpKind, Peer, Signature, WORLD};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The result of every fallible call of phalanx.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Members of a group that an error lists; of more it says how many there are.
const LISTED: usize = 16;

/// Which call failed, where, and how far it had come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// The operation.
    pub op: OpKind,
    /// Its place in the group's sequence of collectives (0 for point-to-point).
    pub seq: u64,
    /// Where the program called it.
    pub site: Option<CallSite>,
    /// The peer and the tag, if it is a message.
    pub envelope: Option<Envelope>,
    /// The group.
    pub group: GroupId,
    /// The group's members, as ranks of the job, in group order.
    pub members: Vec<usize>,
    /// This rank within the job.
    pub rank: usize,
    /// Payload bytes this rank had received, and all it was to receive.
    pub bytes: (u64, u64),
    /// Time since the operation began on this rank.
    pub elapsed: Duration,
    /// The rank of this group that ended or left because of the cause, and how, where the cause itself is in another group.
    pub through: Option<(Peer, Loss)>,
}

impl Context {
    /// The words after the cause: how it came into this group.
    fn consequence(&self) -> String {
        match &self.through {
            Some((peer, Loss::LeftAfterError)) => format!("; because of that {peer} took no further part"),
            Some((peer, how)) => format!("; because of that {peer} {how}"),
            None => String::new(),
        }
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let world_size = self.members.len();
        if self.group == WORLD {
            write!(f, "rank {}/{world_size}: ", self.rank)?;
        } else {
            let listed: Vec<_> = self.members.iter().take(LISTED).map(usize::to_string).collect();
            write!(f, "rank {}, in the group of ranks {}", self.rank, listed.join(", "))?;
            if world_size > LISTED {
                write!(f, ", … ({world_size} ranks)")?;
            }
            f.write_str(": ")?;
        }
        let (seq, envelope) = (self.seq, self.envelope);
        write!(f, "{}", Called { op: self.op, seq, envelope, site: self.site.as_ref() })?;
        if self.bytes.1 > 0 {
            write!(f, ", {} of {} bytes received", self.bytes.0, self.bytes.1)?;
        }
        write!(f, ", after {:.3} s", self.elapsed.as_secs_f64())
    }
}

/// A lost peer in words. A rank that was declared lost itself is told so.
fn lost(peer: &Peer, how: &Loss, at: &Context) -> String {
    match how {
        Loss::Silent { after } if peer.rank == at.rank => format!(
            "this process was declared lost: nothing was heard of it for {} s (it had been stopped, or was cut off)",
            after.as_secs_f64()
        ),
        _ => format!("{peer} {how}"),
    }
}

/// The message that did not come, in words.
fn nothing_came(from: &[Peer], at: &Context) -> String {
    match from {
        [peer] if at.op != OpKind::RecvAny => format!("no such message came from {peer}"),
        _ => "no rank sent such a message".to_owned(),
    }
}

/// The ranks that may yet send a message that is awaited from any.
fn still_here(from: &[Peer], at: &Context) -> String {
    if at.op != OpKind::RecvAny {
        return String::new();
    }
    let peers: Vec<_> = from.iter().map(Peer::to_string).collect();
    format!("; still here: {}", peers.join(", "))
}

/// Everything that can go wrong, by whose trouble it is.
///
/// After [`Misuse`](Self::Misuse), [`Unsupported`](Self::Unsupported) and [`NoMessage`](Self::NoMessage) nothing
/// was sent and the group works on. After [`PeerLost`](Self::PeerLost), [`Timeout`](Self::Timeout),
/// [`Deadlock`](Self::Deadlock), [`Mismatch`](Self::Mismatch), [`Protocol`](Self::Protocol) and [`Aborted`](Self::Aborted) the group is poisoned:
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
        /// The mistake in the call, and what would be right.
        what: String,
    },
    /// This backend cannot do this. Nothing was sent; the group is fine.
    #[error("{op} is not supported by the {backend} backend: {hint}")]
    Unsupported {
        /// The operation.
        op: OpKind,
        /// The backend's name.
        backend: &'static str,
        /// Advice what to do instead.
        hint: String,
    },
    /// No message came within the time given to `recv_timeout` or `recv_any_timeout`. The group is fine; the message may still come.
    #[error("{at}: {} within {:.3} s{}", nothing_came(from, at), waited.as_secs_f64(), still_here(from, at))]
    NoMessage {
        /// The rank from which it was awaited; of a message from any rank, all that are still there.
        from: Vec<Peer>,
        /// Its tag.
        tag: u64,
        /// How long.
        waited: Duration,
        /// Which call.
        at: Box<Context>,
    },
    /// A rank died, left, or cannot be reached. The group is poisoned.
    #[error("{at}: {}{}", lost(peer, how, at), at.consequence())]
    PeerLost {
        /// Who.
        peer: Peer,
        /// How.
        how: Loss,
        /// Which call on this rank.
        at: Box<Context>,
    },
    /// The operation did not finish in time. The group is poisoned.
    #[error("{at}: {cause}{} (PHALANX_TIMEOUT_S, or with_timeout, sets another limit)", at.consequence())]
    Timeout {
        /// The ranks that had not arrived, as far as is known.
        missing: Vec<Peer>,
        /// The report of the rank whose deadline passed first.
        cause: Box<Cause>,
        /// Which call on this rank.
        at: Box<Context>,
    },
    /// Ranks wait for each other in a circle, and none of them can go on. The group is poisoned.
    #[error("{at}: {cause}{}", at.consequence())]
    Deadlock {
        /// The ranks that wait for each other, and in which calls.
        cause: Box<Cause>,
        /// Which call on this rank.
        at: Box<Context>,
    },
    /// Ranks called different operations, or the same with other types, counts or roots, or perform it in different
    /// [ways](crate::Method). None used data of the other. The group is poisoned.
    #[error("{at}: {}{}", Disagreement { seq: *seq, tag: *tag, left, right }, at.consequence())]
    Mismatch {
        /// The place in the group's sequence where they disagreed; 0 for a message.
        seq: u64,
        /// The tag, if they disagreed on a message.
        tag: Option<u64>,
        /// One side: who, and what it called where.
        left: Box<(Peer, Signature)>,
        /// The other side.
        right: Box<(Peer, Signature)>,
        /// Which call on this rank.
        at: Box<Context>,
    },
    /// A peer sent what no correct peer sends. The group is poisoned.
    #[error("{at}: {peer} broke the protocol: {what}{}", at.consequence())]
    Protocol {
        /// Who.
        peer: Peer,
        /// The mistake in what it sent.
        what: String,
        /// Which call on this rank.
        at: Box<Context>,
    },
    /// A rank called `abort`. The group is poisoned.
    #[error("{at}: {peer} aborted the group: {reason}{}", at.consequence())]
    Aborted {
        /// Who.
        peer: Peer,
        /// The words that it gave.
        reason: String,
        /// Which call on this rank.
        at: Box<Context>,
    },
    /// The group failed earlier and does nothing more. Nothing was sent.
    #[error("{op}: the group failed earlier and can no longer be used: {cause}")]
    Poisoned {
        /// The operation that was refused.
        op: OpKind,
        /// The first cause.
        cause: Box<Cause>,
    },
    /// The ranks did not find each other.
    #[error("{}the ranks did not come together (waited {:.1} s): {what}", who(*rank, *world_size), waited.as_secs_f64())]
    Rendezvous {
        /// This rank.
        rank: usize,
        /// Ranks expected; 0 where that is not known.
        world_size: usize,
        /// The ranks that are missing, or the address that did not answer.
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
        /// The sum that was computed, and how, the expected result, and the one that came out.
        what: String,
    },
    /// The configuration (arguments or environment) makes no sense.
    #[error("configuration: {what}")]
    Config {
        /// The mistake, and what to set.
        what: String,
    },
    /// Something this machine does not have.
    #[error("{what} is not available (tried: {tried})")]
    Unavailable {
        /// The thing that is missing.
        what: String,
        /// The places where it was looked for.
        tried: String,
    },
    /// A library below phalanx failed or refused.
    #[error("{call} of {library}: {what}")]
    Library {
        /// Which, with version and file.
        library: String,
        /// Its function.
        call: Cow<'static, str>,
        /// The reason it gave.
        what: String,
    },
    /// The operating system refused.
    #[error("{doing}: {source}{}", advice(source))]
    Io {
        /// The attempt that failed.
        doing: String,
        /// The system's error.
        source: Arc<std::io::Error>,
    },
    /// An object could not be encoded or decoded, or is over the size limit. The group is fine.
    #[error("{op}: {what}")]
    Object {
        /// The operation.
        op: OpKind,
        /// The mistake in it.
        what: String,
    },
    /// A bug in phalanx. Please report it.
    #[error("a bug in phalanx, please report it: {what}")]
    Internal {
        /// The contradiction that was found.
        what: String,
    },
}

/// What to do where a process may open no more files: sockets and shared memory count among them.
fn advice(error: &std::io::Error) -> &'static str {
    /// `EMFILE` of every Unix.
    const TOO_MANY_OPEN_FILES: i32 = 24;
    if cfg!(unix) && error.raw_os_error() == Some(TOO_MANY_OPEN_FILES) {
        " (this process has no file descriptor left: `ulimit -n` sets how many it may have)"
    } else {
        ""
    }
}

fn who(rank: usize, world_size: usize) -> String {
    if world_size == 0 { String::new() } else { format!("rank {rank}/{world_size}: ") }
}

/// Prints as `Display` does: `fn main() -> phalanx::Result<()>` and `unwrap` print this, and a person reads it.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// An [`Error::Io`] from what was being done and what the system said.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Error;
    ///
    /// let error = std::fs::read("/no/such/file").map_err(|source| Error::io("reading the weights", source)).unwrap_err();
    /// assert!(error.to_string().starts_with("reading the weights: "), "{error}");
    /// ```
    pub fn io(doing: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io { doing: doing.into(), source: Arc::new(source) }
    }

    /// An [`Error::Misuse`].
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::{Error, OpKind};
    ///
    /// let error = Error::misuse(OpKind::Broadcast, "there is no rank 4");
    /// assert!(error.group_is_usable());
    /// assert!(error.to_string().contains("broadcast") && error.to_string().contains("there is no rank 4"));
    /// ```
    pub fn misuse(op: OpKind, what: impl Into<String>) -> Self {
        Self::Misuse { op, what: what.into() }
    }

    /// An [`Error::Config`].
    ///
    /// # Examples
    /// ```
    /// let error = phalanx_core::Error::config("PHALANX_TIMEOUT_S is \"soon\", not a number of seconds");
    /// assert_eq!(error.to_string(), "configuration: PHALANX_TIMEOUT_S is \"soon\", not a number of seconds");
    /// ```
    pub fn config(what: impl Into<String>) -> Self {
        Self::Config { what: what.into() }
    }

    /// The error of the call `at` when its group fails for `cause`.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::{Cause, Context, Error, Loss, OpKind, Peer, WORLD};
    /// use std::time::Duration;
    ///
    /// let peer = Peer { rank: 1, host: "node7:4211".into() };
    /// let at = Context {
    ///     op: OpKind::AllReduce,
    ///     seq: 118,
    ///     site: None,
    ///     envelope: None,
    ///     group: WORLD,
    ///     members: vec![0, 1],
    ///     rank: 0,
    ///     bytes: (0, 4096),
    ///     elapsed: Duration::from_millis(21),
    ///     through: None,
    /// };
    /// let error = Error::from_cause(Cause::Lost { peer, how: Loss::Panicked }, at);
    /// assert_eq!(
    ///     error.to_string(),
    ///     "rank 0/2: all_reduce #118, 0 of 4096 bytes received, after 0.021 s: rank 1 (node7:4211) panicked"
    /// );
    /// ```
    pub fn from_cause(cause: Cause, at: Context) -> Self {
        let at = Box::new(at);
        match cause {
            Cause::Lost { peer, how } => Self::PeerLost { peer, how, at },
            Cause::TimedOut { ref missing, .. } => {
                Self::Timeout { missing: missing.clone(), cause: Box::new(cause), at }
            }
            Cause::Mismatch { seq, tag, left, right } => {
                Self::Mismatch { seq, tag, left: Box::new(left), right: Box::new(right), at }
            }
            Cause::Deadlock { .. } => Self::Deadlock { cause: Box::new(cause), at },
            Cause::Protocol { peer, what } => Self::Protocol { peer, what, at },
            Cause::Aborted { peer, reason } => Self::Aborted { peer, reason, at },
        }
    }

    /// Whether the group can still be used after this error.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::{Error, OpKind};
    ///
    /// /// What to do with the group after an error.
    /// fn advice(error: &Error) -> &'static str {
    ///     if error.group_is_usable() { "mend the call" } else { "shrink, rejoin or end" }
    /// }
    /// assert_eq!(advice(&Error::misuse(OpKind::Send, "no message to oneself")), "mend the call");
    /// ```
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
    use crate::{Method, WORLD};

    fn context() -> Context {
        Context {
            op: OpKind::AllReduce,
            seq: 118,
            site: Some(site(41)),
            envelope: None,
            group: WORLD,
            members: vec![0, 1, 2, 3],
            rank: 3,
            bytes: (0, 262_144),
            elapsed: Duration::from_millis(21),
            through: None,
        }
    }

    fn site(line: u32) -> CallSite {
        CallSite { file: "train.rs".into(), line }
    }

    fn peer(rank: usize) -> Peer {
        Peer { rank, host: format!("node7:421{rank}") }
    }

    fn lost(how: Loss, at: Context) -> String {
        Error::from_cause(Cause::Lost { peer: peer(1), how }, at).to_string()
    }

    #[test]
    #[cfg(unix)]
    fn who_has_no_descriptor_left_is_told_what_to_set() {
        let error =
            Error::io("connecting to 10.0.0.7:29500", std::io::Error::from_raw_os_error(24)).to_string();
        assert!(
            error.starts_with("connecting to 10.0.0.7:29500: ") && error.contains("`ulimit -n`"),
            "{error}"
        );
        let error = Error::io("connecting", std::io::Error::from_raw_os_error(111)).to_string();
        assert!(!error.contains("ulimit"), "{error}");
    }

    #[test]
    fn a_lost_peer_reads_well_at_night() {
        let error = Error::from_cause(Cause::Lost { peer: peer(1), how: Loss::Died }, context());
        assert_eq!(
            error.to_string(),
            "rank 3/4: all_reduce #118 at train.rs:41, 0 of 262144 bytes received, after 0.021 s: rank 1 (node7:4211) died (its \
             connection closed without a farewell)"
        );
        assert_eq!(format!("{error:?}"), error.to_string());
        let silent = Loss::Silent { after: Duration::from_secs(10) };
        for (how, words) in [
            (silent, "rank 1 (node7:4211) has been silent for 10 s (stopped, or cut off?)"),
            (Loss::Exited { code: 0 }, "rank 1 (node7:4211) exited with code 0 without leaving its groups"),
            (Loss::Killed { signal: 15 }, "rank 1 (node7:4211) was killed by SIGTERM"),
            (Loss::Killed { signal: 40 }, "rank 1 (node7:4211) was killed by signal 40"),
        ] {
            assert!(lost(how, context()).ends_with(&format!(": {words}")), "{}", lost(how, context()));
        }
    }

    #[test]
    fn a_rank_that_was_declared_lost_itself_reads_that() {
        let own = lost(Loss::Silent { after: Duration::from_secs(10) }, Context { rank: 1, ..context() });
        let words = ": this process was declared lost: nothing was heard of it for 10 s (it had been stopped, or was cut off)";
        assert!(own.ends_with(words), "{own}");
    }

    #[test]
    fn an_error_in_a_subgroup_says_whose_it_is_and_how_the_cause_came_there() {
        let (group, members) = (GroupId(0x1dff_a1e8), vec![1, 4, 7]);
        let through = Some((peer(7), Loss::LeftAfterError));
        let at = Context { group, members, rank: 4, bytes: (0, 0), through, ..context() };
        let cause = Cause::Lost { peer: peer(3), how: Loss::Panicked };
        assert_eq!(
            Error::from_cause(cause, at.clone()).to_string(),
            "rank 4, in the group of ranks 1, 4, 7: all_reduce #118 at train.rs:41, after 0.021 s: rank 3 (node7:4213) panicked; \
             because of that rank 7 (node7:4217) took no further part"
        );
        let many = Context { members: (0..20).collect(), ..at }.to_string();
        assert!(
            many.contains("ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, … (20 ranks): "),
            "{many}"
        );
    }

    fn late(op: OpKind, missing: Vec<Peer>, message: Option<Envelope>) -> Cause {
        let (site, seq) = (Some(site(7)), if message.is_some() { 0 } else { 118 });
        let (reporter, waited, awaited) = (peer(0), Duration::from_secs(60), missing.clone());
        let meanwhile = Vec::new();
        Cause::TimedOut { reporter, op, seq, site, envelope: message, waited, awaited, missing, meanwhile }
    }

    #[test]
    fn a_timeout_names_the_call_and_who_is_missing() {
        let error = Error::from_cause(late(OpKind::Barrier, vec![peer(1), peer(2)], None), context());
        let words = "rank 0 (node7:4210) waited 60.0 s in barrier #118 at train.rs:7; not arrived: rank 1 (node7:4211), \
                     rank 2 (node7:4212) (PHALANX_TIMEOUT_S, or with_timeout, sets another limit)";
        assert!(error.to_string().ends_with(words), "{error}");
    }

    #[test]
    fn a_timeout_of_a_message_names_its_tag_and_never_says_that_a_rank_is_not_there() {
        let envelope = Some(Envelope { peer: Some(1), tag: 9 });
        let words = |op| late(op, vec![peer(1)], envelope).to_string();
        assert_eq!(
            words(OpKind::Recv),
            "rank 0 (node7:4210) waited 60.0 s in recv from rank 1 with tag 9 at train.rs:7, but no such message came"
        );
        assert_eq!(
            words(OpKind::Send),
            "rank 0 (node7:4210) waited 60.0 s in send to rank 1 with tag 9 at train.rs:7, but rank 1 \
             (node7:4211) did not take the message"
        );
    }

    #[test]
    fn a_timeout_of_a_message_from_any_rank_blames_nobody_and_says_who_is_still_here() {
        let envelope = Some(Envelope { peer: None, tag: 9 });
        let mut cause = late(OpKind::RecvAny, vec![peer(1), peer(2)], envelope);
        let Cause::TimedOut { missing, .. } = &mut cause else { panic!("{cause}") };
        missing.clear();
        assert_eq!(
            cause.to_string(),
            "rank 0 (node7:4210) waited 60.0 s in recv_any with tag 9 at train.rs:7, but no rank sent such a message; \
             still here: rank 1 (node7:4211), rank 2 (node7:4212)"
        );
        assert_eq!(cause.culprit(), None);
        let at = Box::new(Context { op: OpKind::RecvAny, seq: 0, envelope, bytes: (0, 0), ..context() });
        let (from, waited) = (vec![peer(1), peer(2)], Duration::from_millis(20));
        let vain = Error::NoMessage { from, tag: 9, waited, at: at.clone() };
        assert_eq!(
            vain.to_string(),
            "rank 3/4: recv_any with tag 9 at train.rs:41, after 0.021 s: no rank sent such a message within 0.020 s; \
             still here: rank 1 (node7:4211), rank 2 (node7:4212)"
        );
        let gone = lost(Loss::LeftLast, *at);
        let words = "rank 1 (node7:4211) left the group (finalize or drop), the last of those that could send a message";
        assert!(gone.ends_with(words), "{gone}");
    }

    #[test]
    fn ranks_that_call_the_same_are_told_how_they_perform_it() {
        let by = |method: &'static str, rank| {
            let (op, dtype, site) = (OpKind::AllReduce, Some(crate::DType::F32), site(7));
            (
                peer(rank),
                Signature {
                    op,
                    dtype,
                    count: 9,
                    reduce: None,
                    root: None,
                    detail: 0,
                    method: method.into(),
                    site,
                },
            )
        };
        let (left, right) = (by("ring in 2 blocks of 5", 0), by("flat", 1));
        let words = "ranks disagree at operation #3 on how to perform all_reduce(f32 x 9) at train.rs:7: rank 0 (node7:4210) does it by ring in 2 \
                     blocks of 5, but rank 1 (node7:4211) by flat (do all run the same build, with the same settings?)";
        assert_eq!(Cause::Mismatch { seq: 3, tag: None, left: left.clone(), right }.to_string(), words);
        let elsewhere = (peer(1), Signature { site: site(9), ..by("flat", 1).1 });
        let words = Cause::Mismatch { seq: 3, tag: None, left: left.clone(), right: elsewhere }.to_string();
        assert!(words.contains("rank 1 (node7:4211), which called it at train.rs:9, by flat"), "{words}");
        let other = (peer(1), Signature { op: OpKind::Reduce, ..by("flat", 1).1 });
        let words = Cause::Mismatch { seq: 3, tag: None, left, right: other }.to_string();
        assert!(
            words.ends_with("called reduce(f32 x 9) at train.rs:7"),
            "what is called comes first: {words}"
        );
    }

    #[test]
    fn a_reproducible_handle_on_one_rank_only_is_named_as_that() {
        let by = |method: Method, line, rank| {
            let call = Signature::bare(OpKind::AllReduce, site(line));
            (peer(rank), Signature { dtype: Some(crate::DType::F32), count: 9, method, ..call })
        };
        let words = "ranks disagree at operation #3 on whether the sum is reproducible: rank 1 (node7:4211) called all_reduce(f32 x 9) at train.rs:9 on a \
                     handle of reproducible(), but rank 0 (node7:4210) called all_reduce(f32 x 9) at train.rs:7 on one that is not: use the same kind of \
                     handle on all ranks";
        let ordered = Method::IN_RANK_ORDER.then(&"ring".into());
        let cause =
            Cause::Mismatch { seq: 3, tag: None, left: by(Method::UNSAID, 7, 0), right: by(ordered, 9, 1) };
        assert_eq!(cause.to_string(), words);
    }

    #[test]
    fn a_disagreement_on_a_message_has_no_number() {
        let called = |op, count, rank| {
            let (dtype, site) = (Some(crate::DType::F32), site(count as u32));
            (
                peer(rank),
                Signature {
                    op,
                    dtype,
                    count,
                    reduce: None,
                    root: None,
                    detail: 0,
                    method: crate::Method::UNSAID,
                    site,
                },
            )
        };
        let (left, right) = (called(OpKind::Send, 10, 0), called(OpKind::Recv, 9, 1));
        let cause = Cause::Mismatch { seq: 0, tag: Some(3), left, right };
        let words = "ranks disagree on the message with tag 3: rank 0 (node7:4210) called send(f32 x 10) at train.rs:10, but rank 1 \
                     (node7:4211) called recv(f32 x 9) at train.rs:9";
        assert_eq!(cause.to_string(), words);
        let error = Error::from_cause(cause, context()).to_string();
        assert!(error.ends_with(words), "{error}");
    }
}
