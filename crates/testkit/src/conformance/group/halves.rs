//! Sums of `f16` and `bf16`: rounded once, whoever adds them up and in whatever order.

use super::algorithms::rounds;
use super::{WORLDS, assert_bits, several_frames};
use crate::World;
use crate::oracle::Random;
use half::{bf16, f16};
use phalanx_core::{Element, ReduceOp};
use phalanx_group::ProcessGroup;

/// A half type, and `f32`, in which all sums here are exact.
trait Half: Element {
    /// `value`, which is one of this type's.
    fn of(value: f32) -> Self;
    fn round(value: f32) -> Self;
    fn wide(self) -> f32;
    /// Numbers of which `f32` holds every sum of eight, though this type does not.
    fn number(bits: u64) -> f32;
}

impl Half for f16 {
    fn of(value: f32) -> Self {
        assert_eq!(Self::round(value).wide(), value);
        Self::round(value)
    }
    fn round(value: f32) -> Self {
        Self::from_f32(value)
    }
    fn wide(self) -> f32 {
        self.to_f32()
    }
    /// Up to 60,000, in steps of 32 and more; or below 32, in steps of 1/32.
    fn number(bits: u64) -> f32 {
        let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
        let large = bits & 2 == 0;
        let steps = (bits >> 2 & 0x3ff) as f32;
        sign * if large { 58.0 * 1024.0 - 32.0 * (steps % 800.0) } else { steps / 32.0 }
    }
}

impl Half for bf16 {
    fn of(value: f32) -> Self {
        assert_eq!(Self::round(value).wide(), value);
        Self::round(value)
    }
    fn round(value: f32) -> Self {
        Self::from_f32(value)
    }
    fn wide(self) -> f32 {
        self.to_f32()
    }
    /// Around 1, or around 1/4,096.
    fn number(bits: u64) -> f32 {
        let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
        let fraction = 1.0 + (bits >> 2 & 0x7f) as f32 / 128.0;
        sign * fraction * if bits & 2 == 0 { 1.0 } else { 1.0 / 4096.0 }
    }
}

/// Under each algorithm: what is lost, or overflows, if a sum is rounded on its way.
pub fn half_types_are_rounded_once(world: &World) {
    for algorithms in [String::new()].into_iter().chain(rounds()) {
        for world_size in WORLDS {
            world.clone().algorithms(algorithms.as_str()).run(world_size, move |group| {
                for len in [1, 3, world_size * 5 + 1, 2051] {
                    sums::<f16>(&group, len);
                    sums::<bf16>(&group, len);
                }
                telling_cases(&group);
            });
        }
    }
}

/// Messages of several frames, where partial sums are cut anywhere.
pub fn half_types_are_rounded_once_over_several_frames(world: &World) {
    for world_size in [3, 4] {
        world.run(world_size, |group| {
            sums::<bf16>(&group, several_frames::<bf16>() / 8);
            sums::<f16>(&group, several_frames::<f16>() / 8);
        });
    }
}

fn telling_cases(group: &ProcessGroup) {
    let (rank, world_size) = (group.rank(), group.world_size());
    let all = |value: f32| vec![f16::of(value); 1000];
    let mut average = all(40_000.0);
    group.all_reduce(&mut average, ReduceOp::Avg).unwrap();
    assert_bits(&average, &all(40_000.0), "an average that is no overflow");

    // One half of the ranks takes away what the other half gave.
    let pairs = world_size / 2 * 2;
    let mut sum = all(match rank {
        rank if rank >= pairs => 0.0,
        rank if rank < pairs / 2 => 60_000.0,
        _ => -60_000.0,
    });
    group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    assert_bits(&sum, &all(0.0), "a sum whose parts overflow");

    // A product whose parts overflow, in whatever order two of the large ones come first.
    if world_size >= 4 {
        let factor = [1024.0, 1024.0, 1.0 / 1024.0, 1.0 / 1024.0].get(rank).copied().unwrap_or(1.0);
        let mut product = all(factor);
        group.all_reduce(&mut product, ReduceOp::Prod).unwrap();
        assert_bits(&product, &all(1.0), "a product whose parts overflow");
    }

    let small = 1.0 / 256.0;
    let mut sum = vec![bf16::of(if rank == 0 { 1.0 } else { small }); 1000];
    group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    let expected = bf16::round(1.0 + (world_size - 1) as f32 * small);
    assert_bits(&sum, &vec![expected; 1000], "small contributions to a sum");
}

fn sums<T: Half>(group: &ProcessGroup, len: usize) {
    let (rank, world_size) = (group.rank(), group.world_size());
    let len = len * world_size;
    let draw = |rank: usize| {
        let mut random = Random::new((len * 64 + rank) as u64);
        (0..len).map(|_| T::of(T::number(random.bits()))).collect::<Vec<T>>()
    };
    let inputs: Vec<Vec<T>> = (0..world_size).map(draw).collect();
    for op in [ReduceOp::Sum, ReduceOp::Avg] {
        let result = |i: usize| {
            let sum: f32 = inputs.iter().map(|input| input[i].wide()).sum();
            T::round(if op == ReduceOp::Avg { sum / world_size as f32 } else { sum })
        };
        let expected: Vec<T> = (0..len).map(result).collect();
        let what = |name| format!("{name}({len}, {op}) on rank {rank} of {world_size}");

        let mut buffer = inputs[rank].clone();
        group.all_reduce(&mut buffer, op).unwrap();
        assert_bits(&buffer, &expected, what("all_reduce"));
        let buffer = group.all_reduce_async(inputs[rank].clone(), op).unwrap().wait().unwrap();
        assert_bits(&buffer, &expected, what("all_reduce_async"));

        let root = world_size - 1;
        let mut buffer = inputs[rank].clone();
        group.reduce(&mut buffer, op, root).unwrap();
        if rank == root {
            assert_bits(&buffer, &expected, what("reduce"));
        }

        let own = rank * len / world_size..(rank + 1) * len / world_size;
        let mut block = vec![T::zeroed(); own.len()];
        group.reduce_scatter(&inputs[rank], &mut block, op).unwrap();
        assert_bits(&block, &expected[own.clone()], what("reduce_scatter"));
        let mut buffer = inputs[rank].clone();
        group.reduce_scatter_in_place(&mut buffer, op).unwrap();
        assert_bits(&buffer[own.clone()], &expected[own], what("reduce_scatter_in_place"));
    }
}
