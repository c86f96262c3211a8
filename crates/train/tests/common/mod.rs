//! A model of plain arrays, gradients that add up without rounding, and what they come to.
#![allow(dead_code, reason = "no test needs all of it")]

use half::{bf16, f16};
use phalanx::{DType, ProcessGroup};
use phalanx_testkit::World;
use phalanx_train::{Array, Gradients, Parameter, Reducer, Tensor};

/// Every floating-point type, in the order of their names.
pub(crate) const MODEL: [(&str, DType, &[usize]); 7] = [
    ("a", DType::F32, &[5, 3]),
    ("b", DType::F64, &[7]),
    ("c", DType::F16, &[2, 2, 2]),
    ("d", DType::BF16, &[9]),
    ("e", DType::F32, &[1]),
    ("f", DType::F32, &[8, 5]),
    ("g", DType::F32, &[3, 4]),
];

pub(crate) const ALL: usize = MODEL.len();

/// Sent after the backward pass, and during it.
pub(crate) const MODES: [bool; 2] = [false, true];

pub(crate) fn parameters() -> Vec<Parameter<()>> {
    let zeros = |dtype, dims| Array::zeros(dtype, dims, &()).unwrap();
    MODEL.iter().map(|&(name, dtype, dims)| Parameter::of(name, &zeros(dtype, dims))).collect()
}

pub(crate) fn reducer(group: &ProcessGroup, cap_bytes: usize, overlap: bool) -> Reducer<Array> {
    Reducer::new(parameters(), group, cap_bytes, overlap).unwrap()
}

/// An array like the parameter, of numbers that its type has.
pub(crate) fn array(index: usize, number: impl Fn(usize) -> f64) -> Array {
    let (_, dtype, dims) = MODEL[index];
    let numbers = (0..dims.iter().product()).map(number);
    let array = match dtype {
        DType::F32 => Array::from(numbers.map(|x| x as f32).collect::<Vec<_>>()),
        DType::F64 => Array::from(numbers.collect::<Vec<_>>()),
        DType::F16 => Array::from(numbers.map(f16::from_f64).collect::<Vec<_>>()),
        DType::BF16 => Array::from(numbers.map(bf16::from_f64).collect::<Vec<_>>()),
        other => panic!("{other}"),
    };
    array.shaped(dims).unwrap()
}

/// A small integer for each element of each gradient of each rank in each step.
pub(crate) fn number(index: usize, rank: usize, step: usize, element: usize) -> f64 {
    ((7 * index + 3 * rank + 5 * step + element) % 11) as f64 - 4.0
}

/// A rank's gradient. Times `factor`, which makes means over the ranks exact.
pub(crate) fn gradient(index: usize, rank: usize, step: usize, factor: f64) -> Array {
    array(index, |element| factor * number(index, rank, step, element))
}

/// The sum of some ranks' numbers, by hand.
pub(crate) fn sum(index: usize, ranks: &[usize], step: usize) -> Array {
    array(index, |element| ranks.iter().map(|&rank| number(index, rank, step, element)).sum())
}

/// What all ranks together come to if all use everything.
pub(crate) fn sums(world_size: usize, step: usize) -> Gradients<Array> {
    let ranks: Vec<usize> = (0..world_size).collect();
    (0..ALL).map(|index| Some(sum(index, &ranks, step))).collect()
}

/// This rank's gradients, all of them.
pub(crate) fn gradients(rank: usize, step: usize, factor: f64) -> Gradients<Array> {
    (0..ALL).map(|index| Some(gradient(index, rank, step, factor))).collect()
}

/// Ranks over every transport, and over two at once.
pub(crate) fn worlds() -> [World; 4] {
    [World::thread(), World::shm(), World::tcp(), World::hosts(2)]
}

/// Runs `rank` on so many ranks, over every transport, with gradients that overlap and that do not.
pub(crate) fn everywhere(
    world_size: usize,
    rank: impl Fn(ProcessGroup, bool) + Clone + Send + Sync + 'static,
) {
    for world in worlds() {
        for mode in MODES {
            let rank = rank.clone();
            world.run(world_size, move |group| rank(group, mode));
        }
    }
}
