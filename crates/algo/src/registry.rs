//! Algorithms by name: the table of all of them is in `lib.rs`.

use crate::{Buffers, Combining, Cost, Link, Properties, Shape, Step, Volume};
use phalanx_core::{Error, OpKind, Result};
use std::fmt;
use std::str::FromStr;

macro_rules! registry {
    ($($variant:ident => $op:ident / $name:ident),+ $(,)?) => {
        /// A way to perform a collective. Its [properties](Self::properties) says what it costs and where it comes from.
        ///
        /// Written `all_reduce/ring`, and parsed from that.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Algorithm {
            $(
                #[doc = concat!(
                    "`", stringify!($op), "/", stringify!($name), "`: see [its properties](crate::",
                    stringify!($op), "::", stringify!($name), "::PROPERTIES)."
                )]
                $variant,
            )+
        }

        impl Algorithm {
            /// Every algorithm; of those for one operation, the simplest first.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// What is worth knowing about it.
            pub fn properties(self) -> &'static Properties {
                match self {
                    $(Self::$variant => &crate::$op::$name::PROPERTIES,)+
                }
            }
        }
    };
}

algorithms!(registry);

impl Algorithm {
    /// The algorithms that perform `op`; none for operations that are not collectives.
    pub fn of(op: OpKind) -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(move |a| a.op() == op)
    }

    /// The operation it performs.
    pub fn op(self) -> OpKind {
        self.properties().op
    }

    /// Its name among the algorithms for its operation: `ring`.
    pub fn name(self) -> &'static str {
        self.properties().name
    }

    /// Whether it works on `world_size` ranks.
    pub fn supports(self, world_size: usize) -> bool {
        self.properties().worlds.contains(world_size)
    }

    /// Whether partial sums travel, and not contributions and results alone.
    pub fn sends_partial_sums(self) -> bool {
        self.properties().combines == Combining::OnTheWay
    }

    /// Whether the result of a reduction can be that of adding up in the order of the ranks. True of what is no reduction.
    pub fn keeps_rank_order(self) -> bool {
        !self.sends_partial_sums()
    }

    /// Which buffers its spans index.
    pub fn buffers(self) -> Buffers {
        self.properties().buffers
    }

    /// What this algorithm needs for `volume`, by the formulas of its [properties](Self::properties).
    pub fn cost(self, volume: Volume) -> Cost {
        (self.properties().cost)(volume)
    }

    /// Predicted seconds for a buffer of `bytes` (all blocks together, evenly dealt) on `world_size` ranks.
    ///
    /// ```
    /// use phalanx_algo::{Algorithm, Link};
    /// let ms = |algorithm: Algorithm| 1e3 * algorithm.seconds(8, 64 << 20, &Link::TCP);
    /// assert!(ms(Algorithm::AllReduceRing) < ms(Algorithm::AllReduceRecursiveDoubling));
    /// ```
    pub fn seconds(self, world_size: usize, bytes: usize, link: &Link) -> f64 {
        let len = bytes as f64;
        let cost = self.cost(Volume { world_size, len, block: (len / world_size as f64).ceil() });
        link.seconds(world_size, &cost)
    }

    /// The steps of one rank, in the order in which it takes them.
    ///
    /// Between two ranks messages are matched in order, so steps carry no number: the i-th send to a peer meets the
    /// i-th receive from it. Transfers of no elements are left out, except in barriers. One rank alone has no steps.
    /// Every element of the result of a reduction is [finished](crate::Action::Finish) once where it is computed, and
    /// copied from there only afterwards.
    ///
    /// # Cost
    /// Time and memory in proportion to the number of steps, which is at most some multiple of the world size.
    ///
    /// # Panics
    /// If the shape contradicts itself, or the algorithm does not [support](Self::supports) the world size.
    ///
    /// # Examples
    /// ```
    /// use phalanx_algo::{Action, Algorithm, Shape};
    /// use phalanx_core::Layout;
    ///
    /// let layout = Layout::even(2, 10);
    /// let shape = Shape { rank: 0, world_size: 2, layout: &layout, recv_layout: None, root: 0 };
    /// let steps = Algorithm::AllReduceRing.steps(&shape);
    /// let recvs: Vec<_> = steps.iter().flat_map(|s| &s.recv).map(|r| (r.span.first.clone(), r.action)).collect();
    /// assert_eq!(recvs, [(0..5, Action::Finish), (5..10, Action::Copy)]);
    /// ```
    pub fn steps(self, shape: &Shape<'_>) -> Vec<Step> {
        let Shape { rank, world_size, root, .. } = *shape;
        assert!(rank < world_size && root < world_size, "rank {rank} and root {root} of {world_size}");
        assert!(self.supports(world_size), "{self} needs {}, not {world_size}", self.properties().worlds);
        (self.properties().steps)(shape)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.op(), self.name()))
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    /// Parses `operation/name`.
    ///
    /// # Errors
    /// [`Error::Config`] with all valid names.
    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.iter().copied().find(|a| a.to_string() == text).ok_or_else(|| {
            let all: Vec<_> = Self::ALL.iter().map(Self::to_string).collect();
            Error::config(format!("no algorithm {text:?}; there are {}", all.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_parse_back() {
        let names: HashSet<_> = Algorithm::ALL.iter().map(Algorithm::to_string).collect();
        assert_eq!(names.len(), Algorithm::ALL.len());
        for &algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse::<Algorithm>().unwrap(), algorithm);
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let text = "all_reduce/rnig".parse::<Algorithm>().unwrap_err().to_string();
        assert!(text.contains("rnig") && text.contains("all_reduce/ring"), "{text}");
    }

    #[test]
    fn properties_stand_in_the_file_their_name_says() {
        assert_eq!(Algorithm::AllReduceRing.to_string(), "all_reduce/ring");
        assert_eq!(Algorithm::AllToAllPairwise.to_string(), "all_to_all/pairwise");
        assert_eq!(format!("{:>16}|", Algorithm::GatherFlat), "     gather/flat|");
    }
}
