//! Data-parallel training: every rank has the whole model and a part of each batch.

use crate::model::parameters;
use crate::reducer::Reducer;
use crate::{Result, Share, sync_model, verify_parameters};
use candle_core::Tensor;
use candle_core::backprop::GradStore;
use candle_nn::VarMap;
use phalanx::{ProcessGroup, SharedBuffer};
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// How gradients are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DdpConfig {
    /// Most bytes of gradients that are laid together and sent as one operation; a larger one is sent alone, from where it
    /// lies. Default: 1 MiB, large enough for bandwidth, and small enough to stay in a cache on the way in and out.
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
        Self { bucket_cap_bytes: 1 << 20 }
    }
}

/// Keeps the copies of a model on all ranks equal: same weights at the start, same gradients at each step.
///
/// Give the resulting gradients to any optimizer that is deterministic, and the weights stay bit-equal.
///
/// Construction and every `backward` are collective: each rank calls them in the same order. Variables that took no part in a rank's
/// loss count as zeros there; those that no rank used have no gradient afterwards, so optimizers leave them alone.
///
/// Gradients are averaged in the order of the variables' names, in their own element type and in their own memory: other
/// tensors that share it see the change. Small ones travel together, in a bucket that is [allocated](ProcessGroup::alloc) once.
///
/// What the forward pass itself changes, such as the running means of batch normalisation, stays each rank's own;
/// [`sync_model`] makes it equal again.
///
/// To accumulate gradients over several losses without communicating, call `loss.backward()` on each, join the stores with
/// [`GradStore::extend`], and pass the sum to [`sync_gradients`](Self::sync_gradients).
pub struct DistributedDataParallel {
    varmap: VarMap,
    group: ProcessGroup,
    reducer: Reducer,
    /// What buckets of several gradients travel in, one after the other.
    memory: Mutex<SharedBuffer<u64>>,
}

impl fmt::Debug for DistributedDataParallel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { varmap: _, group, reducer, memory: _ } = self;
        f.debug_struct("DistributedDataParallel")
            .field("group", group)
            .field("reducer", reducer)
            .finish_non_exhaustive()
    }
}

impl DistributedDataParallel {
    /// Makes the variables of `varmap` equal to those of rank 0 and prepares to average their gradients.
    ///
    /// Build the model first: variables added to `varmap` later are not seen.
    ///
    /// # Cost
    /// One broadcast of the model, and memory for the largest bucket.
    ///
    /// # Errors
    /// As of [`sync_model`], and those of [`alloc`](ProcessGroup::alloc).
    #[track_caller]
    pub fn new(varmap: &VarMap, group: &ProcessGroup, config: DdpConfig) -> Result<Self> {
        sync_model(varmap, group, 0)?;
        let reducer = Reducer::new(parameters(varmap), config.bucket_cap_bytes, group)?;
        let memory = group.alloc(reducer.room())?;
        Ok(Self { varmap: varmap.clone(), group: group.clone(), reducer, memory: Mutex::new(memory) })
    }

    /// Gradients of the mean of all ranks' losses: what one process would have found for the global batch, if each
    /// rank's loss is a mean over equally many samples.
    ///
    /// # Cost
    /// After the backward pass, one all_reduce a bucket and one of a byte a variable: who has which gradients.
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
    /// As of [`backward_share`](Self::backward_share). After an error of the group some gradients may be averaged, others not.
    #[track_caller]
    pub fn sync_gradients(&self, grads: &mut GradStore, share: Share) -> Result<()> {
        let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        self.reducer.reduce(grads, share, &self.group, &mut memory)
    }

    /// Makes sure that all ranks hold the same weights, bit for bit: [`verify_parameters`] for the model that was wrapped,
    /// with what was added to it since. Once an epoch is cheap, and tells on which rank a run went astray before the
    /// accuracy does.
    ///
    /// # Errors
    /// [`Error::ParameterMismatch`](crate::Error::ParameterMismatch) on every rank, and the others of [`verify_parameters`].
    ///
    /// # Examples
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// use candle_nn::{VarBuilder, VarMap};
    /// use phalanx::SimulatedBackend;
    /// use phalanx_candle::DistributedDataParallel;
    ///
    /// std::thread::scope(|s| {
    ///     for group in SimulatedBackend::create_group(3) {
    ///         s.spawn(move || {
    ///             let varmap = VarMap::new();
    ///             let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    ///             candle_nn::linear(4, 2, vb.pp("head")).unwrap();
    ///             let ddp = DistributedDataParallel::new(&varmap, &group, Default::default()).unwrap();
    ///             ddp.verify_parameters().unwrap();
    ///
    ///             if group.rank() == 2 {
    ///                 let mut data = varmap.data().lock().unwrap();
    ///                 let weight = data.get_mut("head.weight").unwrap();
    ///                 weight.set(&weight.zeros_like().unwrap()).unwrap(); // a bug, or a flipped bit
    ///             }
    ///             let error = ddp.verify_parameters().unwrap_err().to_string();
    ///             assert!(error.starts_with("parameter `head."), "{error}"); // … differs between ranks:
    ///             assert!(error.ends_with(" on rank 2"), "{error}");
    ///         });
    ///     }
    /// });
    /// ```
    #[track_caller]
    pub fn verify_parameters(&self) -> Result<()> {
        verify_parameters(&self.varmap, &self.group)
    }
}

