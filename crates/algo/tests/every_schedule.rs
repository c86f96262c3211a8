//! The checker over every algorithm: worlds 1 to 64, awkward lengths, uneven blocks, several roots.

use phalanx_algo::{Algorithm, Job, Proof, check};
use phalanx_core::{Layout, OpKind};
use proptest::prelude::*;
use std::collections::BTreeSet;

const WORLDS: std::ops::RangeInclusive<usize> = 1..=64;

fn prove(algorithm: Algorithm, job: &Job) -> Proof {
    check(algorithm, job).unwrap_or_else(|why| {
        panic!("{algorithm}, {} ranks, root {}: {why}\n{job:?}", job.world_size(), job.root())
    })
}

fn has_root(op: OpKind) -> bool {
    matches!(op, OpKind::Broadcast | OpKind::Reduce | OpKind::Gather | OpKind::Scatter)
}

fn roots(op: OpKind, world_size: usize) -> BTreeSet<usize> {
    if has_root(op) { [0, world_size / 2, world_size - 1].into() } else { [0].into() }
}

/// Whether the blocks are the caller's, not the algorithm's.
fn takes_blocks(op: OpKind) -> bool {
    !matches!(op, OpKind::AllReduce | OpKind::Broadcast | OpKind::Reduce | OpKind::Barrier)
}

fn layouts(op: OpKind, world_size: usize) -> Vec<Layout> {
    let lengths = BTreeSet::from([0, 1, world_size - 1, world_size, world_size + 1, 131]);
    let mut layouts: Vec<_> = lengths.into_iter().map(|len| Layout::even(world_size, len)).collect();
    if takes_blocks(op) {
        let uneven = |count: &dyn Fn(usize) -> usize| {
            Layout::from_counts(&(0..world_size).map(count).collect::<Vec<_>>())
        };
        layouts.push(uneven(&|r| r * 7 % 5)); // all sizes, zero among them
        layouts.push(uneven(&|r| if r == world_size / 3 { 9 } else { 0 })); // one rank has it all
        layouts.push(uneven(&|r| if r == 0 { 0 } else { 2 }));
    }
    layouts
}

fn prove_all(op: OpKind) {
    for algorithm in Algorithm::of(op) {
        for world_size in WORLDS.filter(|&w| algorithm.supports(w)) {
            for layout in layouts(op, world_size) {
                for root in roots(op, world_size) {
                    prove(algorithm, &Job::new(op, layout.clone(), root));
                }
            }
        }
    }
}

macro_rules! prove_each {
    ($($test:ident: $op:ident),* $(,)?) => { $(
        #[test]
        fn $test() {
            prove_all(OpKind::$op);
        }
    )* };
}

prove_each! {
    all_reduce: AllReduce,
    reduce_scatter: ReduceScatter,
    all_gather: AllGather,
    broadcast: Broadcast,
    reduce: Reduce,
    gather: Gather,
    scatter: Scatter,
    all_to_all: AllToAll,
    barrier: Barrier,
}

#[test]
fn every_algorithm_is_proved_by_some_test() {
    use OpKind::{
        AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
    };
    let tested = [AllReduce, ReduceScatter, AllGather, Broadcast, Reduce, Gather, Scatter, AllToAll, Barrier];
    assert!(Algorithm::ALL.iter().all(|a| tested.contains(&a.op())));
}

#[test]
fn one_rank_alone_has_no_steps() {
    for &algorithm in Algorithm::ALL {
        let schedules = Job::new(algorithm.op(), Layout::even(1, 10), 0).schedules(algorithm);
        assert_eq!(schedules, [[]], "{algorithm}");
    }
}

/// With even blocks the formulas are not just bounds.
#[test]
fn costs_on_the_cards_are_exact_for_powers_of_two() {
    for &algorithm in Algorithm::ALL {
        for world_size in [2usize, 4, 8, 16, 32, 64] {
            // All divide it that deal out to ranks, or cut it into pieces.
            let len = 3 * world_size * world_size.ilog2() as usize;
            let job = Job::new(algorithm.op(), Layout::even(world_size, len), 0);
            let (proof, cost) = (prove(algorithm, &job), algorithm.cost(job.volume()));
            let found = [
                proof.rounds,
                proof.sent_max,
                proof.hops,
                proof.messages,
                proof.traffic,
                proof.moved,
                proof.combined,
                proof.scratch,
            ]
            .map(|n| n as f64);
            let expected = [
                cost.rounds,
                cost.sent,
                cost.hops,
                cost.messages,
                cost.traffic,
                cost.moved,
                cost.combined,
                cost.scratch,
            ];
            assert_eq!(
                found, expected,
                "{algorithm} on {world_size} ranks: rounds, sent, hops, messages, traffic, moved, combined, scratch"
            );
            assert_eq!(proof.overlaps, algorithm.properties().overlaps, "{algorithm}");
        }
    }
}

#[test]
fn a_wide_world_is_proved_as_well() {
    for &algorithm in Algorithm::ALL {
        let world_size = if algorithm.supports(100) { 100 } else { 128 };
        prove(algorithm, &Job::new(algorithm.op(), Layout::even(world_size, 201), 1));
    }
}

proptest! {
    #[test]
    fn any_blocks_any_root(counts in prop::collection::vec(0_usize..9, 1..20), root in any::<prop::sample::Index>()) {
        let layout = Layout::from_counts(&counts);
        let root = root.index(counts.len());
        for &algorithm in Algorithm::ALL.iter().filter(|a| a.supports(counts.len())) {
            prove(algorithm, &Job::new(algorithm.op(), layout.clone(), root));
        }
    }

    #[test]
    fn any_exchange(
        counts in (1_usize..12).prop_flat_map(|p| prop::collection::vec(prop::collection::vec(0_usize..6, p), p)),
    ) {
        let job = Job::all_to_all(counts.iter().map(|row| Layout::from_counts(row)).collect());
        for algorithm in Algorithm::of(OpKind::AllToAll) {
            prove(algorithm, &job);
        }
    }
}
