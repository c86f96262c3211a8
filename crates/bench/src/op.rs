//! What is measured, and what its size means.

use clap::ValueEnum;

/// The operations. Their sizes: the buffer of one rank; for `all_gather` the whole output, for `reduce_scatter` and
/// `all_to_all` the whole input, so that sizes compare across operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Op {
    AllReduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    AllToAll,
    /// From even ranks to their neighbours and back; what is reported is half of it.
    SendRecv,
    Barrier,
}

impl Op {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::SendRecv => "send_recv",
            Self::Barrier => "barrier",
        }
    }

    /// Those of `sizes` that make sense.
    pub(crate) fn sizes(self, sizes: &[usize]) -> &[usize] {
        if self == Self::Barrier { &[0] } else { sizes }
    }

    /// How many times each byte goes one way and back in what is timed as one.
    pub(crate) fn repeats(self) -> u32 {
        if self == Self::SendRecv { 2 } else { 1 }
    }
}