/// Averages the gradients in `grads` over the group, for the variables of `varmap`: one step of
/// [`DistributedDataParallel`] without its state.
///
/// Collective. The models must be equal on all ranks, which is not checked at each call: see [`sync_model`].
///
/// # Errors
/// Those of [`all_reduce`](ProcessGroup::all_reduce); after one some gradients may be averaged, others not.
#[track_caller]
pub fn sync_gradients(varmap: &VarMap, grads: &mut GradStore, group: &ProcessGroup) -> Result<()> {
    let reducer = Reducer::new(parameters(varmap), DdpConfig::default().bucket_cap_bytes, group)?;
    let mut memory = vec![0; reducer.room()];
    reducer.reduce(grads, Share::EQUAL, group, &mut memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::bytes_mut;
    use crate::model::Parameter;
    use candle_core::{DType, Device, Var};
    use phalanx_testkit::World;

    /// The gradients of one step on one rank.
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

    /// Where the gradients lie, in name order.
    fn places(varmap: &VarMap, grads: &GradStore) -> Vec<*const u8> {
        let place = |p: &Parameter| bytes_mut(grads.get(&p.var).unwrap(), |bytes| bytes.as_ptr()).unwrap();
        parameters(varmap).iter().map(place).collect()
    }

    #[test]
    fn gradients_stay_where_they_are_and_small_ones_travel_together() {
        for world in [World::thread(), World::tcp(), World::shm()] {
            world.run(3, |group| {
                let varmap = VarMap::new();
                for (name, dtype, shape) in [
                    ("a", DType::F32, [40_000, 2]),
                    ("bb", DType::BF16, [5, 31]),
                    ("ccc", DType::F64, [1, 3]),
                    ("dddd", DType::F64, [2, 1]),
                    ("eeeee", DType::F16, [7, 1]),
                ] {
                    let var = Var::zeros(&shape, dtype, &Device::Cpu).unwrap();
                    varmap.data().lock().unwrap().insert(name.to_owned(), var);
                }
                let config = DdpConfig::default().bucket_cap_bytes(1000);
                let ddp = DistributedDataParallel::new(&varmap, &group, config).unwrap();
                assert_eq!(ddp.memory.lock().unwrap().len(), 5);
                for at in 0..2 {
                    let mut found = step(&varmap, group.rank(), at);
                    let before = places(&varmap, &found);
                    ddp.sync_gradients(&mut found, Share::EQUAL).unwrap();
                    assert_eq!(places(&varmap, &found), before);

                    let mut plain = step(&varmap, group.rank(), at);
                    sync_gradients(&varmap, &mut plain, &group).unwrap();
                    let found = bits(&varmap, &found);
                    assert_eq!(found, bits(&varmap, &plain));

                    let memory = ddp.memory.lock().unwrap();
                    let travelled: &[f64] = bytemuck::cast_slice(&memory);
                    let travelled: Vec<u64> = travelled.iter().map(|x| x.to_bits()).collect();
                    assert_eq!(travelled, [&found[2][..], &found[3]].concat());
                }
            });
        }
    }

    #[test]
    fn gradients_in_any_layout_are_averaged() {
        World::thread().run(2, |group| {
            let varmap = VarMap::new();
            let var = Var::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
            varmap.data().lock().unwrap().insert("a".to_owned(), var.clone());
            let rows = Tensor::arange(0f32, 6.0, &Device::Cpu).unwrap().reshape((3, 2)).unwrap();
            let mut grads = GradStore::default();
            grads.insert(&var, (rows * (1 + group.rank()) as f64).unwrap().t().unwrap());
            sync_gradients(&varmap, &mut grads, &group).unwrap();
            let found = grads.get(&var).unwrap().to_vec2::<f32>().unwrap();
            assert_eq!(found, [[0.0, 3.0, 6.0], [1.5, 4.5, 7.5]]);
        });
    }

    #[test]
    fn sums_beyond_f16_have_averages_within() {
        World::tcp().run(3, |group| {
            let varmap = VarMap::new();
            let var = Var::zeros(4, DType::F16, &Device::Cpu).unwrap();
            varmap.data().lock().unwrap().insert("a".to_owned(), var.clone());
            let mut grads = GradStore::default();
            grads.insert(
                &var,
                Tensor::full(60_000f32, 4, &Device::Cpu).unwrap().to_dtype(DType::F16).unwrap(),
            );
            sync_gradients(&varmap, &mut grads, &group).unwrap();
            let found = grads.get(&var).unwrap().to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
            assert!(found.iter().all(|x| (x - 60_000.0).abs() < 100.0), "{found:?}");
        });
    }
}
