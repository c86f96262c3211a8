//! all_reduce, reduce, reduce_scatter.

use super::{WORLDS, assert_bits, every_dtype, inputs, lengths, roots, several_frames, uneven};
use crate::World;
use crate::oracle::{self, Sample, operators};
use phalanx_core::ReduceOp;
use phalanx_group::ProcessGroup;
use std::fmt::Debug;

/// Every reduction, element type, operator, world and length; roots first and last.
pub fn reductions_of_every_kind(world: &World) {
    for world_size in WORLDS {
        world.run(world_size, |group| every_dtype!(operators_and_lengths(&group)));
    }
}

/// Messages of several frames.
pub fn reductions_over_several_frames(world: &World) {
    for world_size in [2, 3, 4] {
        world.run(world_size, |group| {
            reductions::<f32>(&group, several_frames::<f32>(), ReduceOp::Sum);
            reductions::<half::bf16>(&group, several_frames::<half::bf16>(), ReduceOp::Max);
            reductions::<i64>(&group, several_frames::<i64>(), ReduceOp::BitXor);
        });
    }
}

fn operators_and_lengths<T: Sample>(group: &ProcessGroup) {
    for op in operators(T::DTYPE) {
        for len in lengths(group.world_size()) {
            reductions::<T>(group, len, op);
        }
    }
}

/// All reductions of `len` elements; those that deal out the result deal that many to each rank, or fewer.
pub(super) fn reductions<T: Sample>(group: &ProcessGroup, len: usize, op: ReduceOp) {
    let (rank, world_size) = (group.rank(), group.world_size());
    let inputs = exact::<T>(group, len, op);
    let expected = oracle::reduce(&inputs, op);

    let mut buffer = inputs[rank].clone();
    group.all_reduce(&mut buffer, op).unwrap();
    assert_bits(&buffer, &expected, what(group, "all_reduce", op, len));

    for root in roots(world_size) {
        let mut buffer = inputs[rank].clone();
        group.reduce(&mut buffer, op, root).unwrap();
        if rank == root {
            assert_bits(&buffer, &expected, what(group, "reduce", op, len));
        }
    }
    reduce_scatter::<T>(group, &vec![len; world_size], false, op);
    reduce_scatter::<T>(group, &uneven(world_size, len), true, op);
}

fn reduce_scatter<T: Sample>(group: &ProcessGroup, counts: &[usize], with_counts: bool, op: ReduceOp) {
    let rank = group.rank();
    let inputs = exact::<T>(group, counts.iter().sum(), op);
    let expected = oracle::blocks(&oracle::reduce(&inputs, op), counts);
    let mut block = vec![T::zeroed(); counts[rank]];
    match with_counts {
        false => group.reduce_scatter(&inputs[rank], &mut block, op).unwrap(),
        true => group.reduce_scatter_v(&inputs[rank], &mut block, counts, op).unwrap(),
    }
    assert_bits(&block, &expected[rank], what(group, "reduce_scatter", op, counts));
}

/// The inputs of all ranks.
fn exact<T: Sample>(group: &ProcessGroup, len: usize, op: ReduceOp) -> Vec<Vec<T>> {
    inputs(group, len, |random, len| random.exact(len, op))
}

fn what(group: &ProcessGroup, name: &str, op: ReduceOp, len: impl Debug) -> String {
    format!("{name}({len:?}, {op}) on rank {} of {}", group.rank(), group.world_size())
}
