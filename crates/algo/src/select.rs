//! The choice among algorithms of messages: one function, whose answer can be forced, and printed (see `explain`). Where ranks share memory
//! `shared_memory.rs` chooses, and over several hosts `two_level.rs` which parts there are.

use crate::{Algorithm, Considered, Kind, LevelsWay, Link, MANY_RANKS, MemoryWay, Way};
use phalanx_core::{Error, OpKind, Result};
use std::collections::BTreeMap;

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
    /// Ways to take whatever they cost, each for its operation. Where one can't be taken (a subgroup may be smaller, its ranks on several
    /// hosts, a buffer too long), that is done which would be if nothing were forced; [`explain`](Self::explain) says so, and a group warns.
    pub forced: BTreeMap<OpKind, Way>,
}

impl Selector {
    /// A selector with the default link and forced ways, written `all_reduce=ring,broadcast=shm/staged`.
    ///
    /// Empty text forces nothing; spaces don't matter; of two entries for an operation the last one counts.
    ///
    /// # Errors
    /// [`Error::Config`] that lists the valid names, where an operation or an algorithm does not exist.
    pub fn forced_from(text: &str) -> Result<Self> {
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let forced =
            entries.map(|entry| Way::forced(entry).map(|way| (way.op(), way))).collect::<Result<_>>()?;
        Ok(Self { link: Link::default(), forced })
    }

    /// The algorithm for `op` on a buffer of `bytes` (all blocks together) and `world_size` ranks.
    ///
    /// # Panics
    /// If `op` is not a collective, or there are no ranks.
    pub fn select(&self, op: OpKind, bytes: usize, world_size: usize) -> Algorithm {
        self.select_for(op, SumKind::Plain, bytes, world_size)
    }

    /// As [`select`](Self::select), for sums of a kind. Among algorithms of one price the first is taken: the simplest.
    ///
    /// # Panics
    /// As [`select`](Self::select) does.
    pub fn select_for(&self, op: OpKind, sums: SumKind, bytes: usize, world_size: usize) -> Algorithm {
        let price = |algorithm: &Algorithm| self.price_for(*algorithm, sums, bytes, world_size);
        let cheapest = || {
            candidates(op, sums, world_size)
                .min_by(|a, b| price(a).total_cmp(&price(b)))
                .unwrap_or_else(|| panic!("{op} of {world_size} ranks is no collective"))
        };
        self.forced_for(op, sums, world_size).unwrap_or_else(cheapest)
    }

    /// The algorithm of messages that is forced for `op`, whether or not it can be taken.
    pub fn forced_messages(&self, op: OpKind) -> Option<Algorithm> {
        match self.forced.get(&op)? {
            Way::Messages(algorithm) => Some(*algorithm).filter(|algorithm| algorithm.op() == op),
            Way::Memory(..) | Way::Levels(..) => None,
        }
    }

    /// The way in shared memory that is forced for `op`, whether or not it can be taken.
    pub fn forced_memory(&self, op: OpKind) -> Option<MemoryWay> {
        match self.forced.get(&op)? {
            Way::Memory(_, way) => Some(*way),
            Way::Messages(_) | Way::Levels(..) => None,
        }
    }

    /// The way over several hosts that is forced for `op`, whether or not it can be taken.
    pub fn forced_levels(&self, op: OpKind) -> Option<LevelsWay> {
        match self.forced.get(&op)? {
            Way::Levels(_, way) => Some(*way),
            Way::Messages(_) | Way::Memory(..) => None,
        }
    }

    /// Whether `op` can be performed in the order of the ranks, with what is forced.
    ///
    /// # Errors
    /// [`Error::Config`] if the forced way adds up in another order; it names those that can.
    pub fn check_rank_order(&self, op: OpKind) -> Result<()> {
        let Some(way) = self.forced.get(&op).filter(|way| !way.keeps_rank_order()) else { return Ok(()) };
        let able: Vec<_> = Way::of(op).filter(|way| way.keeps_rank_order()).map(Way::name).collect();
        let what = format!(
            "{op}={} is forced (PHALANX_ALGO) and does not add up in the order of the ranks, as a reproducible group does; these do: {}",
            way.name(),
            able.join(", ")
        );
        Err(Error::config(what))
    }

    /// The forced ways that a group can never take, and why: its ranks are so many, and work together `by` ways of this kind.
    pub fn never_taken(&self, by: Kind, world_size: usize) -> Vec<(Way, String)> {
        let obstacle = |way: Way| match way {
            Way::Messages(algorithm) if !algorithm.supports(world_size) => {
                Some(format!("it needs {}, not {world_size}", algorithm.properties().worlds))
            }
            Way::Memory(..) if by != Kind::Memory => Some("the ranks do not all share memory".into()),
            Way::Levels(..) if by != Kind::Levels => {
                Some("the ranks are not several to a host on several hosts".into())
            }
            _ => None,
        };
        self.forced.values().filter_map(|way| Some((*way, obstacle(*way)?))).collect()
    }

    pub(crate) fn price(&self, algorithm: Algorithm, bytes: usize, world_size: usize) -> f64 {
        algorithm.seconds(world_size, bytes, &self.link)
    }

    fn price_for(&self, algorithm: Algorithm, sums: SumKind, bytes: usize, world_size: usize) -> f64 {
        // Of two ranks neither sends a sum. Of more, about half of what they send are sums.
        let is_longer = sums == SumKind::Wide && algorithm.sends_partial_sums() && world_size > 2;
        self.price(algorithm, if is_longer { bytes.saturating_add(bytes / 2) } else { bytes }, world_size)
    }

