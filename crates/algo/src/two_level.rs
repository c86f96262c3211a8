//! The ways of a group over several hosts, some of which have several ranks: shared memory inside a host, messages between hosts.

use phalanx_core::OpKind;

/// The bytes from which all ranks of a host talk to other hosts, each about a slice of its own. Below, one of them
/// does: slices cost a round inside each host more than they save between hosts.
pub const SLICED_BYTES_MIN: usize = 8 << 10;

/// A way of a group over several hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LevelsWay {
    /// By messages among all ranks, whoever shares a host.
    Direct,
    /// One rank of each host speaks for all of it.
    Speakers,
    /// Each rank of a host talks to those at its place on the other hosts, about its part.
    Slices,
}

/// The parts of an operation on two levels.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parts {
    /// In shared memory: which operation, on how many bytes, how many times.
    pub(crate) inside: Vec<(OpKind, usize, f64)>,
    /// Between hosts.
    pub(crate) across: (OpKind, usize),
    /// As many ranks of each host do that at the same time.
    pub(crate) at_once: usize,
}

/// What decides among the ways for a call. The same on all its ranks.
#[derive(Debug, Clone, Copy)]
pub struct LevelsCall {
    /// The operation.
    pub op: OpKind,
    /// Bytes of the whole buffer.
    pub bytes: usize,
    /// Whether all hosts have equally many ranks.
    pub is_even: bool,
    /// Whether besides the ranks of each host are consecutive.
    pub is_in_blocks: bool,
    /// From so many bytes on a sum is cut into slices: [`usize::MAX`] for never.
    pub sliced_from: usize,
}

impl LevelsCall {
    /// `op` on a buffer of `bytes`, on hosts that have equally many ranks each, one host's after the other's.
    pub const fn new(op: OpKind, bytes: usize) -> Self {
        Self { op, bytes, is_even: true, is_in_blocks: true, sliced_from: SLICED_BYTES_MIN }
    }

    /// The way that is taken if none is forced.
    pub const fn recommended(&self) -> LevelsWay {
        match self.op {
            OpKind::Gather | OpKind::Scatter | OpKind::AllToAll => LevelsWay::Direct,
            OpKind::AllReduce if self.is_even && self.bytes >= self.sliced_from => LevelsWay::Slices,
            OpKind::AllGather | OpKind::Split | OpKind::ReduceScatter if self.is_in_blocks => {
                LevelsWay::Slices
            }
            OpKind::AllGather | OpKind::Split | OpKind::ReduceScatter => LevelsWay::Direct,
            _ => LevelsWay::Speakers,
        }
    }

    /// The way that is taken: the forced one where it [can](Self::obstacle) be, else the recommended one.
    pub fn choose(&self, forced: Option<LevelsWay>) -> LevelsWay {
        forced.filter(|way| self.obstacle(*way).is_none()).unwrap_or_else(|| self.recommended())
    }

    /// Why `way` can't be taken, if it can't.
    pub fn obstacle(&self, way: LevelsWay) -> Option<&'static str> {
        match (way, self.op) {
            _ if !LevelsWay::of(self.op).contains(&way) => Some("the operation has no such way"),
            (LevelsWay::Slices, OpKind::AllReduce) if !self.is_even => {
                Some("the hosts have unlike numbers of ranks")
            }
            (LevelsWay::Slices, OpKind::AllGather | OpKind::ReduceScatter) if !self.is_in_blocks => {
                Some("the ranks of a host are not consecutive, or hosts have unlike numbers of them")
            }
            _ => None,
        }
    }
}

