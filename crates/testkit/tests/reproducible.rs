//! Reproducible reductions: for one world size the same bits whatever carries the data, whichever algorithm does, and however they are cut.

use half::{bf16, f16};
use phalanx_algo::{Algorithm, Way};
use phalanx_core::{Element, Error, OpKind, ReduceOp};
use phalanx_group::ProcessGroup;
use phalanx_testkit::World;
use std::collections::BTreeSet;

const WORLDS: std::ops::RangeInclusive<usize> = 2..=8;
/// Elements of the parameters whose gradients are added up.
const PARAMETERS: [usize; 4] = [3, 29, 1, 14];
/// Which parameters travel together, and in which order.
const LAYOUTS: [&[&[usize]]; 3] = [&[&[0, 1, 2, 3]], &[&[3], &[2], &[1], &[0]], &[&[1, 3], &[2, 0]]];
/// So many elements of a bucket are added up by one call.
const CHUNKS: [usize; 3] = [usize::MAX, 16, 5];

/// An element's contribution: sums of these depend on their order.
fn contribution(rank: usize, parameter: usize, i: usize) -> f32 {
    let large = [1e8, -1e8, 3e7, -3e7][(rank + i) % 4];
    if (rank * 7 + parameter * 3 + i).is_multiple_of(3) { 1.0 / (1 + rank + i) as f32 } else { large }
}

fn gradients(rank: usize) -> Vec<Vec<f32>> {
    let gradient =
        |(parameter, &len): (usize, &usize)| (0..len).map(|i| contribution(rank, parameter, i)).collect();
    PARAMETERS.iter().enumerate().map(gradient).collect()
}

/// Adds up every parameter's gradient, by buckets and chunks.
fn reduce(
    layout: &[&[usize]],
    chunk: usize,
    rank: usize,
    mut all_reduce: impl FnMut(&mut [f32]),
) -> Vec<u32> {
    let mut gradients = gradients(rank);
    for bucket in layout {
        let mut flat: Vec<f32> = bucket.iter().flat_map(|&parameter| gradients[parameter].clone()).collect();
        flat.chunks_mut(chunk.min(1 << 20)).for_each(&mut all_reduce);
        let mut rest = &flat[..];
        for &parameter in *bucket {
            let (own, others) = rest.split_at(PARAMETERS[parameter]);
            gradients[parameter] = own.to_vec();
            rest = others;
        }
    }
    gradients.concat().into_iter().map(f32::to_bits).collect()
}

/// The bits of sums in the order of the ranks, divided at the end.
fn expected(world_size: usize, divide_by: usize) -> Vec<u32> {
    let all: Vec<_> = (0..world_size).map(|rank| gradients(rank).concat()).collect();
    let sum = |i: usize| all[1..].iter().fold(all[0][i], |sum, rank| sum + rank[i]);
    (0..all[0].len()).map(|i| (sum(i) / divide_by as f32).to_bits()).collect()
}

/// Sums of `values` depend on their order in f32 too, in which half types are added up.
fn in_order<T: Element>(group: &ProcessGroup, values: [f32; 4], of: fn(f32) -> T, to: fn(T) -> f32) {
    let world_size = group.world_size();
    let value = |rank: usize, i: usize| of(values[(rank + i) % 4]);
    for (op, divide_by) in [(ReduceOp::Sum, 1), (ReduceOp::Avg, world_size)] {
        let mut buffer: Vec<T> = (0..9).map(|i| value(group.rank(), i)).collect();
        group.all_reduce(&mut buffer, op).unwrap();
        for (i, &found) in buffer.iter().enumerate() {
            let sum = (1..world_size).fold(to(value(0, i)), |sum, rank| sum + to(value(rank, i)));
            let once = to(of(sum / divide_by as f32));
            assert_eq!(to(found).to_bits(), once.to_bits(), "{op} of {} on {world_size} ranks", T::DTYPE);
        }
    }
}

/// Longer than the scratch, the slots and the strides through which parts of a buffer go.
fn long_sums_are_in_order(group: &ProcessGroup, what: &str) {
    const LEN: usize = 100_003;
    let value = |rank: usize, i: usize| contribution(rank, i / 1000, i);
    let sum = |i: usize| (1..group.world_size()).fold(value(0, i), |sum, rank| sum + value(rank, i));
    let is_right =
        |found: &[f32]| found.iter().enumerate().all(|(i, found)| found.to_bits() == sum(i).to_bits());
    let mut buffer: Vec<f32> = (0..LEN).map(|i| value(group.rank(), i)).collect();
    group.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
    assert!(is_right(&buffer), "{what}: a long buffer");
    let mut buffer: Vec<f32> = (0..LEN).map(|i| value(group.rank(), i)).collect();
    group.reduce(&mut buffer, ReduceOp::Sum, 1).unwrap();
    assert!(group.rank() != 1 || is_right(&buffer), "{what}: a long buffer, reduce");
    let mut buffer = group.alloc::<f32>(4001).unwrap();
    buffer.iter_mut().enumerate().for_each(|(i, x)| *x = value(group.rank(), i));
    group.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
    assert!(is_right(&buffer), "{what}: a registered buffer");
}

