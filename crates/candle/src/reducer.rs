//! Gradients of all ranks into gradients of the global batch, bucket by bucket.

use crate::bucket::{Bucket, Item, plan};
use crate::element::{Shared, read, require_cpu, unsupported_dtype, with_element};
use crate::model::Parameter;
use crate::{Result, Share};
use candle_core::backprop::GradStore;
use candle_core::{Device, Shape, Tensor};
use phalanx::{Error, OpKind, ProcessGroup, ReduceOp};
use std::ops::DerefMut;

/// The variables that can have a gradient, and the buckets their gradients travel in.
#[derive(Debug)]
pub(crate) struct Reducer {
    parameters: Vec<Parameter>,
    buckets: Vec<Bucket>,
}

impl Reducer {
    /// Plans buckets of at most `cap_bytes` over the floating-point variables of `parameters`, which are in name order.
    pub(crate) fn new(
        mut parameters: Vec<Parameter>,
        cap_bytes: usize,
        group: &ProcessGroup,
    ) -> Result<Self> {
        // Others, such as counters, never have a gradient.
        parameters.retain(|p| p.var.dtype().is_float());
        for Parameter { var, .. } in &parameters {
            require_cpu(group, OpKind::AllReduce, var.device())?;
        }
        let items: Vec<Item> =
            parameters.iter().map(|p| Item { dtype: p.var.dtype(), elements: p.var.elem_count() }).collect();
        let buckets = plan(&items, 0..items.len(), cap_bytes);
        Ok(Self { parameters, buckets })
    }

    /// Words of memory that each bucket needs: its gradients and, in the first, the flags behind them.
    pub(crate) fn room(&self) -> impl Iterator<Item = usize> {
        self.buckets.iter().enumerate().map(|(index, bucket)| {
            let flags = if index == 0 { self.parameters.len() } else { 0 };
            ((bucket.elements + flags) * bucket.dtype.size_in_bytes()).div_ceil(size_of::<u64>())
        })
    }

    /// Replaces each gradient by the sum over the ranks of gradient times share. The buckets travel in `memory`: for each
    /// as many words as [`room`](Self::room) says.
    ///
    /// A rank without a gradient for a variable counts as zeros; a variable without one on any rank stays so. Which
    /// those are travels behind the gradients of the first bucket, one element a variable, so that it costs no message of its own.
    #[track_caller]
    pub(crate) fn reduce(
        &self,
        grads: &mut GradStore,
        share: Share,
        group: &ProcessGroup,
        memory: &mut [impl DerefMut<Target = [u64]>],
    ) -> Result<()> {
        let weight = share.weight(group.world_size())?;
        self.check(grads, group)?;
        let mut used: Vec<bool> = self.parameters.iter().map(|p| grads.get(&p.var).is_some()).collect();
        for (index, (bucket, memory)) in self.buckets.iter().zip(&mut *memory).enumerate() {
            let flags: &mut [bool] = if index == 0 { &mut used } else { &mut [] };
            with_element!(bucket.dtype,
                T => self.reduce_bucket::<T>(bucket, grads, weight, flags, bytemuck::cast_slice_mut(memory), group)?,
                _ => return Err(unsupported_dtype(group, OpKind::AllReduce, bucket.dtype).into()),
            );
        }
        // Stored only now: after an error the gradients are still this rank's own.
        for (bucket, memory) in self.buckets.iter().zip(memory) {
            let mut start = 0;
            for &member in &bucket.members {
                let var = &self.parameters[member].var;
                let end = start + var.elem_count();
                if used[member] {
                    let reduced = with_element!(bucket.dtype,
                        T => tensor::<T>(&bytemuck::cast_slice(memory)[start..end], var.shape())?,
                        _ => unreachable!("its bucket has just been reduced"),
                    );
                    grads.insert(var, reduced);
                }
                start = end;
            }
        }
        Ok(())
    }

    /// Refuses gradients that do not fit their variables before anything is sent.
    fn check(&self, grads: &GradStore, group: &ProcessGroup) -> Result<()> {
        for Parameter { name, var } in &self.parameters {
            let Some(grad) = grads.get(var) else { continue };
            require_cpu(group, OpKind::AllReduce, grad.device())?;
            if (grad.dtype(), grad.shape()) != (var.dtype(), var.shape()) {
                let what = format!(
                    "the gradient of `{name}` is {:?} {:?}, but the variable is {:?} {:?}",
                    grad.dtype(),
                    grad.dims(),
                    var.dtype(),
                    var.dims()
                );
                return Err(Error::misuse(OpKind::AllReduce, what).into());
            }
        }
        Ok(())
    }

    /// Reduces the gradients of `bucket`, which then lie end to end in `memory`; `flags` become true where they are on
    /// any rank.
    #[track_caller]
    fn reduce_bucket<T: Shared>(
        &self,
        bucket: &Bucket,
        grads: &GradStore,
        weight: f64,
        flags: &mut [bool],
        memory: &mut [T],
        group: &ProcessGroup,
    ) -> Result<()> {
        let flat = &mut memory[..bucket.elements + flags.len()];
        let (mut rest, flags_sent) = flat.split_at_mut(bucket.elements);
        for &member in &bucket.members {
            let var = &self.parameters[member].var;
            let (place, behind) = rest.split_at_mut(var.elem_count());
            match grads.get(var) {
                Some(grad) if weight > 0.0 => read(grad, |g: &[T]| {
                    for (to, from) in place.iter_mut().zip(g) {
                        *to = T::from_f64(from.to_f64() * weight);
                    }
                })?,
                _ => place.fill(T::from_f64(0.0)),
            }
            rest = behind;
        }
        for (to, &used) in flags_sent.iter_mut().zip(&*flags) {
            *to = T::from_f64(f64::from(u8::from(used)));
        }
        group.all_reduce(flat, ReduceOp::Sum)?;
        for (used, sum) in flags.iter_mut().zip(&flat[bucket.elements..]) {
            *used = sum.to_f64() > 0.0;
        }
        Ok(())
    }
}

/// A tensor of its own: what lies in a bucket is overwritten at the next step.
fn tensor<T: Shared>(elements: &[T], shape: &Shape) -> candle_core::Result<Tensor> {
    Tensor::from_slice(elements, shape, &Device::Cpu)
}
