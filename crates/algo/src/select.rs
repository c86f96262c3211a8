//! The choice among algorithms: one function, whose answer can be printed and forced.

use crate::{Algorithm, Link};
use phalanx_core::{Error, OpKind, Result};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Chooses the algorithm of each operation: the cheapest by the cost model, unless one is forced.
///
/// The choice depends on nothing but this value and the arguments, so ranks with equal selectors choose alike. They have to.
///
/// # Examples
/// ```
/// use phalanx_algo::{Algorithm, Selector};
/// use phalanx_core::OpKind;
///
/// let selector = Selector::default();
/// assert_eq!(selector.select(OpKind::AllReduce, 64, 4), Algorithm::AllReduceRecursiveDoubling);
/// assert_eq!(selector.select(OpKind::AllReduce, 64 << 20, 4), Algorithm::AllReduceHalvingDoubling);
///
/// let selector = Selector::forced_from("all_reduce=ring")?;
/// assert_eq!(selector.select(OpKind::AllReduce, 64, 4), Algorithm::AllReduceRing);
/// # Ok::<(), phalanx_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Selector {
    /// The prices.
    pub link: Link,
    /// Algorithms to take whatever they cost. Where one does not support the world size (a subgroup may be smaller), the
    /// cheapest is taken as if nothing were forced, and [`explain`](Self::explain) says so.
    pub forced: BTreeMap<OpKind, Algorithm>,
}

impl Selector {
    /// A selector with the default link and forced algorithms, written `all_reduce=ring,broadcast=binomial`.
    ///
    /// Empty text forces nothing; spaces don't matter; of two entries for an operation the last one counts.
    ///
    /// # Errors
    /// [`Error::Config`] that lists the valid names, where an operation or an algorithm does not exist.
    pub fn forced_from(text: &str) -> Result<Self> {
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let forced = entries.map(forced_entry).collect::<Result<_>>()?;
        Ok(Self { link: Link::default(), forced })
    }

    /// The algorithm for `op` on a buffer of `bytes` (all blocks together) and `world_size` ranks.
    ///
    /// # Panics
    /// If `op` is not a collective, or there are no ranks.
    pub fn select(&self, op: OpKind, bytes: usize, world_size: usize) -> Algorithm {
        let price = |algorithm: Algorithm| match algorithm.is_for_wide_sums() {
            true => f64::INFINITY,
            false => self.price(algorithm, bytes, world_size),
        };
        self.cheapest(op, world_size, price)
    }

    /// As [`select`](Self::select), where partial sums are twice as long as contributions and results: so `f16` and `bf16` are added, whose partial
    /// sums are `f32`.
    ///
    /// # Panics
    /// As [`select`](Self::select) does.
    pub fn select_for_wide_sums(&self, op: OpKind, bytes: usize, world_size: usize) -> Algorithm {
        let price = |algorithm: Algorithm| {
            // Of two ranks neither sends a sum. Of more, about half of what they send are sums.
            let is_longer = algorithm.sends_partial_sums() && world_size > 2;
            self.price(algorithm, if is_longer { bytes.saturating_add(bytes / 2) } else { bytes }, world_size)
        };
        self.cheapest(op, world_size, price)
    }

    /// Among equals the first is taken: the simplest.
    fn cheapest(&self, op: OpKind, world_size: usize, price: impl Fn(Algorithm) -> f64) -> Algorithm {
        self.forced_for(op, world_size).unwrap_or_else(|| {
            candidates(op, world_size)
                .min_by(|a, b| price(*a).total_cmp(&price(*b)))
                .unwrap_or_else(|| panic!("{op} of {world_size} ranks is no collective"))
        })
    }

    /// The choice of [`select`](Self::select) with the price of every candidate, as text for people.
    ///
    /// # Panics
    /// As [`select`](Self::select) does.
    pub fn explain(&self, op: OpKind, bytes: usize, world_size: usize) -> String {
        let chosen = self.select(op, bytes, world_size);
        let mut text = format!("{op}, {bytes} bytes, {world_size} ranks\n");
        for algorithm in Algorithm::of(op) {
            let mark = if algorithm == chosen { '>' } else { ' ' };
            let forced = match self.forced.get(&op) == Some(&algorithm) {
                true => " (forced)",
                false if algorithm.is_for_wide_sums() => " (for f16 and bf16)",
                false => "",
            };
            let price = if algorithm.supports(world_size) {
                format!("{:.1} µs", 1e6 * self.price(algorithm, bytes, world_size))
            } else {
                format!("needs {}", algorithm.card().worlds)
            };
            // Writing to a String can't fail.
            let _ = writeln!(text, "{mark} {:<24} {price}{forced}", algorithm.name());
        }
        text
    }

    fn price(&self, algorithm: Algorithm, bytes: usize, world_size: usize) -> f64 {
        algorithm.seconds(world_size, bytes, &self.link)
    }

    fn forced_for(&self, op: OpKind, world_size: usize) -> Option<Algorithm> {
        self.forced.get(&op).copied().filter(|a| a.op() == op && a.supports(world_size))
    }
}

fn candidates(op: OpKind, world_size: usize) -> impl Iterator<Item = Algorithm> {
    Algorithm::of(op).filter(move |a| a.supports(world_size))
}