/// A scan adds up in the order of the ranks, here or begun.
fn scans_are_in_order(group: &ProcessGroup, what: &str) {
    let all: Vec<Vec<f32>> = (0..=group.rank()).map(|rank| gradients(rank).concat()).collect();
    let sum = |i: usize| all[1..].iter().fold(all[0][i], |sum, rank| sum + rank[i]);
    let expected: Vec<u32> = (0..all[0].len()).map(|i| sum(i).to_bits()).collect();
    let mut here = all[group.rank()].clone();
    group.scan(&mut here, ReduceOp::Sum).unwrap();
    let begun = group.scan_async(all[group.rank()].clone(), ReduceOp::Sum).unwrap().wait().unwrap();
    for (found, name) in [(here, "scan"), (begun, "scan_async")] {
        let found: Vec<u32> = found.into_iter().map(f32::to_bits).collect();
        assert_eq!(found, expected, "{what}: {name}");
    }
}

/// Each rank's contribution is multiplied before it is added in its turn.
fn products_are_in_order(group: &ProcessGroup, what: &str) {
    let factor = |rank: usize| 1.0 / (3 + rank) as f64;
    let all: Vec<Vec<f32>> = (0..group.world_size()).map(|rank| gradients(rank).concat()).collect();
    let product = |rank: usize, i: usize| all[rank][i] * factor(rank) as f32;
    let sum = |i: usize| (1..group.world_size()).fold(product(0, i), |sum, rank| sum + product(rank, i));
    let expected: Vec<u32> = (0..all[0].len()).map(|i| sum(i).to_bits()).collect();
    let mut buffer = all[group.rank()].clone();
    group.all_reduce(&mut buffer, ReduceOp::PreMulSum(factor(group.rank()))).unwrap();
    let found: Vec<u32> = buffer.into_iter().map(f32::to_bits).collect();
    assert_eq!(found, expected, "{what}: products");
    // Of halves that are the same numbers in f32, all that is rounded is the end.
    let half = |x: f32| bf16::from_f32(x);
    let product = |rank: usize, i: usize| half(all[rank][i]).to_f32() * factor(rank) as f32;
    let sum = |i: usize| (1..group.world_size()).fold(product(0, i), |sum, rank| sum + product(rank, i));
    let mut buffer: Vec<bf16> = all[group.rank()].iter().map(|&x| half(x)).collect();
    group.all_reduce(&mut buffer, ReduceOp::PreMulSum(factor(group.rank()))).unwrap();
    let is_right = buffer.iter().enumerate().all(|(i, found)| found.to_bits() == half(sum(i)).to_bits());
    assert!(is_right, "{what}: products of a half type");
}

/// Every operation that reduces, blocking and not.
fn check(group: &ProcessGroup, what: &str) {
    let group = group.reproducible();
    let (rank, world_size) = (group.rank(), group.world_size());
    let sum = expected(world_size, 1);
    for layout in LAYOUTS {
        for chunk in CHUNKS {
            let found = reduce(layout, chunk, rank, |part| group.all_reduce(part, ReduceOp::Sum).unwrap());
            assert_eq!(found, sum, "{what}: {world_size} ranks, buckets {layout:?} by {chunk}");
        }
    }
    let average = reduce(LAYOUTS[0], 16, rank, |part| {
        let work = group.all_reduce_async(part.to_vec(), ReduceOp::Avg).unwrap();
        part.copy_from_slice(&work.wait().unwrap());
    });
    assert_eq!(average, expected(world_size, world_size), "{what}: {world_size} ranks, averages");
    for root in [0, world_size - 1] {
        let mut buffer = gradients(rank).concat();
        group.reduce(&mut buffer, ReduceOp::Sum, root).unwrap();
        let found: Vec<_> = buffer.into_iter().map(f32::to_bits).collect();
        assert!(rank != root || found == sum, "{what}: {world_size} ranks, reduce to {root}");
    }
    let whole = gradients(rank).concat();
    let len = whole.len() / world_size * world_size;
    let mut own = vec![0.0; len / world_size];
    group.reduce_scatter(&whole[..len], &mut own, ReduceOp::Sum).unwrap();
    let found: Vec<_> = own.iter().map(|x| x.to_bits()).collect();
    let block = &sum[rank * own.len()..(rank + 1) * own.len()];
    assert_eq!(found, block, "{what}: {world_size} ranks, reduce_scatter");
    let found = group.reduce_scatter_async(whole[..len].to_vec(), ReduceOp::Sum).unwrap().wait().unwrap();
    assert!(found.iter().map(|x| x.to_bits()).eq(block.iter().copied()), "{what}: reduce_scatter_async");
    products_are_in_order(&group, what);
    scans_are_in_order(&group, what);
    let small = 1.0 / 512.0;
    in_order::<f16>(&group, [32768.0, small, -32768.0, small], f16::from_f32, f16::to_f32);
    in_order::<bf16>(&group, [1e8, 1.0, -1e8, 0.25], bf16::from_f32, bf16::to_f32);
    if world_size == 3 {
        long_sums_are_in_order(&group, what);
    }
}

