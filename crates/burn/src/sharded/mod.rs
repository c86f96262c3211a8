//! Training in which every rank keeps only a part of what all need.

mod state;

use crate::arrays::{array, tensor};
use crate::names::{Named, Role, parameters};
use crate::trained::Trained;
use crate::{
    AdamW, AdamWParams, Array, Gradients, Result, Sgd, SgdParams, ShardConfig, Share, sync_model,
    verify_parameters,
};
use burn_core::module::{Module, Param, ParamId};
use burn_core::tensor::{Device, Tensor};
use burn_optim::{GradientsParams, LearningRate, ModuleOptimizer};
use phalanx::ProcessGroup;
use phalanx::error::OpKind;
use phalanx_train::{LossScaler, Tensor as _, Weights};

/// Data-parallel training in which each rank keeps a part only of the optimizer's state and of the gradients: ZeRO-1 and ZeRO-2, see
/// [`Stage`](crate::Stage). What comes out is what a [`DistributedDataParallel`](crate::DistributedDataParallel) and the same optimizer find.
///
/// Weights are laid end to end, and each rank has one slice of them: its [`shards`](Self::shards), of one dimension. They are what an optimizer changes, so it
/// keeps its state for them alone. [`backward`](Self::backward) returns their gradients, and [`step`](Self::step) has one of burn's optimizers change them and
/// gives all ranks the whole weights. Weights of 16 bits have shards of 32.
///
/// The optimizer has to treat each number by itself, as burn's SGD, Adam, AdamW, AdaGrad, Adan, Lion and RMSprop do. LAMB, Adafactor and Muon look at a
/// whole weight, and come to something else. Shards have no paths, so an optimizer has no groups of parameters here, and the norms that its
/// `with_grad_clipping` clips are those of shards. [`clip_grad_norm`](Self::clip_grad_norm) clips the norm of all gradients together.
///
/// [`AdamW`] and [`Sgd`] of this crate may be taken instead: [`adamw`](Self::adamw), [`sgd`](Self::sgd). What they remember is saved by the names of the weights, so
/// a training goes on with another number of ranks. What an optimizer of burn's remembers of shards is each rank's own:
/// [`save_optimizer`](Self::save_optimizer) saves it for as many ranks.
///
/// The weights are those that need gradients when this is made; all others stay as they are. Construction and all calls that send are collective: each rank
/// makes them in the same order.
///
/// # Examples
/// ```
/// use burn::nn::LinearConfig;
/// use burn::optim::{AdamConfig, ModuleOptimizer};
/// use burn::tensor::{Device, Tensor};
/// use phalanx::ProcessGroup;
/// use phalanx_burn::Sharded;
///
/// fn train(group: &ProcessGroup) -> phalanx_burn::Result<f32> {
///     let device = Device::default().autodiff();
///     let mut model = LinearConfig::new(8, 1).init(&device); // different on each rank
///     let mut optimizer: ModuleOptimizer = AdamConfig::new().init();
///     let mut zero = Sharded::new(&mut model, group, Default::default())?; // now equal
///     let x = Tensor::<2>::full([4, 8], 1.0 + group.rank() as f32, &device);
///     for _ in 0..50 {
///         let loss = model.forward(x.clone()).square().mean();
///         let grads = zero.backward(&model, loss)?; // this rank's half of the gradients of both batches
///         model = zero.step(&mut optimizer, 0.05, model, grads)?;
///     }
///     zero.verify_parameters(&model)?; // all ranks have the whole model
///     Ok(model.forward(x).square().mean().into_scalar())
/// }
/// # let losses = phalanx::on_threads(2, |group| Ok(train(&group).unwrap()))?;
/// # assert!(losses.iter().all(|loss| *loss < 0.1), "{losses:?}");
/// # Ok::<(), phalanx::Error>(())
/// ```
#[doc(alias = "ZeRO")]
pub struct Sharded {
    inner: phalanx_train::Sharded,
    weights: Trained,
    group: ProcessGroup,
    /// Where burn's optimizers change the shards: where the first of the weights is.
    device: Device,
    /// The numbers by which burn's optimizers know the shards.
    ids: Vec<ParamId>,
}

