//! Data-parallel training: every rank has the whole model and a part of each batch.

use crate::model::parameters;
use crate::reducer::Reducer;
use crate::{Result, Share, sync_model};
use candle_core::Tensor;
use candle_core::backprop::GradStore;
use candle_nn::VarMap;
use phalanx::{ProcessGroup, SharedBuffer};
use std::sync::{Mutex, PoisonError};

/// How gradients are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DdpConfig {
    /// Most bytes of gradients sent as one operation; a larger variable is sent alone. Default: 25 MiB, the
    /// field's custom: large enough for bandwidth, small enough that a copy in flight is no burden on memory.
    pub bucket_cap_bytes: usize,
}

impl DdpConfig {
    /// Sends at most `bytes` of gradients as one operation.
    #[must_use]
    pub fn bucket_cap_bytes(self, bytes: usize) -> Self {
        Self { bucket_cap_bytes: bytes }
    }
}

impl Default for DdpConfig {
    fn default() -> Self {
        Self { bucket_cap_bytes: 25 << 20 }
    }
}

/// Keeps the copies of a model on all ranks equal: same weights at the start, same gradients at each step.
///
/// Give the resulting gradients to any optimizer that is deterministic, and the weights stay bit-equal.
///
/// Construction and every `backward` are collective: each rank calls them in the same order. Variables that took no part in a rank's
/// loss count as zeros there; those that no rank used have no gradient afterwards, so optimizers leave them alone.
///
/// Gradients are summed in the order of the variables' names and in their own element type. They travel in buckets, which
/// are [allocated](ProcessGroup::alloc) once: on one host the ranks combine them where they lie.
///
/// What the forward pass itself changes, such as the running means of batch normalisation, stays each rank's own;
/// [`sync_model`] makes it equal again.
///
/// To accumulate gradients over several losses without communicating, call `loss.backward()` on each, join the stores with
/// [`GradStore::extend`], and pass the sum to [`sync_gradients`](Self::sync_gradients).
#[derive(Debug)]
pub struct DistributedDataParallel {
    group: ProcessGroup,
    reducer: Reducer,
    /// The memory of the buckets.
    memory: Mutex<Vec<SharedBuffer<u64>>>,
}

impl DistributedDataParallel {
    /// Makes the variables of `varmap` equal to those of rank 0 and prepares to average their gradients.
    ///
    /// Build the model first: variables added to `varmap` later are not seen.
    ///
    /// # Cost
    /// One broadcast of the model, and memory of its size for the buckets.
    ///
    /// # Errors
    /// As of [`sync_model`], and those of [`alloc`](ProcessGroup::alloc).
    #[track_caller]
    pub fn new(varmap: &VarMap, group: &ProcessGroup, config: DdpConfig) -> Result<Self> {
        sync_model(varmap, group, 0)?;
        let reducer = Reducer::new(parameters(varmap), config.bucket_cap_bytes, group)?;
        let mut memory = Vec::new();
        for words in reducer.room() {
            memory.push(group.alloc(words)?);
        }
        Ok(Self { group: group.clone(), reducer, memory: Mutex::new(memory) })
    }

    /// Gradients of the mean of all ranks' losses: what one process would have found for the global batch, if each
    /// rank's loss is a mean over equally many samples.
    ///
    /// # Cost
    /// One all_reduce a bucket, after the backward pass; one copy of the gradients into the buckets and one out of them.
    ///
    /// # Determinism
    /// Same bits on every rank, and from run to run with the same world size.
    ///
    /// # Errors
    /// Those of candle's backward pass, before anything is sent, and those of
    /// [`all_reduce`](ProcessGroup::all_reduce).
    #[track_caller]
    pub fn backward(&self, loss: &Tensor) -> Result<GradStore> {
        self.backward_share(loss, Share::EQUAL)
    }

    /// As [`backward`](Self::backward) for local batches of different sizes: `loss` is a mean over `share`'s samples.
    ///
    /// A rank without any samples has no loss; it passes an empty store to
    /// [`sync_gradients`](Self::sync_gradients) instead.
    ///
    /// # Errors
    /// As of [`backward`](Self::backward), and [`phalanx::Error::Misuse`] for a share of more than the whole.
    #[track_caller]
    pub fn backward_share(&self, loss: &Tensor, share: Share) -> Result<GradStore> {
        let mut grads = loss.backward()?;
        self.sync_gradients(&mut grads, share)?;
        Ok(grads)
    }