/// What to force for the operations that reduce, so that each way that keeps the order is taken.
fn rounds(keep: impl Fn(Way) -> bool) -> Vec<String> {
    let ways = |op| Way::of(op).filter(|way| way.keeps_rank_order() && keep(*way)).collect::<Vec<_>>();
    let ops = [OpKind::AllReduce, OpKind::Reduce, OpKind::ReduceScatter];
    let count = ops.iter().map(|op| ways(*op).len()).max().unwrap_or(0);
    let choice = |round: usize| {
        let one =
            |op: &OpKind| Some(format!("{op}={}", ways(*op).get(round % ways(*op).len().max(1))?.name()));
        ops.iter().filter_map(one).collect::<Vec<_>>().join(",")
    };
    std::iter::once(String::new()).chain((0..count).map(choice)).collect()
}

fn all_have_the_bits(world: &World, keep: impl Fn(Way) -> bool) {
    for forced in rounds(keep) {
        for world_size in WORLDS {
            let what = forced.clone();
            world.clone().algorithms(forced.as_str()).run(world_size, move |group| check(&group, &what));
        }
    }
}

#[test]
fn threads() {
    all_have_the_bits(&World::thread(), |way| matches!(way, Way::Messages(_)));
}

#[test]
fn tcp() {
    all_have_the_bits(&World::tcp(), |way| matches!(way, Way::Messages(_)));
}

#[cfg(target_os = "linux")]
#[test]
fn shared_memory() {
    all_have_the_bits(&World::shm(), |way| !matches!(way, Way::Levels(..)));
}

#[cfg(target_os = "linux")]
#[test]
fn two_levels() {
    for per_host in [2, 3] {
        all_have_the_bits(&World::hosts(per_host), |way| !matches!(way, Way::Memory(..)));
    }
}

/// Else the tests above would show nothing.
#[test]
fn without_the_switch_some_algorithm_has_other_bits() {
    let found: BTreeSet<_> = Algorithm::of(OpKind::AllReduce)
        .map(|algorithm| {
            let world = World::thread().algorithms(format!("all_reduce={}", algorithm.name()));
            let all = world.run(8, |group| {
                reduce(LAYOUTS[0], usize::MAX, group.rank(), |part| {
                    group.all_reduce(part, ReduceOp::Sum).unwrap();
                })
            });
            assert!(all.iter().all(|bits| *bits == all[0]), "{algorithm}: unlike bits on two ranks");
            all[0].clone()
        })
        .collect();
    assert!(found.len() > 1 && found.contains(&expected(8, 1)), "{} results", found.len());
}

#[test]
fn a_forced_way_with_another_order_is_refused_and_the_others_named() {
    let refused = |world: World, forced: &str, able: &'static [&'static str]| {
        let words = format!("{forced} is forced");
        world.algorithms(forced).run(4, move |group| {
            let strict = group.reproducible();
            let error = strict.all_reduce(&mut [1f32], ReduceOp::Sum).unwrap_err();
            let Error::Config { what } = &error else { panic!("{error}") };
            let begun = strict.all_reduce_async(vec![1f32], ReduceOp::Sum);
            assert!(matches!(begun, Err(Error::Config { .. })), "nothing was begun");
            assert!(what.contains(&words) && able.iter().all(|name| what.contains(name)), "{error}");
            // Nothing was sent, and other handles and operations are as before.
            group.all_reduce(&mut [1f32], ReduceOp::Sum).unwrap();
            strict.broadcast(&mut [1f32], 0).unwrap();
        });
    };
    refused(World::thread(), "all_reduce=ring", &["flat", "pairwise"]);
    refused(World::tcp(), "all_reduce=recursive_doubling", &["flat", "pairwise"]);
    #[cfg(target_os = "linux")]
    {
        refused(World::shm(), "all_reduce=ring", &["shm/push", "shm/inline"]);
        refused(World::hosts(2), "all_reduce=two_level/slices", &["two_level/direct"]);
    }
}

/// Groups that are split off, and chosen by nobody's hand.
#[test]
fn a_group_that_is_split_off_keeps_the_order() {
    World::thread().algorithms("all_reduce=ring").run(4, |group| {
        let half = group.reproducible().split(Some(group.rank() as u32 % 2), 0).unwrap().unwrap();
        assert!(half.is_reproducible() && !group.is_reproducible());
        assert!(matches!(half.all_reduce(&mut [1f32], ReduceOp::Sum), Err(Error::Config { .. })));
    });
}

#[test]
fn a_group_that_is_made_anew_keeps_the_order() {
    let kept = phalanx_group::on_threads(3, |group| {
        if group.rank() == 0 {
            return Ok(true);
        }
        let group = group.reproducible();
        group.barrier().unwrap_err();
        Ok(group.shrink()?.is_reproducible())
    });
    assert_eq!(kept.unwrap(), [true; 3]);
}