impl std::fmt::Debug for Sharded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sharded").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Sharded {
    /// Makes the parameters of `model` equal to those of rank 0, and deals its weights out.
    ///
    /// # Cost
    /// Each weight is sent three times. Of 32 bits a rank keeps `1 / world_size` of them once more, on the host.
    ///
    /// # Errors
    /// As of [`sync_model`]; [`Error::ModelMismatch`](crate::Error::ModelMismatch) also where a weight is frozen on some ranks only.
    /// [`phalanx::Error::Misuse`] for a model without weights that need gradients. [`phalanx::Error::Config`] for [`Stage::Weights`](crate::Stage::Weights): ZeRO-3
    /// needs to hear from the graph when a layer begins to work, which burn tells nobody.
    ///
    /// # Examples
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::tensor::Device;
    /// use phalanx_burn::{ShardConfig, Sharded, Stage};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// let mut model: Linear = LinearConfig::new(3, 3).init(&Device::default().autodiff()); // different on each rank
    /// let config = ShardConfig::default().stage(Stage::Optimizer);
    /// let zero = Sharded::new(&mut model, group, config)?;
    /// let mine: usize = zero.shards().map(|shard| shard.as_slice::<f32>().unwrap().len()).sum();
    /// assert_eq!(mine, 6); // half of nine weights and three biases
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn new<M: Module>(model: &mut M, group: &ProcessGroup, config: ShardConfig) -> Result<Self> {
        let mut found = parameters(model, OpKind::ReduceScatter)?;
        let weights = Trained::of(&found, OpKind::ReduceScatter, group)?;
        let trained = found.iter_mut().filter(|found| found.role == Role::Weight);
        let named = trained.map(|Named { name, values, .. }| (name.as_str(), values));
        let inner = phalanx_train::Sharded::new(named, group, config)?;
        sync_model(model, group, 0)?;
        let device = weights.lent(model)?.device().unwrap_or_default();
        let ids = inner.shards().map(|_| ParamId::new()).collect();
        Ok(Self { inner, weights, group: group.clone(), device, ids })
    }

    /// This rank's slices of the weights. Not collective.
    ///
    /// # Examples
    /// See [`new`](Self::new).
    pub fn shards(&self) -> impl Iterator<Item = &Array> {
        self.inner.shards()
    }

    /// Gradients of this rank's shards, of the mean of all ranks' losses and of those that were [accumulated](Self::accumulate).
    ///
    /// A weight that no rank has used has a gradient of zero, unless none of those that are sent with it was used either: then there is none, and optimizers
    /// leave them alone.
    ///
    /// # Cost
    /// One reduce_scatter for each bucket of weights, an all_reduce of 8 bytes a bucket, and one of 72 bytes; in the first step, of 4 bytes more a weight. All of
    /// it after the backward pass. Gradients of a device are copied to the host.
    ///
    /// # Determinism
    /// As of [`DistributedDataParallel::backward`](crate::DistributedDataParallel::backward).
    ///
    /// # Errors
    /// Those of [`reduce_scatter`](ProcessGroup::reduce_scatter). [`Error::NoGradient`](crate::Error::NoGradient) if [`ShardConfig::missing_gradients`] asks for it; the
    /// group is fine then. [`phalanx::Error::Misuse`] for another model.
    ///
    /// # Examples
    /// ```
    /// use burn::module::Param;
    /// use burn::tensor::{Device, Tensor};
    /// use phalanx_burn::{Array, Sharded};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// let value = Tensor::<1>::ones([2], &Device::default().autodiff());
    /// let mut weight = Param::from_tensor(value.require_grad());
    /// let mut zero = Sharded::new(&mut weight, group, Default::default())?;
    /// let loss = (weight.val() * group.rank() as f32).sum(); // gradients of 0 on rank 0, and of 1 on rank 1
    /// let grads = zero.backward(&weight, loss)?;
    /// assert_eq!(grads, [Some(Array::from(vec![0.5f32]))]); // of this rank's element
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn backward<const D: usize>(
        &mut self,
        model: &impl Module,
        loss: Tensor<D>,
    ) -> Result<Gradients<Array>> {
        self.backward_share(model, loss, Share::EQUAL)
    }

    /// As [`backward`](Self::backward) for local batches of different sizes: `loss` is a mean over `share`'s samples. A rank without any samples passes
    /// `GradientsParams::new()` to [`reduce`](Self::reduce) instead.
    ///
    /// # Errors
    /// As of [`backward`](Self::backward); [`Error::ShareMismatch`](crate::Error::ShareMismatch) on all ranks for shares that do not add up to the
    /// whole, and [`phalanx::Error::Misuse`] for one of more than it.
    ///
    /// # Examples
    /// ```
    /// # use burn::{module::Param, tensor::{Device, Tensor}};
    /// # use phalanx_burn::{Array, Sharded};
    /// use phalanx_burn::Share;
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// # let value = Tensor::<1>::ones([2], &Device::default().autodiff());
    /// # let mut weight = Param::from_tensor(value.require_grad());
    /// let mut zero = Sharded::new(&mut weight, group, Default::default())?;
    /// let loss = (weight.val() * group.rank() as f32).sum();
    /// let samples = [3, 1][group.rank()];
    /// let grads = zero.backward_share(&weight, loss, Share::new(samples, 4))?;
    /// assert_eq!(grads, [Some(Array::from(vec![0.25f32]))]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn backward_share<const D: usize>(
        &mut self,
        model: &impl Module,
        loss: Tensor<D>,
        share: Share,
    ) -> Result<Gradients<Array>> {
        self.reduce(model, GradientsParams::from_grads(loss.backward(), model), share)
    }

    /// As [`backward_share`](Self::backward_share), for a program that has this rank's gradients already.
    ///
    /// # Errors
    /// As of [`backward_share`](Self::backward_share).
    ///
    /// # Examples
    /// ```
    /// # use burn::{module::Param, tensor::{Device, Tensor}};
    /// # use phalanx_burn::{Array, Sharded, Share};
    /// use burn::optim::GradientsParams;
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// # let value = Tensor::<1>::ones([2], &Device::default().autodiff());
    /// # let mut weight = Param::from_tensor(value.require_grad());
    /// let mut zero = Sharded::new(&mut weight, group, Default::default())?;
    /// let mine = match group.rank() {
    ///     0 => GradientsParams::from_grads(weight.val().sum().backward(), &weight),
    ///     _ => GradientsParams::new(), // no samples
    /// };
    /// let grads = zero.reduce(&weight, mine, Share::new([4, 0][group.rank()], 4))?;
    /// assert_eq!(grads, [Some(Array::from(vec![1f32]))]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn reduce(
        &mut self,
        model: &impl Module,
        grads: GradientsParams,
        share: Share,
    ) -> Result<Gradients<Array>> {
        let mine = self.weights.lent(model)?.take_gradients(grads)?;
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
    ///
    /// # Examples
    /// ```
    /// # use burn::{module::Param, tensor::{Device, Tensor}};
    /// # use phalanx_burn::{Array, Sharded, Share};
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// # let value = Tensor::<1>::ones([2], &Device::default().autodiff());
    /// # let mut weight = Param::from_tensor(value.require_grad());
    /// let mut zero = Sharded::new(&mut weight, group, Default::default())?;
    /// zero.accumulate(&weight, (weight.val() * 2.0).sum(), Share::EQUAL)?;
    /// let grads = zero.backward(&weight, (weight.val() * 3.0).sum())?;
    /// assert_eq!(grads, [Some(Array::from(vec![5f32]))]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[doc(alias = "no_sync")]
    #[track_caller]
    pub fn accumulate<const D: usize>(
        &mut self,
        model: &impl Module,
        loss: Tensor<D>,
        share: Share,
    ) -> Result<()> {
        let grads = GradientsParams::from_grads(loss.backward(), model);
        let mine = self.weights.lent(model)?.take_gradients(grads)?;
        self.inner.accumulate(mine, share)
    }

    /// Has one of burn's optimizers change the shards by their gradients, and returns the model with the weights of all ranks.
    ///
    /// # Cost
    /// Of the optimizer, a pass over the shards, on the device of the model's first weight. One all_gather of all weights, and a look whether any has changed.
    /// Weights of a device are copied to the host and back.
    ///
    /// # Errors
    /// [`phalanx::Error::Config`] for gradients that are not those of the shards, and [`phalanx::Error::Misuse`] for another model: nothing is changed then.
    /// Those of [`all_gather`](ProcessGroup::all_gather). With an error the model is not returned: a program that goes on after one keeps a clone.
    ///
    /// # Examples
    /// ```
    /// # use burn::{module::Param, tensor::{Device, Tensor}};
    /// # use phalanx_burn::Sharded;
    /// use burn::optim::{ModuleOptimizer, SgdConfig};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// # let value = Tensor::<1>::ones([2], &Device::default().autodiff());
    /// # let mut weight = Param::from_tensor(value.require_grad());
    /// let mut zero = Sharded::new(&mut weight, group, Default::default())?;
    /// let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    /// let loss = (weight.val() * group.rank() as f32).sum();
    /// let grads = zero.backward(&weight, loss)?;
    /// weight = zero.step(&mut optimizer, 0.5, weight, grads)?;
    /// assert_eq!(weight.val().sum().into_scalar::<f32>(), 1.5); // both elements went from 1 to 0.75
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn step<M: Module>(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        rate: LearningRate,
        model: M,
        grads: Gradients<Array>,
    ) -> Result<M> {
        self.check(&grads)?;
        let mut weights = self.weights.lent(&model)?;
        for (index, grad) in grads.into_iter().enumerate() {
            let Some(grad) = grad else { continue };
            let (id, device) = (self.ids[index], &self.device);
            self.inner.with(index, |shard| {
                let own: Tensor<1> = tensor(shard.clone(), device)?; // a failure leaves the shard as it is
                let param = Param::initialized(id, own.require_grad());
                let mut grads = GradientsParams::new();
                grads.register::<1>(id, tensor(grad, &device.clone().inner())?);
                *shard = array(OpKind::AllGather, optimizer.step(rate, param, grads).into_value())?;
                Ok(())
            })?;
        }
        self.inner.gather(&mut weights)?;
        weights.returned(model)
    }

    /// Refuses what are no gradients of the shards.
    fn check(&self, grads: &[Option<Array>]) -> Result<()> {
        let shards: Vec<_> = self.shards().collect();
        let fits = |(grad, shard): (&Option<Array>, &&Array)| {
            grad.as_ref().is_none_or(|grad| (grad.dtype(), grad.dims()) == (shard.dtype(), shard.dims()))
        };
        if grads.len() == shards.len() && grads.iter().zip(&shards).all(fits) {
            return Ok(());
        }
        let what = "the gradients are not those of the shards; pass what `backward` of this has returned";
        Err(phalanx::Error::config(what).into())
    }

    /// Returns the model with the weights of all ranks: after a step of [`AdamW`] or [`Sgd`], and after a checkpoint was loaded.
    ///
    /// # Cost
    /// One all_gather if any shard has changed since the last time, and a look whether. Weights of a device are copied to the host and back.
    ///
    /// # Errors
    /// Those of [`all_gather`](ProcessGroup::all_gather), and [`phalanx::Error::Misuse`] for another model.
    ///
    /// # Examples
    /// See [`adamw`](Self::adamw).
    #[track_caller]
    pub fn gather<M: Module>(&mut self, model: M) -> Result<M> {
        let mut weights = self.weights.lent(&model)?;
        self.inner.gather(&mut weights)?;
        weights.returned(model)
    }

    /// An AdamW of this rank's shards, which can be part of a [checkpoint](crate::checkpoint). Not collective.
    ///
    /// # Cost
    /// Twice the shards' memory, on the host, where it makes its steps.
    ///
    /// # Errors
    /// As of [`AdamW::new`].
    ///
    /// # Examples
    /// ```
    /// # use burn::{module::Param, tensor::{Device, Tensor}};
    /// use phalanx_burn::{AdamWParams, Sharded};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// # let value = Tensor::<1>::ones([4], &Device::default().autodiff());
    /// # let mut weight = Param::from_tensor(value.require_grad());
    /// let mut zero = Sharded::new(&mut weight, group, Default::default())?;
    /// let mut adamw = zero.adamw(AdamWParams { lr: 0.1, weight_decay: 0.0, ..Default::default() })?;
    /// let grads = zero.backward(&weight, weight.val().sum())?;
    /// adamw.step(&mut zero, &grads)?;
    /// weight = zero.gather(weight)?;
    /// assert!((weight.val().sum().into_scalar::<f32>() - 4.0 * 0.9).abs() < 1e-5);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn adamw(&self, params: AdamWParams) -> Result<AdamW<Array>> {
        self.inner.adamw(params)
    }

    /// As [`adamw`](Self::adamw), gradient descent.
    ///
    /// # Examples
    /// ```
    /// # use burn::{module::Param, tensor::{Device, Tensor}};
    /// use phalanx_burn::{SgdParams, Sharded};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// # let value = Tensor::<1>::ones([4], &Device::default().autodiff());
    /// # let mut weight = Param::from_tensor(value.require_grad());
    /// let mut zero = Sharded::new(&mut weight, group, Default::default())?;
    /// let mut sgd = zero.sgd(SgdParams { lr: 0.5, momentum: 0.9, ..Default::default() });
    /// let grads = zero.backward(&weight, weight.val().sum())?;
    /// sgd.step(&mut zero, &grads)?;
    /// weight = zero.gather(weight)?;
    /// assert_eq!(weight.val().sum().into_scalar::<f32>(), 2.0);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
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
    ///
    /// # Examples
    /// ```
    /// # use burn::{module::Param, tensor::{Device, Tensor}};
    /// # use phalanx_burn::Sharded;
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// # let device = Device::default().autodiff();
    /// # let mut weight = Param::from_tensor(Tensor::<1>::ones([2], &device).require_grad());
    /// let mut zero = Sharded::new(&mut weight, group, Default::default())?;
    /// let loss = (weight.val() * Tensor::from_data([3.0, 4.0], &device)).sum();
    /// let mut grads = zero.backward(&weight, loss)?; // 3 on rank 0, 4 on rank 1
    /// assert_eq!(zero.clip_grad_norm(&mut grads, 1.0)?, 5.0);
    /// let mine = grads[0].as_ref().unwrap().as_slice::<f32>().unwrap()[0];
    /// assert!((mine - [0.6, 0.8][group.rank()]).abs() < 1e-6);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn clip_grad_norm(&self, grads: &mut [Option<Array>], max_norm: f64) -> Result<f64> {
        self.inner.clip_grad_norm(grads, max_norm)
    }

    /// Makes the shards' gradients those of the loss that was multiplied by [`LossScaler::factor`]. False on all ranks if the part of one of them is infinite
    /// or not a number: skip the step. Collective.
    ///
    /// # Cost
    /// Two passes over this rank's gradients, and an all_reduce of one byte.
    ///
    /// # Errors
    /// Those of [`all_reduce`](ProcessGroup::all_reduce).
    ///
    /// # Examples
    /// ```
    /// # use burn::{module::Param, tensor::{Device, Tensor}};
    /// # use phalanx_burn::Sharded;
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// # let device = Device::default().autodiff();
    /// # let mut weight = Param::from_tensor(Tensor::<1>::ones([2], &device).require_grad());
    /// use phalanx_burn::LossScaler;
    ///
    /// let mut zero = Sharded::new(&mut weight, group, Default::default())?;
    /// let mut scaler = LossScaler::new(1024.0)?;
    /// let loss = (weight.val() * Tensor::from_data([3.0, f32::INFINITY], &device)).sum();
    /// let mut grads = zero.backward(&weight, loss)?; // infinite on rank 1
    /// assert!(!zero.unscale(&mut scaler, &mut grads)?); // on both: skip the step
    /// assert_eq!(scaler.factor(), 512.0);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn unscale(&self, scaler: &mut LossScaler, grads: &mut [Option<Array>]) -> Result<bool> {
        self.inner.unscale(scaler, grads)
    }

    /// Makes sure that all ranks hold the same weights, bit for bit: [`verify_parameters`].
    ///
    /// # Errors
    /// [`Error::ParameterMismatch`](crate::Error::ParameterMismatch) on every rank, and the others of [`verify_parameters`].
    #[track_caller]
    pub fn verify_parameters(&self, model: &impl Module) -> Result<()> {
        verify_parameters(model, &self.group)
    }
}

/// The shards are what [`AdamW`] and [`Sgd`] change.
impl Weights<Array> for Sharded {
    fn with<R>(&mut self, index: usize, work: impl FnOnce(&mut Array) -> Result<R>) -> Result<R> {
        self.inner.with(index, work)
    }
}
