//! The choice of a way in words: the price of every candidate, which one is taken, and why not a forced one.

use crate::{
    Algorithm, Considered, LevelsCall, LevelsWay, Link, MANY_RANKS, MemoryCall, MemoryWay, Predictor,
    Selector, Way, World,
};
use phalanx_core::OpKind;
use std::fmt::Write;

impl Selector {
    /// The choice of [`select`](Self::select) with the price of every algorithm of messages, as text for people.
    ///
    /// # Panics
    /// As [`select`](Self::select) does.
    pub fn explain(&self, op: OpKind, bytes: usize, world_size: usize) -> String {
        let chosen = self.select(op, bytes, world_size);
        let mut text = format!("{op}, {bytes} bytes, {world_size} ranks, by messages\n");
        for algorithm in Algorithm::of(op) {
            let note = match (self.forced_messages(op) == Some(algorithm), algorithm.properties().considered)
            {
                (true, _) => " (forced)",
                (false, Considered::Always) => "",
                (false, Considered::ForWideSums) => " (for f16 and bf16)",
                (false, Considered::ForRankOrder) => " (for sums in rank order)",
                (false, Considered::ForManyRanks) if world_size < MANY_RANKS => " (for 32 ranks or more)",
                (false, Considered::ForManyRanks) => "",
            };
            let price = if algorithm.supports(world_size) {
                price(self.price(algorithm, bytes, world_size))
            } else {
                format!("needs {}", algorithm.properties().worlds)
            };
            line(&mut text, algorithm == chosen, algorithm.name(), &format!("{price}{note}"));
        }
        text
    }

    /// The way that ranks who share memory take, and the others, as text for people. `link` is what flags and copies cost there.
    ///
    /// # Panics
    /// If the operation is not a collective.
    pub fn explain_memory(&self, call: &MemoryCall, link: &Link) -> String {
        let MemoryCall { op, len, world_size, .. } = *call;
        let mut text = format!("{op}, {len} bytes, {world_size} ranks, in shared memory\n");
        let forced = self.forced_memory(op);
        let goes_by_messages = self.forced_messages(op).is_some_and(|a| a.supports(world_size));
        let chosen = Some(call.choose(forced)).filter(|_| !goes_by_messages);
        for &way in MemoryWay::of(op) {
            let note = if forced == Some(way) { " (forced)" } else { "" };
            let words = match call.obstacle(way) {
                Some(why) => format!("{why}{note}"),
                None => format!("{}{note}", price(way.seconds(op, world_size, len, link))),
            };
            line(&mut text, chosen == Some(way), &Way::Memory(op, way).name(), &words);
        }
        text
    }

    /// The way that ranks on several hosts take, and the others, as text for people. `link` is what flags and copies cost inside a host.
    ///
    /// # Panics
    /// If the operation is not a collective.
    pub fn explain_levels(&self, call: &LevelsCall, hosts: usize, per_host: usize, link: &Link) -> String {
        let LevelsCall { op, bytes, .. } = *call;
        let mut text = format!("{op}, {bytes} bytes, {hosts} hosts of {per_host} ranks\n");
        let forced = match self.forced_messages(op) {
            Some(algorithm) if algorithm.supports(hosts * per_host) => Some(LevelsWay::Direct),
            _ => self.forced_levels(op),
        };
        let chosen = call.choose(forced);
        for &way in LevelsWay::of(op) {
            let note = if forced == Some(way) { " (forced)" } else { "" };
            let words = match call.obstacle(way) {
                Some(why) => format!("{why}{note}"),
                None => {
                    let seconds = levels_seconds(way, op, (hosts, per_host), bytes, link, self);
                    format!("{}{note}", price(seconds))
                }
            };
            line(&mut text, chosen == way, &Way::Levels(op, way).name(), &words);
        }
        text
    }
}

/// Predicted seconds of `op` on `hosts` hosts with `per_host` ranks each: the parts inside a host at the prices of `inside`, those between
/// hosts as `across` chooses and prices them, over the one card that the ranks of a host share.
fn levels_seconds(
    way: LevelsWay,
    op: OpKind,
    (hosts, per_host): (usize, usize),
    bytes: usize,
    inside: &Link,
    across: &Selector,
) -> f64 {
    let world = World { ranks: hosts * per_host, per_host, network: across.link, inside: *inside };
    let mut predictor = Predictor::new(world);
    let direct = Selector { link: across.link, ..Selector::default() }.select(op, bytes, world.ranks);
    let prediction = predictor.on_two_levels(op, way, bytes);
    prediction.unwrap_or_else(|| predictor.by_messages(direct, bytes)).seconds
}

fn price(seconds: f64) -> String {
    format!("{:.1} µs", 1e6 * seconds)
}

fn line(text: &mut String, is_chosen: bool, name: &str, words: &str) {
    let mark = if is_chosen { '>' } else { ' ' };
    // Writing to a String can't fail.
    let _ = writeln!(text, "{mark} {name:<24} {words}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_names_the_choice_and_the_rest() {
        let selector = Selector::forced_from("reduce_scatter=halving").unwrap();
        let text = selector.explain(OpKind::ReduceScatter, 3_000_000, 6);
        let expected = "reduce_scatter, 3000000 bytes, 6 ranks, by messages\n  \
               ring                     1220.8 µs\n  \
               halving                  needs a power of two of ranks (forced)\n\
             > circulant                1190.8 µs\n  \
               pairwise                 1220.8 µs (for f16 and bf16)\n";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn a_forced_way_is_marked_where_it_is_taken_and_the_obstacle_named_where_not() {
        let selector =
            Selector::forced_from("all_reduce=shm/one_shot,broadcast=binomial,reduce=two_level/direct");
        let selector = selector.unwrap();
        let memory = |op, bytes| selector.explain_memory(&MemoryCall::new(op, bytes, 4), &Link::MEMORY);
        assert!(memory(OpKind::AllReduce, 64 << 10).contains("> shm/one_shot"));
        let text = memory(OpKind::AllReduce, 1 << 20);
        assert!(text.contains("> shm/two_phases") && text.contains("256 KiB at once (forced)"), "{text}");
        assert!(!memory(OpKind::Broadcast, 64).contains('>'), "an algorithm of messages is taken");
        let levels = |op| selector.explain_levels(&LevelsCall::new(op, 64), 2, 4, &Link::MEMORY);
        assert!(levels(OpKind::Reduce).contains("> two_level/direct"));
        assert!(levels(OpKind::Broadcast).contains("> two_level/direct"));
        assert!(levels(OpKind::AllReduce).contains("> two_level/speakers"));
    }

    #[test]
    fn two_levels_are_cheaper_than_messages_among_all() {
        let across = Selector::default();
        let price = |way: LevelsWay, bytes| {
            levels_seconds(way, OpKind::AllReduce, (4, 8), bytes, &Link::MEMORY, &across)
        };
        assert!(price(LevelsWay::Speakers, 1 << 10) < price(LevelsWay::Direct, 1 << 10));
        assert!(price(LevelsWay::Slices, 64 << 20) < price(LevelsWay::Speakers, 64 << 20));
    }
}