impl LevelsWay {
    /// The ways that an operation has; none of what is no collective.
    pub const fn of(op: OpKind) -> &'static [Self] {
        match op {
            OpKind::AllReduce => &[Self::Direct, Self::Speakers, Self::Slices],
            OpKind::Reduce | OpKind::Broadcast | OpKind::Barrier => &[Self::Direct, Self::Speakers],
            OpKind::AllGather | OpKind::ReduceScatter => &[Self::Direct, Self::Slices],
            OpKind::Gather | OpKind::Scatter | OpKind::AllToAll => &[Self::Direct],
            _ => &[],
        }
    }

    /// The parts of `op` in this way on `hosts` hosts of `per_host` ranks; `None` of [`Direct`](Self::Direct), which is one of messages among all.
    pub(crate) fn parts(self, op: OpKind, (hosts, per_host): (usize, usize), bytes: usize) -> Option<Parts> {
        let slice = bytes.div_ceil(per_host);
        let parts = |inside: &[OpKind], across, at_once| Parts {
            inside: inside.iter().map(|op| (*op, bytes, 1.0)).collect(),
            across: (op, across),
            at_once,
        };
        match (self, op) {
            (Self::Direct, _) => None,
            (Self::Speakers, OpKind::AllReduce) => {
                Some(parts(&[OpKind::Reduce, OpKind::Broadcast], bytes, 1))
            }
            (Self::Speakers, OpKind::Barrier) => Some(parts(&[op, op], 0, 1)),
            (Self::Speakers, _) => Some(parts(&[op], bytes, 1)),
            (Self::Slices, OpKind::AllReduce) => {
                Some(parts(&[OpKind::ReduceScatter, OpKind::AllGather], slice, per_host))
            }
            (Self::Slices, _) => {
                // One part inside for each host.
                let inside = vec![(op, bytes.div_ceil(hosts), hosts as f64)];
                Some(Parts { inside, across: (op, slice), at_once: per_host })
            }
        }
    }

    /// Its name among the ways of an operation.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Speakers => "speakers",
            Self::Slices => "slices",
        }
    }

    /// How it works, in a sentence or two.
    pub const fn idea(self) -> &'static str {
        match self {
            Self::Direct => {
                "By messages among all ranks, whoever shares a host, as where no host has two ranks. \
                 A forced algorithm of messages is performed so."
            }
            Self::Speakers => {
                "The ranks of a host do their part in shared memory, by the first of them, which then talks to those of the other hosts. \
                 For few bytes, and where hosts have unlike numbers of ranks."
            }
            Self::Slices => {
                "The ranks of a host deal their part out in shared memory; each talks about its slice to those at its place on the other hosts; \
                 then those of a host show each other theirs. Over the network goes each host's sum."
            }
        }
    }

    /// An all_reduce of two hosts with two ranks each: what goes over shared memory, what over the network.
    pub const fn picture(self) -> &'static str {
        match self {
            Self::Direct => "0 1 | 2 3   all with all, over the network\n",
            Self::Speakers => {
                "0 ← 1 | 2 ← 3   shared memory: sums at the first of a host\n\
                 0 ←───→ 2       network: the sums of hosts\n\
                 0 → 1 | 2 → 3   shared memory: the result\n"
            }
            Self::Slices => {
                "0 ↔ 1 | 2 ↔ 3   shared memory: each has the host's sum of its slice\n\
                 0 ←───→ 2       network: slice 0 …\n    \
                     1 ←───→ 3   … and beside it slice 1\n\
                 0 ↔ 1 | 2 ↔ 3   shared memory: slices to all\n"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recommended_can_be_taken_and_what_is_forced_is_taken_where_it_can() {
        use OpKind::{
            AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
        };
        for op in [AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter]
        {
            for bytes in [0, 100, 1 << 20] {
                for (is_even, is_in_blocks) in [(false, false), (true, false), (true, true)] {
                    let call = LevelsCall { is_even, is_in_blocks, ..LevelsCall::new(op, bytes) };
                    assert_eq!(call.obstacle(call.recommended()), None, "{call:?}");
                    for &way in LevelsWay::of(op) {
                        let can = call.obstacle(way).is_none();
                        assert_eq!(call.choose(Some(way)), if can { way } else { call.recommended() });
                    }
                }
            }
        }
    }
}
