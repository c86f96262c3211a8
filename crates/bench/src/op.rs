//! The operations that are measured, and what a size means for each.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The operations.
///
/// The size of a case is that of the whole buffer, the one that all ranks together fill or read: one rank's for
/// `all_reduce`, `broadcast`, `reduce` and `send_recv`, the larger of input and output for the others. So sizes compare
/// across operations, and agree with nccl-tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize)]
#[value(rename_all = "snake_case")]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "named like the methods of a group")]
pub enum Op {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    AllToAll,
    /// A message from even ranks to their neighbours and back; half of the time is reported.
    SendRecv,
    /// A barrier, which has no size.
    Barrier,
}

/// The place where the result goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the words of MPI and nccl-tests")]
pub enum Place {
    OutOfPlace,
    InPlace,
}

impl Place {
    pub(crate) const BOTH: [Self; 2] = [Self::OutOfPlace, Self::InPlace];
}

impl Op {
    /// As in `all_reduce`.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all_to_all",
            Self::SendRecv => "send_recv",
            Self::Barrier => "barrier",
        }
    }

    /// How this library performs the operation. Whoever can do both is measured in both ways.
    pub(crate) fn places(self) -> &'static [Place] {
        match self {
            Self::AllReduce | Self::Broadcast | Self::Reduce | Self::SendRecv | Self::Barrier => {
                &[Place::InPlace]
            }
            Self::ReduceScatter | Self::AllGather | Self::Gather | Self::Scatter | Self::AllToAll => {
                &Place::BOTH
            }
        }
    }

    /// Whether the buffer is dealt out in blocks, one for each rank.
    pub(crate) fn is_divided(self) -> bool {
        self.places()[0] == Place::OutOfPlace
    }

    /// Whether contributions are combined.
    pub(crate) fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }

    /// Whether one rank, here always 0, is special.
    pub(crate) fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// The elements in one rank's part of a buffer of about `bytes`: its block where blocks are dealt out, else all of
    /// it. `None` where that would be nothing.
    pub fn count(self, bytes: usize, world_size: usize, element_bytes: usize) -> Option<usize> {
        let len = bytes / element_bytes;
        let count = if self.is_divided() { len / world_size } else { len };
        (count > 0 || self == Self::Barrier).then_some(count)
    }

    /// The size of the whole buffer whose parts have `count` elements.
    pub fn bytes(self, count: usize, world_size: usize, element_bytes: usize) -> usize {
        count * element_bytes * if self.is_divided() { world_size } else { 1 }
    }

    /// `busbw / algbw`: how many times each byte of the buffer must pass a rank's link, whatever the algorithm.
    pub fn bus_factor(self, world_size: usize) -> f64 {
        let n = world_size as f64;
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            _ if self.is_divided() => (n - 1.0) / n,
            _ => 1.0,
        }
    }

    /// Those of `sizes` that make sense.
    pub(crate) fn sizes(self, sizes: &[usize]) -> &[usize] {
        if self == Self::Barrier { &[0] } else { sizes }
    }

    /// How many times what is reported is done in what is timed.
    pub(crate) fn repeats(self) -> f64 {
        if self == Self::SendRecv { 2.0 } else { 1.0 }
    }
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_whole_buffer() {
        assert_eq!(Op::AllReduce.count(1003, 4, 4), Some(250));
        assert_eq!(Op::AllGather.count(1003, 4, 4), Some(62));
        assert_eq!(Op::AllGather.bytes(62, 4, 4), 992);
        assert_eq!(Op::Broadcast.bytes(250, 4, 4), 1000);
        assert_eq!(Op::Scatter.count(12, 4, 4), None);
        assert_eq!(Op::Barrier.count(0, 4, 4), Some(0));
    }

    #[test]
    fn factors_are_those_of_nccl_tests() {
        assert_eq!(Op::AllReduce.bus_factor(4), 1.5);
        assert_eq!(Op::ReduceScatter.bus_factor(4), 0.75);
        assert_eq!(Op::Broadcast.bus_factor(4), 1.0);
    }

    #[test]
    fn names_are_those_of_the_flag() {
        for &op in Op::value_variants() {
            assert_eq!(op.to_possible_value().unwrap().get_name(), op.name());
            assert_eq!(serde_json::to_value(op).unwrap(), op.name());
        }
    }
}
