//! Gradients of all ranks into gradients of the global batch, bucket by bucket.

use crate::bucket::{Bucket, Item, plan};
use crate::element::{bytes_mut, require_cpu, unsupported_dtype, with_element};
use crate::model::Parameter;
use crate::{Result, Share};
use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, WithDType};
use phalanx::{CallSite, Error, OpKind, ProcessGroup, ReduceOp};

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

    /// Words of memory that the largest bucket of several gradients needs; one that is alone travels from where it lies.
    pub(crate) fn room(&self) -> usize {
        let shared = self.buckets.iter().filter(|bucket| bucket.members.len() > 1);
        let bytes = shared.map(|bucket| bucket.elements * bucket.dtype.size_in_bytes()).max().unwrap_or(0);
        bytes.div_ceil(size_of::<u64>())
    }

    /// Replaces each gradient by the sum over the ranks of gradient times share, in its own memory. One bucket after the
    /// other travels in `memory`, which has [`room`](Self::room) words: a small one that stays in the cache.
    ///
    /// A rank without a gradient for a variable counts as zeros; a variable without one on any rank stays so.
    #[track_caller]
    pub(crate) fn reduce(
        &self,
        grads: &mut GradStore,
        share: Share,
        group: &ProcessGroup,
        memory: &mut [u64],
    ) -> Result<()> {
        // Some of the calls are made by candle, which passes no call site on.
        let group = &group.with_call_site(CallSite::caller());
        let weight = share.weight(group.world_size())?;
        self.check(grads, group)?;
        let mut used: Vec<u8> = self.parameters.iter().map(|p| grads.get(&p.var).is_some().into()).collect();
        group.all_reduce(&mut used, ReduceOp::Max)?;
        for bucket in &self.buckets {
            // An average needs no pass of its own over the gradients. But where sums go from rank to rank they are rounded to
            // the type, in which those of f16 are soon infinite.
            let (scale, op) = match share {
                Share::EQUAL if bucket.dtype != DType::F16 => (None, ReduceOp::Avg),
                _ => (Some(weight), ReduceOp::Sum),
            };
            let mut tensors = Vec::new();
            for var in bucket.members.iter().filter(|&&m| used[m] != 0).map(|&m| &self.parameters[m].var) {
                let tensor = match grads.get(var) {
                    Some(grad) if weight > 0.0 => grad.contiguous()?,
                    _ => var.zeros_like()?,
                };
                if let Some(scale) = scale {
                    multiply(&tensor, scale)?;
                }
                grads.insert(var, tensor.clone());
                tensors.push(tensor);
            }
            match &tensors[..] {
                [] => {}
                [alone] => bytes_mut(alone, |bytes| all_reduce(group, bucket.dtype, bytes, op))??,
                several => {
                    let bytes = gather(several, bytemuck::cast_slice_mut(memory))?;
                    all_reduce(group, bucket.dtype, bytes, op)?;
                    scatter(several, bytes)?;
                }
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
}

fn all_reduce(group: &ProcessGroup, dtype: DType, bytes: &mut [u8], op: ReduceOp) -> phalanx::Result<()> {
    with_element!(dtype,
        T => group.all_reduce::<T>(bytemuck::cast_slice_mut(bytes), op),
        _ => Err(unsupported_dtype(group, OpKind::AllReduce, dtype)),
    )
}

/// Lays `tensors` end to end at the start of `memory`.
fn gather<'a>(tensors: &[Tensor], memory: &'a mut [u8]) -> Result<&'a mut [u8]> {
    let mut end = 0;
    for tensor in tensors {
        bytes_mut(tensor, |bytes| {
            memory[end..end + bytes.len()].copy_from_slice(bytes);
            end += bytes.len();
        })?;
    }
    Ok(&mut memory[..end])
}

/// Puts back what [`gather`] laid end to end.
fn scatter(tensors: &[Tensor], mut memory: &[u8]) -> Result<()> {
    for tensor in tensors {
        bytes_mut(tensor, |bytes| {
            let (mine, behind) = memory.split_at(bytes.len());
            bytes.copy_from_slice(mine);
            memory = behind;
        })?;
    }
    Ok(())
}

/// Multiplies a gradient, in place, and rounds once.
fn multiply(tensor: &Tensor, by: f64) -> Result<()> {
    bytes_mut(tensor, |bytes| {
        with_element!(tensor.dtype(),
            T => for x in bytemuck::cast_slice_mut::<u8, T>(bytes) {
                *x = T::from_f64(x.to_f64() * by);
            },
            _ => {} // `all_reduce` refuses it in a moment
        );
    })?;
    Ok(())
}
