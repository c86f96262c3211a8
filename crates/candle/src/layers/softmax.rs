//! The softmax of rows.

use super::elementwise::exp;
use super::operation::{fold, for_each_row, is_ours, read_both, tensor};
use candle_core::{CpuStorage, CustomOp1, D, Layout, Result, Shape, Tensor, bail};

/// The softmax over the last dimension: [`candle_nn::ops::softmax`] in one pass forward and one backward.
///
/// # Errors
/// Those of candle.
///
/// # Examples
/// ```
/// use candle_core::{Device, Tensor};
///
/// let x = Tensor::new(&[[0f32, 0.0], [f32::NEG_INFINITY, 1.0]], &Device::Cpu)?;
/// assert_eq!(phalanx_candle::layers::softmax_last_dim(&x)?.to_vec2::<f32>()?, [[0.5, 0.5], [0.0, 1.0]]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn softmax_last_dim(x: &Tensor) -> Result<Tensor> {
    if is_ours(x) && x.rank() > 0 && x.elem_count() > 0 {
        return x.contiguous()?.apply_op1(Softmax);
    }
    candle_nn::ops::softmax(x, D::Minus1)
}

struct Softmax;

#[inline(always)]
fn forward(row: &mut [f32]) {
    let most = fold(row, f32::NEG_INFINITY, |a, b| if b > a { b } else { a });
    row.iter_mut().for_each(|x| *x = exp(*x - most));
    let part = 1.0 / fold(row, 0.0, |a, b| a + b);
    row.iter_mut().for_each(|x| *x *= part);
}

/// Turns the gradients of the outcome into those of the argument.
#[inline(always)]
fn backward(outcome: &[f32], grads: &mut [f32]) {
    grads.iter_mut().zip(outcome).for_each(|(g, y)| *g *= y);
    let sum = fold(grads, 0.0, |a, b| a + b);
    grads.iter_mut().zip(outcome).for_each(|(g, y)| *g -= y * sum);
}

impl CustomOp1 for Softmax {
    fn name(&self) -> &'static str {
        "phalanx-softmax"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("the softmax takes numbers in row-major order")
        };
        let mut numbers = storage.as_slice::<f32>()?[start..end].to_vec();
        let width = layout.dims()[layout.dims().len() - 1];
        for_each_row(&mut numbers, width, |_, row| forward(row));
        Ok((CpuStorage::F32(numbers), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, outcome: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let width = x.dim(D::Minus1)?;
        let grads = read_both(outcome, grad, |outcome, grad| {
            let mut grads = grad.to_vec();
            for_each_row(&mut grads, width, |row, grads| backward(&outcome[row * width..][..width], grads));
            grads
        })?;
        Ok(Some(tensor(grads, x.shape())?))
    }
}
