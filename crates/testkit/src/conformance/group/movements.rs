//! broadcast, all_gather, gather, scatter, all_to_all, barrier: operations that move elements and leave them as they are.

use super::{WORLDS, assert_bits, every_dtype, inputs, lengths, roots, several_frames, uneven};
use crate::World;
use crate::oracle::{self, Random};
use phalanx_core::Element;
use phalanx_group::ProcessGroup;

/// Every movement, element type, world and length; roots first and last; even and uneven blocks.
pub fn movements_of_every_kind(world: &World) {
    for world_size in WORLDS {
        world.run(world_size, |group| every_dtype!(all_lengths(&group)));
    }
}

/// Messages of several frames.
pub fn movements_over_several_frames(world: &World) {
    for world_size in [2, 3, 4] {
        world.run(world_size, |group| {
            movements::<f64>(&group, several_frames::<f64>());
            movements::<u8>(&group, several_frames::<u8>());
        });
    }
}

fn all_lengths<T: Element>(group: &ProcessGroup) {
    for len in lengths(group.world_size()) {
        movements::<T>(group, len);
    }
}

/// All movements of `len` elements from or to each rank.
pub(super) fn movements<T: Element>(group: &ProcessGroup, len: usize) {
    group.barrier().unwrap();
    broadcast::<T>(group, len);
    let (even, uneven) = (vec![len; group.world_size()], uneven(group.world_size(), len));
    gathers::<T>(group, &even, false);
    gathers::<T>(group, &uneven, true);
    scatters::<T>(group, &even, false);
    scatters::<T>(group, &uneven, true);
    exchanges::<T>(group, len);
}

fn any<T: Element>(random: &mut Random, len: usize) -> Vec<T> {
    random.any(len)
}

fn what(group: &ProcessGroup, name: &str, counts: &[usize]) -> String {
    format!("{name}({counts:?}) on rank {} of {}", group.rank(), group.world_size())
}

fn broadcast<T: Element>(group: &ProcessGroup, len: usize) {
    for root in roots(group.world_size()) {
        let inputs = inputs(group, len, any::<T>);
        let mut buffer = inputs[group.rank()].clone();
        group.broadcast(&mut buffer, root).unwrap();
        assert_bits(&buffer, &inputs[root], what(group, "broadcast", &[len]));
    }
}

fn gathers<T: Element>(group: &ProcessGroup, counts: &[usize], with_counts: bool) {
    let rank = group.rank();
    let inputs: Vec<Vec<T>> = counts.iter().zip(7..).map(|(&n, seed)| Random::new(seed).any(n)).collect();
    let expected = oracle::gather(&inputs);
    let mut output = vec![T::zeroed(); expected.len()];
    match with_counts {
        false => group.all_gather(&inputs[rank], &mut output).unwrap(),
        true => group.all_gather_v(&inputs[rank], &mut output, counts).unwrap(),
    }
    assert_bits(&output, &expected, what(group, "all_gather", counts));

    for root in roots(group.world_size()) {
        output.fill(T::zeroed());
        let at_root = (rank == root).then_some(&mut output[..]);
        match with_counts {
            false => group.gather(&inputs[rank], at_root, root).unwrap(),
            true => group.gather_v(&inputs[rank], at_root, counts, root).unwrap(),
        }
        if rank == root {
            assert_bits(&output, &expected, what(group, "gather", counts));
        }
    }
}

fn scatters<T: Element>(group: &ProcessGroup, counts: &[usize], with_counts: bool) {
    let rank = group.rank();
    let input: Vec<T> = Random::new(11).any(counts.iter().sum());
    let expected = oracle::blocks(&input, counts);
    for root in roots(group.world_size()) {
        let at_root = (rank == root).then_some(&input[..]);
        let mut output = vec![T::zeroed(); counts[rank]];
        match with_counts {
            false => group.scatter(at_root, &mut output, root).unwrap(),
            true => group.scatter_v(at_root, &mut output, counts, root).unwrap(),
        }
        assert_bits(&output, &expected[rank], what(group, "scatter", counts));
    }
}

fn exchanges<T: Element>(group: &ProcessGroup, len: usize) {
    let (rank, world_size) = (group.rank(), group.world_size());
    let inputs = inputs(group, len * world_size, any::<T>);
    let mut output = vec![T::zeroed(); len * world_size];
    group.all_to_all(&inputs[rank], &mut output).unwrap();
    let expected = oracle::all_to_all(&inputs, &vec![vec![len; world_size]; world_size]);
    assert_bits(&output, &expected[rank], what(group, "all_to_all", &[len]));
    let mut buffer = inputs[rank].clone();
    group.all_to_all_in_place(&mut buffer).unwrap();
    assert_bits(&buffer, &expected[rank], what(group, "all_to_all_in_place", &[len]));
    // Some ranks in place, the others from one buffer to another.
    let mut buffer = inputs[rank].clone();
    match rank % 2 {
        0 => group.all_to_all_in_place(&mut buffer).unwrap(),
        _ => group.all_to_all(&inputs[rank], &mut buffer).unwrap(),
    }
    assert_bits(&buffer, &expected[rank], what(group, "all_to_all_in_place on some", &[len]));

    // From rank r to rank s: nothing for some, and not the same in both directions.
    let count =
        |from: usize, to: usize| len.saturating_sub((from + 2 * to) % 5) * usize::from((from + to) % 4 != 3);
    let counts: Vec<Vec<usize>> =
        (0..world_size).map(|from| (0..world_size).map(|to| count(from, to)).collect()).collect();
    let expected = oracle::all_to_all(&inputs, &counts);
    let from_each: Vec<usize> = counts.iter().map(|to| to[rank]).collect();
    let mut output = vec![T::zeroed(); from_each.iter().sum()];
    let input = &inputs[rank][..counts[rank].iter().sum()];
    group.all_to_all_v(input, &counts[rank], &mut output, &from_each).unwrap();
    assert_bits(&output, &expected[rank], what(group, "all_to_all_v", &from_each));
}
