//! What went wrong, in words: the text of a cause in a log.

use crate::wait::{Wait, circle};
use crate::{CallSite, Cause, Envelope, Loss, OpKind, Peer, Signature};
use std::fmt;

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Died => f.write_str("died (its connection closed without a farewell)"),
            Self::Exited { code } => write!(f, "exited with code {code} without leaving its groups"),
            Self::Killed { signal } => match signal_name(*signal) {
                Some(name) => write!(f, "was killed by {name}"),
                None => write!(f, "was killed by signal {signal}"),
            },
            Self::Left => f.write_str("left the group (finalize or drop) while others still needed it"),
            Self::LeftLast => {
                f.write_str("left the group (finalize or drop), the last of those that could send a message")
            }
            Self::LeftAfterError => f.write_str("took no further part, after its own error"),
            Self::Panicked => f.write_str("panicked"),
            Self::Unreachable { from } => {
                write!(
                    f,
                    "cannot be reached from rank {from} (is the network cut, its port closed, see PHALANX_PORT, or PHALANX_HOST wrong?)"
                )
            }
            Self::Apart { from, after } => write!(
                f,
                "and rank {from} have not heard of each other for {} s: the network between their hosts is cut, and either may be at fault",
                after.as_secs_f64()
            ),
            Self::Silent { after } => {
                write!(f, "has been silent for {} s (stopped, or cut off?)", after.as_secs_f64())
            }
        }
    }
}

/// The names of the signals that kill; their numbers are those of Linux.
fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL (out of memory, or killed by hand?)",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        _ => return None,
    })
}

/// A call in words: `all_reduce #118 at train.rs:41`, `recv from rank 1 with tag 7 at train.rs:41`.
pub(crate) struct Called<'a> {
    pub(crate) op: OpKind,
    pub(crate) seq: u64,
    pub(crate) envelope: Option<Envelope>,
    pub(crate) site: Option<&'a CallSite>,
}

impl fmt::Display for Called<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.op)?;
        // Messages have no place in the sequence.
        if self.seq > 0 {
            write!(f, " #{}", self.seq)?;
        }
        if let Some(Envelope { peer, tag }) = self.envelope {
            match (self.op, peer) {
                (_, None) => {}
                (OpKind::Recv | OpKind::RecvAny, Some(peer)) => write!(f, " from rank {peer}")?,
                (_, Some(peer)) => write!(f, " to rank {peer}")?,
            }
            write!(f, " with tag {tag}")?;
        }
        self.site.map_or(Ok(()), |site| write!(f, " at {site}"))
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
            Self::TimedOut { reporter, op, seq, site, envelope, waited, awaited, missing, meanwhile } => {
                let called = Called { op: *op, seq: *seq, envelope: *envelope, site: site.as_ref() };
                write!(f, "{reporter} waited {:.1} s in {called}", waited.as_secs_f64())?;
                match (op, missing.as_slice(), awaited.as_slice()) {
                    (OpKind::Recv, _, [from]) if envelope.is_none() => {
                        write!(f, ", but no message of {from} came")
                    }
                    (OpKind::RecvAny, _, still_here) if envelope.is_some_and(|of| of.peer.is_none()) => {
                        f.write_str(", but no rank sent such a message; still here:")?;
                        list(f, still_here)
                    }
                    (OpKind::Recv | OpKind::RecvAny, ..) => f.write_str(", but no such message came"),
                    (OpKind::Send, _, [to]) => write!(f, ", but {to} did not take the message"),
                    (_, [], []) => f.write_str("; what it waited for did not come"),
                    (_, [], some) => {
                        f.write_str("; all ranks had arrived, but not the data between it and")?;
                        list(f, some)
                    }
                    (_, some, _) => {
                        f.write_str("; not arrived:")?;
                        list(f, some)
                    }
                }?;
                let was = |wait: &Wait| write!(f, "; meanwhile {} was in {wait}", wait.peer);
                meanwhile.iter().try_for_each(was)
            }
            Self::Deadlock { waits } => circle(f, waits),
            Self::Mismatch { seq, tag, left, right } => {
                Disagreement { seq: *seq, tag: *tag, left, right }.fmt(f)
            }
            Self::Protocol { peer, what } => write!(f, "{peer} broke the protocol: {what}"),
            Self::Aborted { peer, reason } => write!(f, "{peer} aborted the group: {reason}"),
        }
    }
}

/// Two calls that should be one.
pub(crate) struct Disagreement<'a> {
    pub(crate) seq: u64,
    pub(crate) tag: Option<u64>,
    pub(crate) left: &'a (Peer, Signature),
    pub(crate) right: &'a (Peer, Signature),
}

impl fmt::Display for Disagreement<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seq, tag, left, right } = self;
        match tag {
            Some(tag) => write!(f, "ranks disagree on the message with tag {tag}")?,
            None if matches!(left.1.op, OpKind::Shrink | OpKind::Rejoin) => {
                f.write_str("ranks disagree on how to go on")?;
            }
            None if *seq == 0 => f.write_str("ranks disagree on a message")?,
            None => write!(f, "ranks disagree at operation #{seq}")?,
        }
        let [ours, theirs] = [&left.1, &right.1];
        let [is_ordered, are_theirs] = [ours, theirs].map(|call| call.method.is_in_rank_order());
        if ours.calls_as(theirs) && is_ordered != are_theirs {
            let (ordered, other) = if is_ordered { (left, right) } else { (right, left) };
            return write!(
                f,
                " on whether the sum is reproducible: {} called {} on a handle of reproducible(), but {} called {} on one that is not: use the \
                 same kind of handle on all ranks",
                ordered.0, ordered.1, other.0, other.1
            );
        }
        if ours.calls_as(theirs) && ours.method != theirs.method {
            let way = |of: &Signature| match of.method.is_unsaid() {
                true => "the recommended way".to_owned(),
                false => of.method.to_string(),
            };
            write!(f, " on how to perform {ours}: {} does it by {}, but {}", left.0, way(ours), right.0)?;
            if ours.site != theirs.site {
                write!(f, ", which called it at {},", theirs.site)?;
            }
            return write!(f, " by {} (do all run the same build, with the same settings?)", way(theirs));
        }
        let told = |of: &Signature| Signature { site: ours.site.clone(), ..of.clone() }.to_string();
        if told(ours) == told(theirs) && ours.method != theirs.method {
            // What differs stands there alone.
            let ((one, by), (other, not_by)) = ((&left.0, &ours.method), (&right.0, &theirs.method));
            return write!(f, ": {one} called {ours} ({by}), but {other} called {theirs} ({not_by})");
        }
        write!(f, ": {} called {}, but {} called {}", left.0, left.1, right.0, right.1)
    }
}
