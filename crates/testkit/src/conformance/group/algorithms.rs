//! Every algorithm by force, where the choice by cost would never take it.

use super::movements::movements;
use super::reductions::reductions;
use super::{WORLDS, lengths};
use crate::World;
use crate::oracle::Random;
use half::{bf16, f16};
use phalanx_algo::Algorithm;
use phalanx_core::ReduceOp;
use phalanx_group::ProcessGroup;
use std::collections::BTreeSet;

/// Choices that together take each algorithm at least once, as text for [`World::algorithms`].
pub(super) fn rounds() -> Vec<String> {
    let ops: BTreeSet<_> = Algorithm::ALL.iter().map(|a| a.op()).collect();
    let of = |op| Algorithm::of(op).collect::<Vec<_>>();
    let count = ops.iter().map(|&op| of(op).len()).max().expect("there are algorithms");
    let choice = |round: usize| {
        let one = |op| format!("{op}={}", of(op)[round % of(op).len()].name());
        ops.iter().map(|&op| one(op)).collect::<Vec<_>>().join(",")
    };
    (0..count).map(choice).collect()
}

/// All operations under each algorithm, worlds 1 to 8, against the oracle.
pub fn every_algorithm_computes_the_same(world: &World) {
    for algorithms in rounds() {
        for world_size in WORLDS {
            world.clone().algorithms(algorithms.as_str()).run(world_size, |group| {
                for len in lengths(group.world_size()) {
                    reductions::<f32>(&group, len, ReduceOp::Avg);
                    reductions::<i16>(&group, len, ReduceOp::Sum);
                    movements::<u32>(&group, len);
                }
                reductions::<f32>(&group, 4_099, ReduceOp::Sum);
                movements::<u8>(&group, 4_099);
            });
        }
    }
}

/// Sums that depend on the order of the ranks: the same bits on every rank, and when it is done again.
pub fn every_algorithm_gives_all_ranks_the_same_bits(world: &World) {
    for algorithms in rounds() {
        for world_size in WORLDS {
            let results = world.clone().algorithms(algorithms.as_str()).run(world_size, |group| {
                let sums = rough_sums(&group);
                assert!(sums == rough_sums(&group), "other bits the second time");
                sums
            });
            assert!(
                results.iter().all(|r| *r == results[0]),
                "{algorithms}: {world_size} ranks have unlike bits"
            );
        }
    }
}

/// The bytes of sums, averages and products of numbers that must be rounded.
fn rough_sums(group: &ProcessGroup) -> Vec<u8> {
    let mut bits = Vec::new();
    macro_rules! reduce {
        ($($t:ty),*) => { $(
            for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Prod] {
                for len in [1, group.world_size() + 1, 1031] {
                    let mut buffer: Vec<$t> = Random::new(group.rank() as u64).rough(len);
                    group.all_reduce(&mut buffer, op).unwrap();
                    bits.extend_from_slice(bytemuck::cast_slice(&buffer));
                }
            }
        )* };
    }
    reduce!(f32, f64, f16, bf16);
    bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_algo::{Selector, Way};

    #[test]
    fn the_rounds_take_every_algorithm() {
        let taken: BTreeSet<_> = rounds()
            .iter()
            .flat_map(|text| Selector::forced_from(text).unwrap().forced.into_values())
            .collect();
        assert_eq!(taken, Algorithm::ALL.iter().copied().map(Way::Messages).collect());
    }
}
