//! Gradients of all ranks into gradients of the global batch, bucket by bucket.

use crate::bucket::{Bucket, Item, plan};
use crate::element::{Shared, read, require_cpu, unsupported_dtype, with_element};
use crate::model::Parameter;
use crate::{Result, Share};
use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor};
use phalanx::{Error, OpKind, ProcessGroup, ReduceOp};

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

    /// Replaces each gradient by the sum over the ranks of gradient times share.
    ///
    /// A rank without a gradient for a variable counts as zeros; a variable without one on any rank stays so. Which
    /// those are travels behind the gradients of the first bucket, one element a variable, so that it costs no message of its own.
    #[track_caller]
    pub(crate) fn reduce(&self, grads: &mut GradStore, share: Share, group: &ProcessGroup) -> Result<()> {
        let weight = share.weight(group.world_size())?;
        self.check(grads, group)?;
        let mut reduced = Vec::with_capacity(self.parameters.len());
        let mut used: Vec<bool> = self.parameters.iter().map(|p| grads.get(&p.var).is_some()).collect();
        for (index, bucket) in self.buckets.iter().enumerate() {
            let flags: &mut [bool] = if index == 0 { &mut used } else { &mut [] };
            let flat = with_element!(bucket.dtype,
                T => self.reduce_bucket::<T>(bucket, grads, weight, flags, group)?,
                _ => return Err(unsupported_dtype(group, OpKind::AllReduce, bucket.dtype).into()),
            );
            reduced.push(flat);
        }
        // Stored only now: after an error the gradients are still this rank's own.
        for (bucket, flat) in self.buckets.iter().zip(reduced) {
            let mut start = 0;
            for &member in &bucket.members {
                let var = &self.parameters[member].var;
                if used[member] {
                    grads.insert(var, flat.narrow(0, start, var.elem_count())?.reshape(var.shape())?);
                }
                start += var.elem_count();
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

    /// The reduced gradients of `bucket`, end to end; `flags` become true where they are on any rank.
    #[track_caller]
    fn reduce_bucket<T: Shared>(
        &self,
        bucket: &Bucket,
        grads: &GradStore,
        weight: f64,
        flags: &mut [bool],
        group: &ProcessGroup,
    ) -> Result<Tensor> {
        let mut flat: Vec<T> = Vec::with_capacity(bucket.elements + flags.len());
        for &member in &bucket.members {
            let var = &self.parameters[member].var;
            match grads.get(var) {
                Some(grad) if weight > 0.0 => read(grad, |g: &[T]| {
                    flat.extend(g.iter().map(|x| T::from_f64(x.to_f64() * weight)));
                })?,
                _ => flat.resize(flat.len() + var.elem_count(), T::from_f64(0.0)),
            }
        }
        flat.extend(flags.iter().map(|&used| T::from_f64(f64::from(u8::from(used)))));
        group.all_reduce(&mut flat, ReduceOp::Sum)?;
        for (used, sum) in flags.iter_mut().zip(flat.drain(bucket.elements..)) {
            *used = sum.to_f64() > 0.0;
        }
        // The gradients handed out are views of this one tensor: no further copy.
        Ok(Tensor::from_vec(flat, bucket.elements, &Device::Cpu)?)
    }
}