    /// Replaces this rank's gradients by those of the global batch.
    ///
    /// # Errors
    /// As of [`backward_share`](Self::backward_share). `grads` is changed only on success.
    #[track_caller]
    pub fn sync_gradients(&self, grads: &mut GradStore, share: Share) -> Result<()> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        self.reducer.reduce(grads, share, &self.group, &mut memory)
    }
}

/// Averages the gradients in `grads` over the group, for the variables of `varmap`: one step of
/// [`DistributedDataParallel`] without its state.
///
/// Collective. The models must be equal on all ranks, which is not checked at each call: see [`sync_model`].
///
/// # Errors
/// Those of [`all_reduce`](ProcessGroup::all_reduce). `grads` is changed only on success.
#[track_caller]
pub fn sync_gradients(varmap: &VarMap, grads: &mut GradStore, group: &ProcessGroup) -> Result<()> {
    let reducer = Reducer::new(parameters(varmap), DdpConfig::default().bucket_cap_bytes, group)?;
    let mut memory: Vec<Vec<u64>> = reducer.room().map(|words| vec![0; words]).collect();
    reducer.reduce(grads, Share::EQUAL, group, &mut memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device, Var};
    use phalanx_testkit::World;

    /// Three variables, each a bucket for itself, and the gradients of one step on one rank.
    fn step(varmap: &VarMap, rank: usize, step: usize) -> GradStore {
        let mut grads = GradStore::default();
        for (name, var) in varmap.data().lock().unwrap().iter() {
            let scale = (1 + rank + 10 * step + 100 * name.len()) as f64 / 7.0;
            let wave = Tensor::arange(0f64, var.elem_count() as f64, &Device::Cpu).unwrap().sin().unwrap();
            let grad = (wave * scale).unwrap().reshape(var.shape()).unwrap().to_dtype(var.dtype()).unwrap();
            grads.insert(var, grad);
        }
        grads
    }

    fn bits(varmap: &VarMap, grads: &GradStore) -> Vec<Vec<u64>> {
        let all = |var: &Var| {
            let wide = grads.get(var).unwrap().flatten_all().unwrap().to_dtype(DType::F64).unwrap();
            wide.to_vec1::<f64>().unwrap().into_iter().map(f64::to_bits).collect()
        };
        parameters(varmap).iter().map(|p| all(&p.var)).collect()
    }

    #[test]
    fn buckets_stay_where_they_are_and_change_no_result() {
        for world in [World::thread(), World::tcp(), World::shm()] {
            world.run(3, |group| {
                let varmap = VarMap::new();
                for (name, dtype, shape) in [
                    ("a", DType::F32, [40_000, 2]),
                    ("bb", DType::BF16, [5, 31]),
                    ("ccc", DType::F64, [1, 3]),
                ] {
                    let var = Var::zeros(&shape, dtype, &Device::Cpu).unwrap();
                    varmap.data().lock().unwrap().insert(name.to_owned(), var);
                }
                let config = DdpConfig::default().bucket_cap_bytes(0);
                let ddp = DistributedDataParallel::new(&varmap, &group, config).unwrap();
                let places = || -> Vec<*const u64> {
                    ddp.memory.lock().unwrap().iter().map(|buffer| buffer.as_ptr()).collect()
                };
                let before = places();
                assert_eq!(before.len(), 3);
                for at in 0..2 {
                    let mut found = step(&varmap, group.rank(), at);
                    ddp.sync_gradients(&mut found, Share::EQUAL).unwrap();
                    let mut plain = step(&varmap, group.rank(), at);
                    sync_gradients(&varmap, &mut plain, &group).unwrap();
                    let found = bits(&varmap, &found);
                    assert_eq!(found, bits(&varmap, &plain));

                    assert_eq!(places(), before);
                    let memory = ddp.memory.lock().unwrap();
                    let travelled: &[f64] = bytemuck::cast_slice(&memory[2][..3]);
                    let travelled: Vec<u64> = travelled.iter().map(|x| x.to_bits()).collect();
                    assert_eq!(travelled, found[2], "the gradients travelled in the bucket");
                }
            });
        }
    }
}
