//! What the operations here have in common.

use crate::element::{read, replace};
use candle_core::{CpuStorage, DType, Device, Result, Shape, Tensor, bail};
use pulp::Arch;
use rayon::prelude::*;

/// What a thread works on at a time, in numbers.
const PART: usize = 16 * 1024;

/// Whether the work on so many numbers is dealt out to threads.
fn is_dealt_out(len: usize) -> bool {
    len >= 4 * PART && rayon::current_num_threads() > 1
}

/// Whether the operations here have loops for a tensor. Others are left to candle.
pub(super) fn is_ours(tensor: &Tensor) -> bool {
    tensor.device().is_cpu() && tensor.dtype() == DType::F32
}

/// A tensor of its own, and not of the graph, in row-major order.
pub(super) fn plain(tensor: &Tensor) -> Result<Tensor> {
    tensor.detach().contiguous()
}

/// The product of two matrices that are of no graph, as plain memory.
pub(super) fn product(left: &Tensor, right: &Tensor) -> Result<Vec<f32>> {
    match replace(&left.matmul(right)?, CpuStorage::U8(Vec::new()))? {
        CpuStorage::F32(numbers) => Ok(numbers),
        other => bail!("the product of two matrices of f32 has another type: {other:?}"),
    }
}

/// The tensor of these numbers.
pub(super) fn tensor(numbers: Vec<f32>, shape: impl Into<Shape>) -> Result<Tensor> {
    Tensor::from_vec(numbers, shape.into(), &Device::Cpu)
}

/// Passes the numbers of two tensors on, in row-major order.
pub(super) fn read_both<R>(a: &Tensor, b: &Tensor, look: impl FnOnce(&[f32], &[f32]) -> R) -> Result<R> {
    read::<f32, _>(a, |a| read::<f32, _>(b, |b| look(a, b)))?
}

/// A function of each number.
pub(super) fn map(x: &[f32], at: impl Fn(f32) -> f32 + Sync) -> Vec<f32> {
    let mut outcome = x.to_vec();
    // Loops, not `for_each`: what is not inlined here has no vectors.
    let work = |part: &mut [f32]| {
        Arch::new().dispatch(|| {
            for y in part {
                *y = at(*y);
            }
        });
    };
    match is_dealt_out(x.len()) {
        true => outcome.par_chunks_mut(PART).for_each(work),
        false => work(&mut outcome),
    }
    outcome
}

/// A function of each number and its gradient.
pub(super) fn map_back(x: &[f32], grad: &[f32], at: impl Fn(f32, f32) -> f32 + Sync) -> Vec<f32> {
    let mut outcome = grad.to_vec();
    let work = |(part, x): (&mut [f32], &[f32])| {
        Arch::new().dispatch(|| {
            for (g, &x) in part.iter_mut().zip(x) {
                *g = at(x, *g);
            }
        });
    };
    match is_dealt_out(x.len()) {
        true => outcome.par_chunks_mut(PART).zip(x.par_chunks(PART)).for_each(work),
        false => work((&mut outcome, x)),
    }
    outcome
}

/// Changes each row of a matrix that is `width` wide.
pub(super) fn for_each_row(numbers: &mut [f32], width: usize, change: impl Fn(usize, &mut [f32]) + Sync) {
    let rows = if is_dealt_out(numbers.len()) { PART.div_ceil(width) } else { numbers.len() };
    let work = |(part, numbers): (usize, &mut [f32])| {
        Arch::new().dispatch(|| {
            for (row, numbers) in numbers.chunks_exact_mut(width).enumerate() {
                change(part * rows + row, numbers);
            }
        });
    };
    match is_dealt_out(numbers.len()) {
        true => numbers.par_chunks_mut(rows * width).enumerate().for_each(work),
        false => work((0, numbers)),
    }
}

/// Numbers that are added up side by side: a sum in order would not be one of vectors.
const LANES: usize = 16;

/// A sum of numbers, or what else `add` makes of two.
#[inline(always)]
pub(super) fn fold(row: &[f32], start: f32, add: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [start; LANES];
    let parts = row.chunks_exact(LANES);
    let rest = parts.remainder();
    for part in parts {
        lanes.iter_mut().zip(part).for_each(|(lane, &x)| *lane = add(*lane, x));
    }
    let last = rest.iter().fold(start, |sum, &x| add(sum, x));
    lanes.into_iter().fold(last, add)
}
