//! Training in which every rank keeps only a part of what all need.

use crate::backend::Backend;
use crate::checkpoint::{self, Checkpoint, State, Stateful};
use crate::error::{refused, told};
use crate::parameters::{Named, by_name, gradients, lent, set_gradients, set_values, sync_model};
use ferrotorch_core::{FerrotorchResult, Float, Tensor};
use ferrotorch_nn::Module;
use phalanx_train::{AdamW, AdamWParams, Array, Gradients, Sgd, SgdParams, ShardConfig, Share, Weights};
use std::sync::Arc;

/// Data-parallel training in which each rank keeps a part only of the optimizer's state and of the gradients: ZeRO-1 and ZeRO-2, see
/// [`Stage`](crate::Stage). What comes out is what a [`DDP`](crate::DDP) and the same optimizer find.
///
/// Weights are laid end to end, and each rank has one slice of them: its [`shards`](Self::shards), of one dimension. They are what an optimizer changes, so it
/// keeps its state for them alone. [`backward`](Self::backward) returns their gradients; [`AdamW`] or [`Sgd`] of this crate make a step; and
/// [`gather`](Self::gather) gives all ranks the whole weights. Weights of 16 bits have shards of 32. What the optimizers remember is saved by the names of the
/// weights, so a training goes on with another number of ranks.
///
/// The weights are the module's parameters that need gradients when this is made. Construction and all calls that send are collective: each rank makes them in the
/// same order.
///
/// # Examples
/// ```
/// use ferrotorch_core::{FerrotorchResult, creation, grad_fns};
/// use ferrotorch_nn::{Linear, Module};
/// use phalanx_ferrotorch::{AdamWParams, Backend, Sharded, SimulatedBackend};
/// use std::sync::Arc;
///
/// fn train(backend: Arc<dyn Backend>) -> FerrotorchResult<f32> {
///     let x = creation::full(&[4, 8], 1.0 + backend.rank() as f32)?;
///     let mut zero = Sharded::new(Linear::<f32>::new(8, 1, true)?, backend, Default::default())?; // now equal
///     let mut adamw = zero.adamw(AdamWParams { lr: 0.05, ..Default::default() })?;
///     let loss = |zero: &Sharded<Linear<f32>, f32>| {
///         let y = zero.module().forward(&x)?;
///         grad_fns::reduction::mean(&grad_fns::arithmetic::mul(&y, &y)?)
///     };
///     for _ in 0..50 {
///         let grads = zero.backward(&loss(&zero)?)?; // this rank's half of the gradients of both batches
///         adamw.step(&mut zero, &grads).unwrap();
///         zero.gather()?; // all ranks have the whole model
///     }
///     loss(&zero)?.item()
/// }
/// # std::thread::scope(|scope| {
/// #     for backend in SimulatedBackend::create_group(2).unwrap() {
/// #         scope.spawn(move || assert!(train(Arc::new(backend)).unwrap() < 0.1));
/// #     }
/// # });
/// ```
#[doc(alias = "ZeRO")]
pub struct Sharded<M: Module<T>, T: Float> {
    module: M,
    backend: Arc<dyn Backend>,
    inner: phalanx_train::Sharded,
    weights: Vec<Named<T>>,
}

