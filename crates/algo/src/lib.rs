//! Collective algorithms as pure schedules, their costs, the choice among them, and a checker that proves them.
//!
//! A collective does not depend on the data, so an algorithm is arithmetic: given a rank, the world size and the blocks of
//! the buffer ([`Shape`]), it lists the rank's [`Step`]s: which elements to send to whom, which to receive from whom, and
//! whether to combine or copy them. Everything else is made of that:
//!
//! - a driver performs the steps over a transport (not here);
//! - [`check()`] proves that the schedules of all ranks fit together, give the right result, and cost what the [`Properties`] says;
//! - [`Selector`] chooses the cheapest by its [`Cost`]; the choice can be [printed](Selector::explain) and
//!   [forced](Selector::forced_from);
//! - [`draw()`] makes the pictures among the properties;
//! - [`Predictor`] says what all that would cost in a large [`World`], and what its ranks and network cards would carry ([`Traffic`]).
//!
//! Ranks that share memory need no messages, and a group over several hosts is made of parts. Which ways they have, and which one is taken, is
//! here too ([`MemoryWay`], [`LevelsWay`]), so that one list ([`Way`]) has all that can be listed, priced and forced.
//!
//! Deliberately absent: sockets, threads, clocks, randomness, element types and operators.
//!
//! To add an algorithm, write one file with its properties and its steps, and name it twice in this one, in the table
//! and as a module ([`Algorithm`]), and say in `traffic.rs` what a rank sends: the checker, the pictures, the selection and the tests of the
//! backends take it from there.
//!
//! ```
//! use phalanx_algo::{Action, Algorithm, Selector, Shape};
//! use phalanx_core::{Layout, OpKind};
//!
//! let algorithm = Selector::default().select(OpKind::AllReduce, 4 << 20, 2);
//! assert_eq!(algorithm, Algorithm::AllReduceRing);
//!
//! // Rank 0 of 2 sends its half of the sums, finishes the other half, and collects.
//! let layout = Layout::even(2, 1 << 20);
//! let steps = algorithm.steps(&Shape { rank: 0, world_size: 2, layout: &layout, recv_layout: None, root: 0 });
//! assert_eq!(steps.len(), 2);
//! assert_eq!(steps[0].recv.as_ref().unwrap().action, Action::Finish);
//!
//! println!("{}{}", algorithm.properties(), algorithm.properties().picture);
//! ```

/// The algorithms; of those for one operation, the simplest first.
macro_rules! algorithms {
    ($made_by:ident) => {
        $made_by! {
            AllReduceFlat => all_reduce / flat,
            AllReduceRecursiveDoubling => all_reduce / recursive_doubling,
            AllReduceRing => all_reduce / ring,
            AllReduceHalvingDoubling => all_reduce / halving_doubling,
            AllReduceCirculant => all_reduce / circulant,
            AllReducePairwise => all_reduce / pairwise,
            AllReduceGathered => all_reduce / gathered,
            ReduceScatterRing => reduce_scatter / ring,
            ReduceScatterHalving => reduce_scatter / halving,
            ReduceScatterCirculant => reduce_scatter / circulant,
            ReduceScatterPairwise => reduce_scatter / pairwise,
            AllGatherRing => all_gather / ring,
            AllGatherRecursiveDoubling => all_gather / recursive_doubling,
            AllGatherBruck => all_gather / bruck,
            BroadcastFlat => broadcast / flat,
            BroadcastBinomial => broadcast / binomial,
            BroadcastScatterAllGather => broadcast / scatter_all_gather,
            BroadcastChain => broadcast / chain,
            BroadcastCirculant => broadcast / circulant,
            ReduceBinomial => reduce / binomial,
            ReduceReduceScatterGather => reduce / reduce_scatter_gather,
            ReduceFlat => reduce / flat,
            ReducePairwiseGather => reduce / pairwise_gather,
            ReduceCirculant => reduce / circulant,
            GatherFlat => gather / flat,
            GatherBinomial => gather / binomial,
            ScatterFlat => scatter / flat,
            ScatterBinomial => scatter / binomial,
            AllToAllPairwise => all_to_all / pairwise,
            BarrierCentral => barrier / central,
            BarrierDissemination => barrier / dissemination,
        }
    };
}

mod catalogue;
mod check;
mod circulant_graph;
mod cost;
mod draw;
mod explain;
mod fingerprint;
mod job;
mod link;
mod memory;
mod oracle;
mod plan;
mod power_of_two;
mod prediction;
mod properties;
mod registry;
mod schedule;
mod select;
mod shape;
mod shared_memory;
mod traffic;
mod tree;
mod two_level;
mod unbuffered;

pub use catalogue::{Kind, Way};
pub use check::{Proof, WORLD_SIZE_MAX, check, check_schedules};
pub use cost::{Cost, Volume};
pub use draw::draw;
pub use fingerprint::fingerprint;
pub use job::Job;
pub use link::Link;
pub use prediction::{Choice, Prediction, Predictor, World};
pub use properties::{Combining, Considered, MANY_RANKS, Properties, Worlds};
pub use registry::Algorithm;
pub use schedule::{Action, Recv, Send, Span, Step};
pub use select::{Selector, SumKind};
pub use shape::{Buffers, Shape};
pub use shared_memory::{INLINE_BYTES, INLINE_SUM_BYTES, MemoryCall, MemoryWay, SLOT_BYTES};
pub use traffic::Traffic;
pub use two_level::{LevelsCall, LevelsWay, SLICED_BYTES_MIN};

/// Every rank ends with the combination of all ranks' buffers.
pub mod all_reduce {
    pub mod circulant;
    pub mod flat;
    pub mod gathered;
    pub mod halving_doubling;
    pub mod pairwise;
    pub mod recursive_doubling;
    pub mod ring;
}

/// Every rank ends with its own block of the combination; what is left of the other blocks means nothing.
pub mod reduce_scatter {
    pub mod circulant;
    pub mod halving;
    pub mod pairwise;
    pub mod ring;
}

/// Every rank starts with its own block and ends with all.
pub mod all_gather {
    pub mod bruck;
    pub mod recursive_doubling;
    pub mod ring;
}

/// Every rank ends with the root's buffer.
pub mod broadcast {
    pub mod binomial;
    pub mod chain;
    pub mod circulant;
    pub mod flat;
    pub mod scatter_all_gather;
}

/// The root ends with the combination of all ranks' buffers; what is left on the others means nothing.
pub mod reduce {
    pub mod binomial;
    pub mod circulant;
    pub mod flat;
    pub mod pairwise_gather;
    pub mod reduce_scatter_gather;
}

/// The root ends with every rank's block. Spans index the full buffer on all ranks; a rank that is not the root
/// touches only the blocks of its subtree.
pub mod gather {
    pub mod binomial;
    pub mod flat;
}

/// Every rank ends with its block of the root's buffer. Spans index the full buffer on all ranks; a rank that is not
/// the root touches only the blocks of its subtree.
pub mod scatter {
    pub mod binomial;
    pub mod flat;
}

/// Every rank ends with a block from every rank.
pub mod all_to_all {
    pub mod pairwise;
}

/// Nobody leaves before all have come.
pub mod barrier {
    pub mod central;
    pub mod dissemination;
}
