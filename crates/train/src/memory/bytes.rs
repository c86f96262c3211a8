//! Buckets as bytes: a gradient is copied to its place in one, and all of one are reduced.

use super::traits::Reduction;
use crate::{Plan, Result, Tensor, element};
use phalanx::backend::copy_slice;

impl Reduction<'_> {
    /// Reduces a bucket whose gradients lie end to end in `bytes`.
    pub(super) fn perform<D>(&mut self, plan: &Plan<D>, at: usize, bytes: &mut [u8]) -> phalanx::Result<()> {
        let bucket = &plan.buckets()[at];
        match &mut self.hook {
            Some(hook) if bucket.dtype == phalanx::DType::F32 => {
                let shapes: Vec<&[usize]> =
                    bucket.members.iter().map(|&member| &plan.parameters()[member].dims[..]).collect();
                let gradients = bytemuck::cast_slice_mut(bytes);
                hook.reduce(phalanx_compress::Bucket { index: at, gradients, shapes: &shapes }, self.group)
            }
            _ => element::all_reduce(self.group, bucket.dtype, bytes, self.op),
        }
    }
}

/// Copies a gradient to its place in a bucket.
pub(super) fn copy<T: Tensor>(
    grad: &T,
    place: &mut [u8],
    dtype: phalanx::DType,
    scale: Option<f64>,
) -> Result<()> {
    grad.read(|bytes| copy_slice(place, bytes))?;
    if let Some(scale) = scale {
        element::multiply(dtype, place, scale);
    }
    Ok(())
}