impl<M: Module<T>, T: Float> std::fmt::Debug for Sharded<M, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sharded").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<M: Module<T>, T: Float> Sharded<M, T> {
    /// Makes the module's parameters equal to those of rank 0, in place, and deals out those that need gradients.
    ///
    /// # Cost
    /// Each weight is sent three times. Of 32 bits a rank keeps `1 / world_size` of them once more.
    ///
    /// # Errors
    /// As of [`broadcast_parameters`](crate::DDP::broadcast_parameters). A module without parameters that need gradients. [`Stage::Weights`](crate::Stage::Weights):
    /// ZeRO-3 needs to hear from the graph when a layer begins to work, which this adapter does not listen for.
    ///
    /// # Examples
    /// See [`Sharded`].
    #[track_caller]
    pub fn new(module: M, backend: Arc<dyn Backend>, config: ShardConfig) -> FerrotorchResult<Self> {
        let named = by_name(&module);
        sync_model(&named, backend.group(), 0)?;
        let weights: Vec<_> = named.into_iter().filter(|one| one.tensor.requires_grad()).collect();
        if weights.is_empty() {
            return Err(refused("the module has no parameters that need gradients; do not freeze all of it"));
        }
        let mut values = lent(&weights)?;
        let all = weights.iter().map(|one| one.name.as_str()).zip(&mut values);
        let inner = phalanx_train::Sharded::new(all, backend.group(), config).map_err(told)?;
        Ok(Self { module, backend, inner, weights })
    }

    /// The module, whose parameters are those of all ranks.
    pub fn module(&self) -> &M {
        &self.module
    }

    /// The module alone.
    pub fn into_inner(self) -> M {
        self.module
    }

    /// The backend by which ranks communicate.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// This rank's slices of the weights. Not collective.
    pub fn shards(&self) -> impl Iterator<Item = &Array> {
        self.inner.shards()
    }

    /// Runs the backward pass of `loss`. Returns the gradients of this rank's shards, of the mean of all ranks' losses and of those that were
    /// [accumulated](Self::accumulate). The parameters have no gradients afterwards.
    ///
    /// A weight that no rank has used has a gradient of zero, unless none of those that are sent with it was used either: then there is none, and optimizers
    /// leave them alone.
    ///
    /// # Cost
    /// One reduce_scatter for each bucket of weights, an all_reduce of 8 bytes a bucket, and one of 72 bytes; in the first step, of 4 bytes more a weight. All of
    /// it after the backward pass.
    ///
    /// # Errors
    /// Those of the group, and of the backward pass. No gradient for some weight on any rank, if [`ShardConfig::missing_gradients`] asks for it.
    ///
    /// # Examples
    /// See [`Sharded`].
    #[track_caller]
    pub fn backward(&mut self, loss: &Tensor<T>) -> FerrotorchResult<Gradients<Array>> {
        self.backward_share(loss, Share::EQUAL)
    }

    /// As [`backward`](Self::backward) for local batches of different sizes: `loss` is a mean over `share`'s samples. A rank without any samples calls
    /// [`reduce`](Self::reduce) instead.
    ///
    /// # Errors
    /// As of [`backward`](Self::backward). Shares that make no whole batch, which is told on every rank.
    #[track_caller]
    pub fn backward_share(&mut self, loss: &Tensor<T>, share: Share) -> FerrotorchResult<Gradients<Array>> {
        ferrotorch_core::backward(loss)?;
        self.reduce(share)
    }

    /// As [`backward_share`](Self::backward_share), of the gradients that the parameters have.
    ///
    /// # Errors
    /// As of [`backward_share`](Self::backward_share).
    #[track_caller]
    pub fn reduce(&mut self, share: Share) -> FerrotorchResult<Gradients<Array>> {
        let mine = self.take()?;
        self.inner.reduce(mine, share).map_err(told)
    }

    /// Keeps the gradients of `loss` for the next [`backward`](Self::backward), which adds its own to them. Either all of a step have equal shares, or none: then the
    /// shares of the step are of one batch all together, or those of each call are of a batch of its own.
    ///
    /// # Cost
    /// With [`Stage::Optimizer`](crate::Stage::Optimizer) nothing is sent, and all gradients stay in memory. With
    /// [`Stage::Gradients`](crate::Stage::Gradients) they are reduced, and each rank keeps its part.
    ///
    /// # Errors
    /// As of [`backward_share`](Self::backward_share).
    #[doc(alias = "no_sync")]
    #[track_caller]
    pub fn accumulate(&mut self, loss: &Tensor<T>, share: Share) -> FerrotorchResult<()> {
        ferrotorch_core::backward(loss)?;
        let mine = self.take()?;
        self.inner.accumulate(mine, share).map_err(told)
    }

    /// The gradients, which the parameters have no more.
    fn take(&self) -> FerrotorchResult<Gradients<Array>> {
        let mine = gradients(&self.weights);
        set_gradients(&self.weights, self.weights.iter().map(|_| None).collect())?;
        mine
    }

    /// Gives the parameters the weights of all ranks, in place: after a step of the optimizer, and after a checkpoint was loaded.
    ///
    /// # Cost
    /// One all_gather if any shard has changed since the last time, and a look whether. Each weight is copied out of its tensor and back.
    ///
    /// # Errors
    /// Those of the group.
    ///
    /// # Examples
    /// See [`Sharded`].
    #[track_caller]
    pub fn gather(&mut self) -> FerrotorchResult<()> {
        let mut values = lent(&self.weights)?;
        self.inner.gather(&mut values).map_err(told)?;
        set_values(&self.weights, values)
    }

    /// An AdamW of this rank's shards, which can be part of a [checkpoint]. Not collective.
    ///
    /// # Cost
    /// Twice the shards' memory.
    ///
    /// # Errors
    /// As of [`AdamW::new`].
    ///
    /// # Examples
    /// See [`Sharded`].
    pub fn adamw(&self, params: AdamWParams) -> FerrotorchResult<AdamW<Array>> {
        self.inner.adamw(params).map_err(told)
    }

    /// As [`adamw`](Self::adamw), gradient descent.
    pub fn sgd(&self, params: SgdParams) -> Sgd<Array> {
        self.inner.sgd(params)
    }

    /// Scales the shards' gradients, in place, so that the norm of all ranks' together is `max_norm` at most, and returns what it was: the same number on all
    /// ranks. A norm that is infinite or not a number is returned, and nothing is scaled.
    ///
    /// # Cost
    /// One pass over this rank's gradients, two if they are scaled, and an all_reduce of one number.
    ///
    /// # Errors
    /// Those of the group. A `max_norm` that is negative or not a number: nothing is scaled then, no other rank is left waiting, and the group is fine.
    #[track_caller]
    pub fn clip_grad_norm(&self, grads: &mut [Option<Array>], max_norm: f64) -> FerrotorchResult<f64> {
        self.inner.clip_grad_norm(grads, max_norm).map_err(told)
    }
}

/// The shards are what [`AdamW`] and [`Sgd`] change.
impl<M: Module<T>, T: Float> Weights<Array> for Sharded<M, T> {
    fn with<R>(
        &mut self,
        index: usize,
        work: impl FnOnce(&mut Array) -> phalanx_train::Result<R>,
    ) -> phalanx_train::Result<R> {
        self.inner.with(index, work)
    }
}

/// The weights, whole, by name, of 16 bits as f32. After a load, [`gather`](Sharded::gather) brings them to the parameters. Where weights have 32 bits or more,
/// [`save_module`](checkpoint::save_module) saves as much: load it before this is made.
impl<M: Module<T>, T: Float> Stateful for Sharded<M, T> {
    fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) -> Result<(), checkpoint::Error> {
        self.inner.save(prefix, state)
    }

    fn load(&mut self, prefix: &str, from: &Checkpoint) -> Result<(), checkpoint::Error> {
        self.inner.load(prefix, from)
    }
}
