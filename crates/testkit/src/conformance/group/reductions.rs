//! all_reduce, reduce, reduce_scatter.

use super::{WORLDS, assert_bits, every_dtype, inputs, lengths, roots, several_frames, uneven};
use crate::World;
use crate::oracle::{self, Sample, operators};
use half::{bf16, f16};
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

/// A NaN of any bits on one rank, or on all: several ranks end with the one NaN. One rank alone combines nothing, and keeps its bits.
pub fn what_is_no_number_has_one_form(world: &World) {
    for world_size in WORLDS {
        world.run(world_size, |group| {
            for bits in [0xFFC0_1234, 0x7F80_0001] {
                not_a_number(&group, f32::from_bits(bits), f32::NAN);
            }
            not_a_number(&group, f64::from_bits(0xFFF8_0000_0000_1234), f64::NAN);
            not_a_number(&group, f16::from_bits(0xFE34), f16::NAN);
            not_a_number(&group, bf16::from_bits(0xFFD2), bf16::NAN);
        });
    }
}

fn not_a_number<T: Sample>(group: &ProcessGroup, odd: T, one: T) {
    let (rank, world_size) = (group.rank(), group.world_size());
    let expected = [if world_size == 1 { odd } else { one }; 3];
    let kind = |name, op| what(group, name, op, 3);
    for op in operators(T::DTYPE) {
        for everybody in [false, true] {
            let number = if everybody || rank == 0 { odd } else { T::zeroed() };
            let mut buffer = [number; 3];
            group.all_reduce(&mut buffer, op).unwrap();
            assert_bits(&buffer, &expected, kind("all_reduce", op));

            for root in roots(world_size) {
                let mut buffer = [number; 3];
                group.reduce(&mut buffer, op, root).unwrap();
                if rank == root {
                    assert_bits(&buffer, &expected, kind("reduce", op));
                }
            }

            let mut all = vec![number; 3 * world_size];
            let mut block = [T::zeroed(); 3];
            group.reduce_scatter(&all, &mut block, op).unwrap();
            assert_bits(&block, &expected, kind("reduce_scatter", op));
            group.reduce_scatter_v(&all, &mut block, &vec![3; world_size], op).unwrap();
            assert_bits(&block, &expected, kind("reduce_scatter_v", op));
            group.reduce_scatter_in_place(&mut all, op).unwrap();
            assert_bits(&all[3 * rank..3 * (rank + 1)], &expected, kind("reduce_scatter_in_place", op));
        }
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

    let mut buffer = inputs[rank].clone();
    group.scan(&mut buffer, op).unwrap();
    let before = oracle::reduce(&inputs[..=rank], op);
    assert_bits(&buffer, &before, what(group, "scan", op, len));

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
