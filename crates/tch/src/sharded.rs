//! Training in which every rank keeps only a part of what all need.

use crate::checkpoint::{Checkpoint, State, Stateful};
use crate::error::told;
use crate::torch::Torch;
use crate::variables::{Variable, named, variables};
use crate::{
    AdamW, AdamWParams, Array, Gradients, Result, Sgd, SgdParams, ShardConfig, Share, checkpoint, sync_model,
};
use phalanx::ProcessGroup;
use phalanx::error::OpKind;
use phalanx_train::Weights;
use tch::Tensor;
use tch::nn::{self, OptimizerConfig, VarStore};

/// Data-parallel training in which each rank keeps a part only of the optimizer's state and of the gradients: ZeRO-1 and ZeRO-2, see
/// [`Stage`](crate::Stage). What comes out is what a [`DistributedDataParallel`](crate::DistributedDataParallel) and the same optimizer find.
///
/// Weights are laid end to end, and each rank has one slice of them: its [`shards`](Self::shards), of one dimension. They are what an optimizer changes, so it
/// keeps its state for them alone. [`backward`](Self::backward) returns their gradients; [`AdamW`] or [`Sgd`] of this crate make a step; and
/// [`gather`](Self::gather) gives all ranks the whole weights. Weights of 16 bits have shards of 32. What the optimizers remember is saved by the names of the
/// weights, so a training goes on with another number of ranks.
///
/// Construction and all calls that send are collective: each rank makes them in the same order.
///
/// # Examples
/// ```
/// use phalanx_tch::Sharded;
/// use tch::nn::Module;
/// use tch::{Device, Kind, Tensor, nn};
///
/// let losses = phalanx::on_threads(2, |group| {
///     let store = nn::VarStore::new(Device::Cpu);
///     let model = nn::linear(store.root(), 8, 1, Default::default()); // different on each rank
///     let mut zero = Sharded::new(&store, &group, Default::default()).unwrap(); // now equal
///     let mut adamw = zero.adamw(phalanx_tch::AdamWParams { lr: 0.05, ..Default::default() }).unwrap();
///     let x = Tensor::full([4, 8], 1.0 + group.rank() as f64, (Kind::Float, Device::Cpu));
///     for _ in 0..50 {
///         let loss = model.forward(&x).square().mean(None);
///         let grads = zero.backward(&loss).unwrap(); // this rank's half of the gradients of both batches
///         adamw.step(&mut zero, &grads).unwrap();
///         zero.gather().unwrap(); // all ranks have the whole model
///     }
///     phalanx_tch::verify_parameters(&store, &group).unwrap();
///     Ok(f64::try_from(model.forward(&x).square().mean(None)).unwrap())
/// })?;
/// assert!(losses.iter().all(|loss| *loss < 0.1), "{losses:?}");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[doc(alias = "ZeRO")]
#[derive(Debug)]
pub struct Sharded {
    inner: phalanx_train::Sharded,
    weights: Vec<Variable>,
    eraser: nn::Optimizer,
}

impl Sharded {
    /// Makes the variables of `store` equal to those of rank 0, and deals out those that are trained.
    ///
    /// # Cost
    /// Each weight is sent three times. Of 32 bits a rank keeps `1 / world_size` of them once more.
    ///
    /// # Errors
    /// As of [`sync_model`]. [`phalanx::Error::Misuse`] for a store without variables that are trained. [`phalanx::Error::Config`] for
    /// [`Stage::Weights`](crate::Stage::Weights): ZeRO-3 needs to hear from the graph when a layer begins to work, which tch tells nobody.
    ///
    /// # Examples
    /// See [`Sharded`].
    #[track_caller]
    pub fn new(store: &VarStore, group: &ProcessGroup, config: ShardConfig) -> Result<Self> {
        let weights: Vec<_> =
            variables(store).into_iter().filter(|variable| variable.tensor.requires_grad()).collect();
        if weights.is_empty() {
            let what = "the store has no variables that need gradients; build the model first, and do not freeze all of it";
            return Err(phalanx::Error::misuse(OpKind::ReduceScatter, what).into());
        }
        let mut shared = named(&weights, OpKind::ReduceScatter)?;
        let of_weights = shared.iter_mut().map(|(name, tensor)| (*name, tensor));
        let inner = phalanx_train::Sharded::new(of_weights, group, config)?;
        drop(shared);
        sync_model(store, group, 0)?;
        let eraser = nn::Sgd::default().build(store, 0.0).map_err(told)?;
        Ok(Self { inner, weights, eraser })
    }

    /// This rank's slices of the weights. Not collective.
    pub fn shards(&self) -> impl Iterator<Item = &Array> {
        self.inner.shards()
    }

