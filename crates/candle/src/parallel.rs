//! Data-parallel training: every rank has the whole model and a part of each batch.

use crate::model::parameters;
use crate::reducer::Reducer;
use crate::{Result, Share, sync_model};
use candle_core::Tensor;
use candle_core::backprop::GradStore;
use candle_nn::VarMap;
use phalanx::ProcessGroup;

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
/// Gradients are summed in the order of the variables' names and in their own element type; the ones in the returned store
/// are views of the buckets they travelled in.
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
}

impl DistributedDataParallel {
    /// Makes the variables of `varmap` equal to those of rank 0 and prepares to average their gradients.
    ///
    /// Build the model first: variables added to `varmap` later are not seen.
    ///
    /// # Errors
    /// As of [`sync_model`].
    #[track_caller]
    pub fn new(varmap: &VarMap, group: &ProcessGroup, config: DdpConfig) -> Result<Self> {
        sync_model(varmap, group, 0)?;
        let reducer = Reducer::new(parameters(varmap), config.bucket_cap_bytes, group)?;
        Ok(Self { group: group.clone(), reducer })
    }

    /// Gradients of the mean of all ranks' losses: what one process would have found for the global batch, if each
    /// rank's loss is a mean over equally many samples.
    ///
    /// # Cost
    /// One all_reduce a bucket, after the backward pass; one copy of the gradients.
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
        self.reducer.reduce(grads, share, &self.group)
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
    Reducer::new(parameters(varmap), DdpConfig::default().bucket_cap_bytes, group)?.reduce(
        grads,
        Share::EQUAL,
        group,
    )
}
