//! The properties of an algorithm: what is worth knowing about it, as text for people and as functions for the program.

use crate::{Buffers, Cost, Shape, Step, Volume};
use phalanx_core::OpKind;
use std::fmt;

/// World sizes on which an algorithm works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Worlds {
    /// All.
    Any,
    /// 1, 2, 4, 8, …
    PowersOfTwo,
}

impl Worlds {
    /// Whether `world_size` is among them.
    pub const fn contains(self, world_size: usize) -> bool {
        match self {
            Self::Any => world_size > 0,
            Self::PowersOfTwo => world_size.is_power_of_two(),
        }
    }
}

impl fmt::Display for Worlds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Any => "any world size",
            Self::PowersOfTwo => "a power of two of ranks",
        })
    }
}

/// Where contributions to a reduction become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Combining {
    /// Nowhere: it is no reduction.
    Nowhere,
    /// Partial sums travel, and ranks add to them: the order of the sum is the algorithm's.
    OnTheWay,
    /// Only contributions and results travel, and each element is combined at one rank, in the order of the steps or in that of the ranks.
    AtOneRank,
    /// The contributions of all travel to every rank that is to have the result, and each combines them in the order of the ranks.
    AtEveryRank,
}

/// The ranks from which on algorithms are candidates that are [for many](Considered::ForManyRanks).
pub const MANY_RANKS: usize = 32;

/// For which calls an algorithm is a candidate. Any of them can be [forced](crate::Selector::forced).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Considered {
    /// For all.
    Always,
    /// For [sums of half types](crate::SumKind::Wide), and [in rank order](crate::SumKind::InRankOrder).
    ForWideSums,
    /// For sums [in rank order](crate::SumKind::InRankOrder) only.
    ForRankOrder,
    /// For all on [`MANY_RANKS`] or more: on fewer it has not been measured.
    ForManyRanks,
}

/// What is worth knowing about an algorithm.
///
/// In the formulas P is the number of ranks, n the length of the whole buffer, and b the length of the largest block.
#[derive(Debug)]
pub struct Properties {
    /// The operation it performs.
    pub op: OpKind,
    /// Its name among the algorithms for that operation.
    pub name: &'static str,
    /// How it works, in a sentence or two.
    pub idea: &'static str,
    /// Transfers on the longest path.
    pub rounds: &'static str,
    /// Most elements that a rank sends.
    pub sent: &'static str,
    /// Memory besides the buffers of the call.
    pub scratch: &'static str,
    /// Where it can run.
    pub worlds: Worlds,
    /// Which buffers its spans index.
    pub buffers: Buffers,
    /// Whether a step may receive into elements that it is sending, so that what arrives has to wait in scratch memory
    /// until the send is over. Otherwise every step's two spans are disjoint.
    pub overlaps: bool,
    /// Where contributions become one.
    pub combines: Combining,
    /// For which calls it is a candidate.
    pub considered: Considered,
    /// Where it was published.
    pub source: &'static str,
    /// The schedule for 5 ranks (4 where it must be a power of two), one element a rank, as [`draw`](crate::draw()) draws it.
    pub picture: &'static str,
    pub(crate) cost: fn(Volume) -> Cost,
    pub(crate) steps: fn(&Shape<'_>) -> Vec<Step>,
}

impl fmt::Display for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}/{}: {}", self.op, self.name, self.idea)?;
        for (key, value) in [("rounds", self.rounds), ("sent", self.sent), ("scratch", self.scratch)] {
            writeln!(f, "  {key:<8} {value}")?;
        }
        writeln!(f, "  {:<8} {}", "worlds", self.worlds)?;
        writeln!(f, "  {:<8} {}", "source", self.source)
    }
}

/// Declares the `PROPERTIES` of an algorithm file, whose documentation is made of their own words and picture.
macro_rules! properties {
    (
        op: $op:ident, name: $name:literal, idea: $idea:literal,
        rounds: $rounds:literal, sent: $sent:literal, scratch: $scratch:literal,
        worlds: $worlds:ident, buffers: $buffers:ident, overlaps: $overlaps:literal,
        $(combines: $combines:ident,)? $(considered: $considered:ident,)?
        source: $source:literal, cost: $cost:expr, picture: $picture:literal $(,)?
    ) => {
        #[doc = $idea]
        ///
        /// | | (P ranks, n elements, b the largest block) |
        /// |-|-|
        #[doc = concat!("| rounds | ", $rounds, " |")]
        #[doc = concat!("| most elements sent by a rank | ", $sent, " |")]
        #[doc = concat!("| scratch memory | ", $scratch, " |")]
        #[doc = concat!("| world sizes | ", stringify!($worlds), " |")]
        #[doc = concat!("| source | ", $source, " |")]
        ///
        /// A column a rank, a row a round: `2→1` sends element 2 to rank 1, `+2←0` combines what rank 0 sends,
        /// `Σ2←0` does so for the last time, `2←0` copies it; `·` is an empty message.
        ///
        #[doc = concat!("```text\n", $picture, "```")]
        pub static PROPERTIES: crate::Properties = crate::Properties {
            op: phalanx_core::OpKind::$op,
            name: $name,
            idea: $idea,
            rounds: $rounds,
            sent: $sent,
            scratch: $scratch,
            worlds: crate::Worlds::$worlds,
            buffers: crate::Buffers::$buffers,
            overlaps: $overlaps,
            combines: crate::properties::named!(Combining, Nowhere $($combines)?),
            considered: crate::properties::named!(Considered, Always $($considered)?),
            source: $source,
            picture: $picture,
            cost: $cost,
            steps,
        };
    };
}
pub(crate) use properties;

/// The variant of that name, or the usual one where none is given.
macro_rules! named {
    ($type:ident, $usual:ident) => {
        crate::$type::$usual
    };
    ($type:ident, $usual:ident $variant:ident) => {
        crate::$type::$variant
    };
}
pub(crate) use named;