/// Parses `operation=name`.
fn forced_entry(entry: &str) -> Result<(OpKind, Algorithm)> {
    let (op, name) = entry.split_once('=').map(|(op, name)| (op.trim(), name.trim())).ok_or_else(|| {
        Error::config(format!("{entry:?} is not of the form operation=algorithm, as in all_reduce=ring"))
    })?;
    let of_op: Vec<_> = Algorithm::ALL.iter().copied().filter(|a| a.op().name() == op).collect();
    if of_op.is_empty() {
        let mut ops: Vec<_> = Algorithm::ALL.iter().map(|a| a.op().name()).collect();
        ops.dedup();
        return Err(Error::config(format!("no collective is called {op:?}; there are {}", ops.join(", "))));
    }
    let found = of_op.iter().find(|a| a.name() == name);
    found.map(|a| (a.op(), *a)).ok_or_else(|| {
        let names: Vec<_> = of_op.iter().map(|a| a.name()).collect();
        Error::config(format!("{op} has no algorithm {name:?}; it has {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(op: OpKind, bytes: usize, world_size: usize) -> &'static str {
        Selector::default().select(op, bytes, world_size).name()
    }

    #[test]
    fn few_bytes_want_few_rounds_and_many_bytes_little_traffic() {
        for (op, world_size, few, many) in [
            (OpKind::AllReduce, 2, "recursive_doubling", "ring"),
            (OpKind::AllReduce, 4, "recursive_doubling", "halving_doubling"),
            (OpKind::AllReduce, 6, "recursive_doubling", "circulant"),
            (OpKind::Broadcast, 8, "binomial", "chain"),
            (OpKind::Reduce, 8, "binomial", "reduce_scatter_gather"),
            (OpKind::Gather, 8, "binomial", "flat"),
            (OpKind::Scatter, 8, "binomial", "flat"),
            (OpKind::AllGather, 8, "recursive_doubling", "recursive_doubling"),
            (OpKind::AllGather, 7, "bruck", "bruck"),
            (OpKind::ReduceScatter, 8, "halving", "halving"),
            (OpKind::ReduceScatter, 7, "circulant", "circulant"),
        ] {
            assert_eq!(choice(op, 64, world_size), few, "{op} {world_size}");
            for bytes in [256 << 20, (256 << 20) + 1] {
                assert_eq!(choice(op, bytes, world_size), many, "{op} {world_size}, {bytes} bytes");
            }
        }
    }

    #[test]
    fn a_chain_of_many_ranks_is_too_long_for_middling_buffers() {
        assert_eq!(choice(OpKind::Broadcast, 1 << 20, 64), "scatter_all_gather");
        assert_eq!(choice(OpKind::Broadcast, 64 << 20, 64), "chain");
    }

    #[test]
    fn wide_sums_stay_where_they_are_unless_messages_are_dear() {
        let choice = |bytes, world_size| {
            Selector::default().select_for_wide_sums(OpKind::AllReduce, bytes, world_size).name()
        };
        assert_eq!([choice(64, 4), choice(64 << 20, 4)], ["recursive_doubling", "pairwise"]);
        assert_eq!([choice(64, 2), choice(64 << 20, 2)], ["recursive_doubling", "ring"]);
        assert_eq!(choice(64 << 20, 6), "pairwise");
    }

    #[test]
    fn slower_links_shift_the_border() {
        let slow = Selector { link: Link { latency_s: 10e-3, ..Link::TCP }, ..Selector::default() };
        let border = 1 << 20;
        assert_eq!(choice(OpKind::AllReduce, border, 4), "halving_doubling");
        assert_eq!(slow.select(OpKind::AllReduce, border, 4), Algorithm::AllReduceRecursiveDoubling);
    }

    #[test]
    fn every_collective_has_a_choice_at_every_size() {
        for &algorithm in Algorithm::ALL {
            for world_size in 1..=64 {
                for bytes in [0, 1, 1 << 16, usize::MAX] {
                    let chosen = Selector::default().select(algorithm.op(), bytes, world_size);
                    assert!(chosen.op() == algorithm.op() && chosen.supports(world_size));
                }
            }
        }
    }

    #[test]
    fn a_forced_algorithm_is_taken_where_it_can_run() {
        let selector =
            Selector::forced_from(" reduce_scatter = halving, all_reduce=flat,all_reduce=ring,").unwrap();
        assert_eq!(selector.select(OpKind::AllReduce, 1, 9), Algorithm::AllReduceRing);
        assert_eq!(selector.select(OpKind::ReduceScatter, 1, 4), Algorithm::ReduceScatterHalving);
        assert_eq!(selector.select(OpKind::ReduceScatter, 1, 5), Algorithm::ReduceScatterCirculant);
        assert_eq!(selector.select(OpKind::Broadcast, 1, 9), Algorithm::BroadcastBinomial);
        assert_eq!(Selector::forced_from("").unwrap(), Selector::default());
    }

    #[test]
    fn bad_text_is_answered_with_the_valid_names() {
        for (text, expected) in [
            ("all_reduce", "operation=algorithm"),
            ("allreduce=ring", "all_reduce, reduce_scatter, all_gather"),
            ("all_reduce=bruck", "flat, recursive_doubling, ring, halving_doubling, circulant, pairwise"),
        ] {
            match Selector::forced_from(text) {
                Err(Error::Config { what }) => assert!(what.contains(expected), "{what}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }

    #[test]
    fn an_explanation_names_the_choice_and_the_rest() {
        let selector = Selector::forced_from("reduce_scatter=halving").unwrap();
        assert_eq!(
            selector.explain(OpKind::ReduceScatter, 3_000_000, 6),
            "reduce_scatter, 3000000 bytes, 6 ranks\n  \
               ring                     1220.8 µs\n  \
               halving                  needs a power of two of ranks (forced)\n\
             > circulant                1190.8 µs\n  \
               pairwise                 1220.8 µs (for f16 and bf16)\n"
        );
    }
}