    /// Runs the backward pass of `loss`. Returns the gradients of this rank's shards, of the mean of all ranks' losses and of those that were
    /// [accumulated](Self::accumulate). The variables have no gradients afterwards.
    ///
    /// A weight that no rank has used has a gradient of zero, unless none of those that are sent with it was used either: then there is none, and optimizers
    /// leave them alone.
    ///
    /// # Cost
    /// One reduce_scatter for each bucket of weights, an all_reduce of 8 bytes a bucket, and one of 72 bytes; in the first step, of 4 bytes more a weight. All of
    /// it after the backward pass.
    ///
    /// # Errors
    /// Those of [`reduce_scatter`](ProcessGroup::reduce_scatter), and of the backward pass. [`Error::NoGradient`](crate::Error::NoGradient) if
    /// [`ShardConfig::missing_gradients`] asks for it; the group is fine then.
    ///
    /// # Examples
    /// See [`Sharded`].
    #[track_caller]
    pub fn backward(&mut self, loss: &Tensor) -> Result<Gradients<Array>> {
        self.backward_share(loss, Share::EQUAL)
    }

    /// As [`backward`](Self::backward) for local batches of different sizes: `loss` is a mean over `share`'s samples. A rank without any samples calls
    /// [`reduce`](Self::reduce) instead.
    ///
    /// # Errors
    /// As of [`backward`](Self::backward); [`Error::ShareMismatch`](crate::Error::ShareMismatch) on all ranks for shares that do not add up to the
    /// whole, and [`phalanx::Error::Misuse`] for one of more than it.
    #[track_caller]
    pub fn backward_share(&mut self, loss: &Tensor, share: Share) -> Result<Gradients<Array>> {
        loss.f_backward().map_err(told)?;
        self.reduce(share)
    }

    /// As [`backward_share`](Self::backward_share), of the gradients that the variables have.
    ///
    /// # Errors
    /// As of [`backward_share`](Self::backward_share).
    #[track_caller]
    pub fn reduce(&mut self, share: Share) -> Result<Gradients<Array>> {
        let mine = self.take()?;
        self.inner.reduce(mine, share)
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
    pub fn accumulate(&mut self, loss: &Tensor, share: Share) -> Result<()> {
        loss.f_backward().map_err(told)?;
        let mine = self.take()?;
        self.inner.accumulate(mine, share)
    }

    /// The gradients, which the variables have no more.
    fn take(&mut self) -> Result<Gradients<Torch>> {
        let mine = self.weights.iter().map(|weight| weight.gradient(OpKind::ReduceScatter)).collect();
        self.eraser.zero_grad();
        mine
    }

    /// Gives the variables the weights of all ranks: after a step of the optimizer, and after a checkpoint was loaded.
    ///
    /// # Cost
    /// One all_gather if any shard has changed since the last time, and a look whether.
    ///
    /// # Errors
    /// Those of [`all_gather`](ProcessGroup::all_gather).
    ///
    /// # Examples
    /// See [`Sharded`].
    #[track_caller]
    pub fn gather(&mut self) -> Result<()> {
        let mut weights = named(&self.weights, OpKind::AllGather)?;
        let mut weights: Vec<_> = weights.drain(..).map(|(_, tensor)| tensor).collect();
        self.inner.gather(&mut weights)
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
    pub fn adamw(&self, params: AdamWParams) -> Result<AdamW<Array>> {
        self.inner.adamw(params)
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
    /// Those of [`all_reduce`](ProcessGroup::all_reduce). [`phalanx::Error::Config`] for a `max_norm` that is negative or not a number: nothing is
    /// scaled then, no other rank is left waiting, and the group is fine.
    #[track_caller]
    pub fn clip_grad_norm(&self, grads: &mut [Option<Array>], max_norm: f64) -> Result<f64> {
        self.inner.clip_grad_norm(grads, max_norm)
    }
}

/// The shards are what [`AdamW`] and [`Sgd`] change.
impl Weights<Array> for Sharded {
    fn with<R>(&mut self, index: usize, work: impl FnOnce(&mut Array) -> Result<R>) -> Result<R> {
        self.inner.with(index, work)
    }
}

/// The weights, whole, by name, of 16 bits as f32. After a load, [`gather`](Sharded::gather) brings them to the variables. Where weights have 32 bits or more,
/// [`save_vars`](checkpoint::save_vars) saves as much, and the buffers with it: load it before this is made.
impl Stateful for Sharded {
    fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) -> checkpoint::Result<()> {
        self.inner.save(prefix, state)
    }

    fn load(&mut self, prefix: &str, from: &Checkpoint) -> checkpoint::Result<()> {
        self.inner.load(prefix, from)
    }
}