    fn forced_for(&self, op: OpKind, sums: SumKind, world_size: usize) -> Option<Algorithm> {
        self.forced_messages(op).filter(|a| a.supports(world_size) && sums.can_be_those_of(*a))
    }
}

/// What the sums of a call are like: which algorithms come into question, and how long partial sums are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SumKind {
    /// As long as contributions and results, and in whichever order. Also for what is no reduction.
    Plain,
    /// Twice as long, where partial sums travel: so `f16` and `bf16` are added, whose partial sums are `f32`.
    Wide,
    /// In the order of the ranks: `((x0 + x1) + x2) + …`.
    InRankOrder,
}

impl SumKind {
    fn can_be_those_of(self, algorithm: Algorithm) -> bool {
        self != Self::InRankOrder || algorithm.keeps_rank_order()
    }

    /// Whether `algorithm` is a candidate for such sums of so many ranks.
    pub(crate) fn considers(self, algorithm: Algorithm, world_size: usize) -> bool {
        match algorithm.properties().considered {
            Considered::Always => self.can_be_those_of(algorithm),
            Considered::ForWideSums => self != Self::Plain,
            Considered::ForRankOrder => self == Self::InRankOrder,
            Considered::ForManyRanks => world_size >= MANY_RANKS && self.can_be_those_of(algorithm),
        }
    }
}

fn candidates(op: OpKind, sums: SumKind, world_size: usize) -> impl Iterator<Item = Algorithm> {
    Algorithm::of(op).filter(move |a| sums.considers(*a, world_size) && a.supports(world_size))
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
        assert_eq!(choice(OpKind::Broadcast, 64 << 20, 64), "circulant");
        assert_eq!(choice(OpKind::Reduce, 64 << 20, 64), "circulant");
    }

    #[test]
    fn what_is_for_many_ranks_is_chosen_by_no_small_world() {
        let links = [Link::TCP, Link::LOOPBACK, Link { ranks_per_core: 4.0, ..Link::LOOPBACK }];
        for (link, world_size) in
            links.into_iter().flat_map(|link| (1..MANY_RANKS).map(move |ranks| (link, ranks)))
        {
            for bytes in (0..40).map(|shift| 1 << shift) {
                for op in [OpKind::Broadcast, OpKind::Reduce] {
                    let chosen = Selector { link, ..Selector::default() }.select(op, bytes, world_size);
                    assert_ne!(
                        chosen.properties().considered,
                        Considered::ForManyRanks,
                        "{op} {world_size} {bytes}"
                    );
                }
            }
        }
        let before = ["flat", "binomial", "scatter_all_gather", "chain"];
        for world_size in 2..=8 {
            assert!((0..40).all(|shift| before.contains(&choice(OpKind::Broadcast, 1 << shift, world_size))));
        }
    }

    #[test]
    fn wide_sums_stay_where_they_are_unless_messages_are_dear() {
        let choice = |bytes, world_size| {
            Selector::default().select_for(OpKind::AllReduce, SumKind::Wide, bytes, world_size).name()
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
        // A way of shared memory is none of messages.
        let selector = Selector::forced_from("all_reduce=shm/push,broadcast=two_level/direct").unwrap();
        assert_eq!(selector.select(OpKind::AllReduce, 64, 4), Algorithm::AllReduceRecursiveDoubling);
        assert_eq!(selector.forced_memory(OpKind::AllReduce), Some(MemoryWay::Push));
        assert_eq!(selector.forced_levels(OpKind::Broadcast), Some(LevelsWay::Direct));
        assert_eq!(selector.forced_messages(OpKind::AllReduce), None);
    }

    #[test]
    fn sums_in_rank_order_are_made_by_those_that_can() {
        let choice = |bytes, world_size| {
            Selector::default().select_for(OpKind::AllReduce, SumKind::InRankOrder, bytes, world_size)
        };
        for (bytes, world_size) in [(8, 2), (8, 7), (1 << 20, 2), (64 << 20, 8)] {
            assert!(choice(bytes, world_size).keeps_rank_order(), "{bytes} bytes, {world_size} ranks");
        }
        let forced = |text| Selector::forced_from(text).unwrap().check_rank_order(OpKind::AllReduce);
        for able in
            ["", "all_reduce=flat", "all_reduce=shm/push", "all_reduce=two_level/direct", "reduce=binomial"]
        {
            forced(able).unwrap();
        }
        for unable in ["all_reduce=ring", "all_reduce=two_level/slices"] {
            let words = forced(unable).unwrap_err().to_string();
            assert!(words.contains(unable) && words.contains("these do: flat, pairwise,"), "{words}");
        }
    }

    #[test]
    fn what_a_group_can_never_take_is_known() {
        let selector =
            Selector::forced_from("all_reduce=shm/push,broadcast=two_level/direct,reduce_scatter=halving")
                .unwrap();
        let never = |by, world_size| selector.never_taken(by, world_size).len();
        assert_eq!([never(Kind::Messages, 4), never(Kind::Memory, 4), never(Kind::Levels, 4)], [2, 1, 1]);
        let words = &selector.never_taken(Kind::Memory, 6)[0].1;
        assert_eq!(words, "it needs a power of two of ranks, not 6");
    }

    #[test]
    fn bad_text_is_answered_with_the_valid_names() {
        for (text, expected) in [
            ("all_reduce", "operation=algorithm"),
            ("allreduce=ring", "all_reduce, reduce_scatter, all_gather"),
            ("all_reduce=bruck", "it has flat, recursive_doubling, ring, "),
            ("all_reduce=shm/shared", "shm/inline, shm/one_shot, shm/two_phases, shm/push"),
        ] {
            match Selector::forced_from(text) {
                Err(Error::Config { what }) => assert!(what.contains(expected), "{what}"),
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}
