//! Data-parallel training: every rank has the whole model and a part of each batch.

use crate::gradients::NameOrder;
use crate::model::sync_buffers;
use crate::names::parameters;
use crate::{DdpConfig, Overlap, Result, Share, sync_model, verify_parameters};
use burn_core::module::Module;
use burn_core::tensor::Tensor;
use burn_optim::GradientsParams;
use phalanx::ProcessGroup;
use phalanx::error::OpKind;
use phalanx_train::compress::{CommHook, Traffic};
use phalanx_train::{Array, Gradients, LossScaler, Reducer};

/// Keeps the copies of a model on all ranks equal: same weights at the start, same gradients at each step.
///
/// Give the resulting gradients to any of burn's optimizers, and the weights stay bit-equal.
///
/// Construction and every `backward` are collective: each rank calls them in the same order. Parameters that took no part in a rank's loss count as
/// zeros there; those that no rank used have no gradient afterwards, so optimizers leave them alone. The first step names these in a warning, as
/// [`DdpConfig::missing_gradients`] says; those that are frozen when this is made are not meant.
///
/// Parameters are known by their paths in the module, as `layers.0.weight`. The module itself stays with the program, which passes it to each step,
/// for burn's optimizers take it and give a new one. A parameter that stands at two places of a module has its gradient at the first of them, as burn
/// itself has it.
///
/// Gradients are sent after the backward pass, in buckets. Burn runs its operations backwards by their depth in the graph and tells nobody when a
/// gradient is complete, so there is no overlap.
pub struct DistributedDataParallel {
    group: ProcessGroup,
    config: DdpConfig,
    order: NameOrder,
    reducer: Reducer<Array>,
}

impl std::fmt::Debug for DistributedDataParallel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DistributedDataParallel")
            .field("config", &self.config)
            .field("reducer", &self.reducer)
            .finish_non_exhaustive()
    }
}

impl DistributedDataParallel {
    /// Makes the parameters of `model` equal to those of rank 0 and prepares to average their gradients.
    ///
    /// # Cost
    /// One broadcast of the model, and memory for the largest bucket.
    ///
    /// # Errors
    /// As of [`sync_model`]; [`phalanx::Error::Misuse`] for [`Overlap::On`], which burn's backward pass can't do.
    ///
    /// # Examples
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::tensor::Device;
    /// use phalanx_burn::DistributedDataParallel;
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// let mut model: Linear = LinearConfig::new(2, 1).init(&Device::default().autodiff()); // different on each rank
    /// let ddp = DistributedDataParallel::new(&mut model, group, Default::default())?; // now equal
    /// ddp.verify_parameters(&model)
    /// # }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn new<M: Module>(model: &mut M, group: &ProcessGroup, config: DdpConfig) -> Result<Self> {
        if config.overlap == Overlap::On {
            let what = "burn tells nobody when a gradient is complete, so gradients can't be sent during the backward pass";
            return Err(phalanx::Error::misuse(OpKind::AllReduce, what).into());
        }
        sync_model(model, group, 0)?;
        let (parameters, order) = NameOrder::of(&parameters(model, OpKind::AllReduce)?);
        let mut reducer = Reducer::new(parameters, group, config.bucket_cap_bytes, false)?;
        reducer.set_missing_gradients(config.missing_gradients);
        Ok(Self { group: group.clone(), config, order, reducer })
    }

    /// Has `hook` add up the gradients of 32 bits instead of an all_reduce: in fewer bytes, for networks that are slower than the processors. All
    /// ranks pass the same kind.
    ///
    /// # Examples
    /// ```
    /// # use burn::{nn::LinearConfig, tensor::{Device, Tensor}};
    /// use phalanx_burn::{DistributedDataParallel, compress::Cast};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// # let device = Device::default().autodiff();
    /// # let mut model = LinearConfig::new(2, 1).init(&device);
    /// # let x = Tensor::<2>::ones([4, 2], &device);
    /// let mut ddp = DistributedDataParallel::new(&mut model, group, Default::default())?.with_hook(Cast::bf16());
    /// ddp.backward(&model, model.forward(x).mean())?;
    /// assert_eq!(ddp.traffic().expect("there is a hook").ratio(), 2.0);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[doc(alias = "register_comm_hook")]
    #[must_use]
    pub fn with_hook(mut self, hook: impl CommHook + 'static) -> Self {
        self.reducer.set_hook(Box::new(hook));
        self
    }

    /// The bytes that the hook has sent until now, if there is one. See [`with_hook`](Self::with_hook).
    pub fn traffic(&self) -> Option<Traffic> {
        self.reducer.traffic()
    }

    /// Gradients of the mean of all ranks' losses: what one process would have found for the global batch, if each rank's loss is a mean over equally
    /// many samples.
    ///
    /// # Cost
    /// One all_reduce a bucket and one of 4 bytes a parameter, and some more: who has which gradients, and what share. Gradients of a device are copied to the
    /// host and back.
    ///
    /// # Determinism
    /// Same bits on every rank. From run to run on ranks of one host that share memory, and elsewhere where the algorithms are the same: see
    /// [reproducibility](ProcessGroup#reproducibility).
    ///
    /// # Errors
    /// Those of [`all_reduce`](ProcessGroup::all_reduce). [`Error::NoGradient`](crate::Error::NoGradient) if [`DdpConfig::missing_gradients`] asks for it.
    /// [`phalanx::Error::Misuse`] for another model.
    ///
    /// # Examples
    /// ```
    /// use burn::module::Param;
    /// use burn::tensor::{Device, Tensor};
    /// # use phalanx_burn::DistributedDataParallel;
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// let mut weight = Param::from_tensor(Tensor::<1>::ones([1], &Device::default().autodiff()).require_grad());
    /// let mut ddp = DistributedDataParallel::new(&mut weight, group, Default::default())?;
    /// let loss = weight.val() * group.rank() as f32; // its gradient is 0 on rank 0, and 1 on rank 1
    /// let grads = ddp.backward(&weight, loss)?;
    /// assert_eq!(grads.get::<1>(weight.id).unwrap().into_scalar::<f32>(), 0.5);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn backward<const D: usize>(
        &mut self,
        model: &impl Module,
        loss: Tensor<D>,
    ) -> Result<GradientsParams> {
        self.backward_share(model, loss, Share::EQUAL)
    }

    /// As [`backward`](Self::backward) for local batches of different sizes: `loss` is a mean over `share`'s samples.
    ///
    /// A rank without any samples has no loss; it passes `GradientsParams::new()` to [`sync_gradients`](Self::sync_gradients) instead.
    ///
    /// # Errors
    /// As of [`backward`](Self::backward); [`Error::ShareMismatch`](crate::Error::ShareMismatch) on all ranks for shares that do not add up to the
    /// whole, and [`phalanx::Error::Misuse`] for one of more than it.
    ///
    /// # Examples
    /// ```
    /// # use burn::module::Param;
    /// # use burn::tensor::{Device, Tensor};
    /// # use phalanx_burn::DistributedDataParallel;
    /// use phalanx_burn::Share;
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// # let mut weight = Param::from_tensor(Tensor::<1>::ones([1], &Device::default().autodiff()).require_grad());
    /// let mut ddp = DistributedDataParallel::new(&mut weight, group, Default::default())?;
    /// let loss = weight.val() * group.rank() as f32;
    /// let samples = [3, 1][group.rank()];
    /// let grads = ddp.backward_share(&weight, loss, Share::new(samples, 4))?;
    /// assert_eq!(grads.get::<1>(weight.id).unwrap().into_scalar::<f32>(), 0.25);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn backward_share<const D: usize>(
        &mut self,
        model: &impl Module,
        loss: Tensor<D>,
        share: Share,
    ) -> Result<GradientsParams> {
        self.sync_gradients(model, GradientsParams::from_grads(loss.backward(), model), share)
    }

    /// Keeps the gradients of `loss` for the next [`backward`](Self::backward) or [`sync_gradients`](Self::sync_gradients), which adds its own to
    /// them and sends the sum: accumulation over several batches with communication in the last alone. Nothing is sent here. Divide the losses by the
    /// number of batches if the mean over them is wanted.
    ///
    /// The share of the step that sends the sum weighs all of it. With a step that fails what was accumulated for it is gone. Burn's own
    /// `GradientsAccumulator` may be used as well: give its sum to [`sync_gradients`](Self::sync_gradients).
    ///
    /// # Errors
    /// Those of adding up, after which nothing is kept any more.
    ///
    /// # Examples
    /// ```
    /// # use burn::module::Param;
    /// # use burn::tensor::{Device, Tensor};
    /// # use phalanx_burn::DistributedDataParallel;
    /// # let group = &phalanx::threads(1)[0];
    /// # let mut weight = Param::from_tensor(Tensor::<1>::ones([1], &Device::default().autodiff()).require_grad());
    /// let mut ddp = DistributedDataParallel::new(&mut weight, group, Default::default())?;
    /// ddp.accumulate(&weight, weight.val() * 2.0)?;
    /// ddp.accumulate(&weight, weight.val() * 3.0)?;
    /// let grads = ddp.backward(&weight, weight.val() * 5.0)?;
    /// assert_eq!(grads.get::<1>(weight.id).unwrap().into_scalar::<f32>(), 10.0);
    /// # Ok::<(), phalanx_burn::Error>(())
    /// ```
    #[doc(alias = "no_sync")]
    pub fn accumulate<const D: usize>(&mut self, model: &impl Module, loss: Tensor<D>) -> Result<()> {
        let mut grads = GradientsParams::from_grads(loss.backward(), model);
        for (place, grad) in self.take(model, &mut grads)?.into_iter().enumerate() {
            grad.map_or(Ok(()), |grad| self.reducer.keep(place, grad))?;
        }
        Ok(())
    }

    /// The gradients of the global batch for this rank's: for a program that has them already, as burn's own accumulation gives them.
    ///
    /// # Errors
    /// As of [`backward_share`](Self::backward_share).
    ///
    /// # Examples
    /// ```
    /// # use burn::module::Param;
    /// # use burn::tensor::{Device, Tensor};
    /// # use phalanx_burn::{DistributedDataParallel, Share};
    /// use burn::optim::GradientsParams;
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// # let mut weight = Param::from_tensor(Tensor::<1>::ones([1], &Device::default().autodiff()).require_grad());
    /// let mut ddp = DistributedDataParallel::new(&mut weight, group, Default::default())?;
    /// let mine = match group.rank() {
    ///     0 => GradientsParams::from_grads(weight.val().backward(), &weight),
    ///     _ => GradientsParams::new(), // no samples
    /// };
    /// let grads = ddp.sync_gradients(&weight, mine, Share::new([4, 0][group.rank()], 4))?;
    /// assert_eq!(grads.get::<1>(weight.id).unwrap().into_scalar::<f32>(), 1.0);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn sync_gradients(
        &mut self,
        model: &impl Module,
        mut grads: GradientsParams,
        share: Share,
    ) -> Result<GradientsParams> {
        let mine = self.take(model, &mut grads)?;
        let reduced = self.reducer.reduce(mine, share)?;
        self.given(model, reduced)
    }

    /// For a rank that has no more batches while others have: takes part in one of their steps without gradients of its own. Call it until it returns
    /// `None`, when no rank has batches any more.
    ///
    /// The gradients are those that the others have, of the mean over those that still have batches; an optimizer that is given them keeps its state
    /// and the weights equal to theirs.
    ///
    /// # Errors
    /// Those of [`all_reduce`](ProcessGroup::all_reduce): a timeout if the others don't call `backward`, or `join` in their turn.
    ///
    /// # Examples
    /// ```
    /// # use burn::module::Param;
    /// # use burn::tensor::{Device, Tensor};
    /// # use phalanx_burn::DistributedDataParallel;
    /// use burn::optim::{ModuleOptimizer, SgdConfig};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// # let mut weight = Param::from_tensor(Tensor::<1>::zeros([1], &Device::default().autodiff()).require_grad());
    /// let mut ddp = DistributedDataParallel::new(&mut weight, group, Default::default())?;
    /// let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
    /// for _ in 0..[3, 5][group.rank()] {
    ///     let grads = ddp.backward(&weight, weight.val())?;
    ///     weight = optimizer.step(1.0, weight, grads);
    /// }
    /// while let Some(grads) = ddp.join(&weight)? {
    ///     weight = optimizer.step(1.0, weight, grads);
    /// }
    /// assert_eq!(weight.val().into_scalar::<f32>(), -5.0); // on both
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn join(&mut self, model: &impl Module) -> Result<Option<GradientsParams>> {
        match self.reducer.join()? {
            Some(reduced) => self.given(model, reduced).map(Some),
            None => Ok(None),
        }
    }

    /// Takes gradients in the order of names. Where that fails nothing is left of what was accumulated for the step.
    fn take(&mut self, model: &impl Module, grads: &mut GradientsParams) -> Result<Gradients<Array>> {
        let taken = self.order.take(model, grads);
        if taken.is_err() {
            self.reducer.forget();
        }
        taken
    }

    /// Ends a step: what burn's optimizers take.
    #[track_caller]
    fn given(&self, model: &impl Module, reduced: Gradients<Array>) -> Result<GradientsParams> {
        let mut grads = GradientsParams::new();
        self.order.put(model, reduced, &mut grads)?;
        if self.config.broadcast_buffers {
            self.sync_buffers(model, 0)?;
        }
        Ok(grads)
    }

    /// Scales gradients of `model` so that the norm of all of them together is `max_norm` at most, and returns what it was.
    ///
    /// Not collective: give it reduced gradients, as [`backward`](Self::backward) returns them, and it does the same on all ranks, to the last bit. A
    /// norm that is infinite or not a number is returned, and nothing is scaled. The norm is `max_norm` at most after rounding, too: see
    /// [`phalanx_train::clip_grad_norm`].
    ///
    /// Burn's own `with_grad_clipping` clips the gradient of each parameter by itself. It is given reduced gradients as well.
    ///
    /// # Errors
    /// [`phalanx::Error::Config`] for a `max_norm` that is negative or not a number: nothing is scaled then. [`phalanx::Error::Misuse`] for another model.
    ///
    /// # Examples
    /// ```
    /// # use burn::module::Param;
    /// # use burn::tensor::{Device, Tensor};
    /// # use phalanx_burn::DistributedDataParallel;
    /// # let group = &phalanx::threads(1)[0];
    /// # let device = Device::default().autodiff();
    /// # let mut weight = Param::from_tensor(Tensor::<1>::ones([2], &device).require_grad());
    /// # let mut ddp = DistributedDataParallel::new(&mut weight, group, Default::default())?;
    /// # let loss = (weight.val() * Tensor::from_data([3.0, 4.0], &device)).sum();
    /// let mut grads = ddp.backward(&weight, loss)?; // 3 and 4
    /// assert_eq!(ddp.clip_grad_norm(&weight, &mut grads, 1.0)?, 5.0);
    /// let clipped: Vec<f32> = grads.get::<1>(weight.id).unwrap().into_data().try_to_vec().unwrap();
    /// assert!((clipped[0] - 0.6).abs() < 1e-6 && (clipped[1] - 0.8).abs() < 1e-6);
    /// # Ok::<(), phalanx_burn::Error>(())
    /// ```
    pub fn clip_grad_norm(
        &self,
        model: &impl Module,
        grads: &mut GradientsParams,
        max_norm: f64,
    ) -> Result<f64> {
        let mut all = self.order.take(model, grads)?;
        let norm = phalanx_train::clip_grad_norm(&mut all, max_norm);
        self.order.put(model, all, grads)?;
        norm
    }

    /// Makes gradients of `model` those of the loss that was multiplied by [`LossScaler::factor`]. False if one of them is infinite or not a number: skip the
    /// step.
    ///
    /// Not collective: give it reduced gradients, as [`backward`](Self::backward) returns them. An overflow on one rank is in the gradients of all, so all ranks
    /// skip the same steps. After an overflow the gradients are as they were.
    ///
    /// # Errors
    /// [`phalanx::Error::Misuse`] for another model.
    ///
    /// # Examples
    /// ```
    /// # use burn::module::Param;
    /// # use burn::tensor::{Device, Tensor};
    /// # use phalanx_burn::DistributedDataParallel;
    /// # let group = &phalanx::threads(1)[0];
    /// # let device = Device::default().autodiff();
    /// # let mut weight = Param::from_tensor(Tensor::<1>::ones([1], &device).require_grad());
    /// # let mut ddp = DistributedDataParallel::new(&mut weight, group, Default::default())?;
    /// use phalanx_burn::LossScaler;
    ///
    /// let mut scaler = LossScaler::new(1024.0)?;
    /// let loss = weight.val() * 3.0;
    /// let mut grads = ddp.backward(&weight, loss * scaler.factor())?;
    /// assert!(ddp.unscale(&mut scaler, &weight, &mut grads)?);
    /// assert_eq!(grads.get::<1>(weight.id).unwrap().into_scalar::<f32>(), 3.0);
    ///
    /// let mut grads = ddp.backward(&weight, weight.val() * f32::INFINITY)?;
    /// assert!(!ddp.unscale(&mut scaler, &weight, &mut grads)?); // skip the step
    /// assert_eq!(scaler.factor(), 512.0);
    /// # Ok::<(), phalanx_burn::Error>(())
    /// ```
    pub fn unscale(
        &self,
        scaler: &mut LossScaler,
        model: &impl Module,
        grads: &mut GradientsParams,
    ) -> Result<bool> {
        let mut all = self.order.take(model, grads)?;
        let finite = scaler.unscale(&mut all);
        self.order.put(model, all, grads)?;
        finite
    }

    /// Makes the buffers what they are on rank `root`: running statistics, as batch normalisation has. Collective. Before an evaluation is a good
    /// moment; [`DdpConfig::broadcast_buffers`] does it after each step.
    ///
    /// # Cost
    /// One broadcast of all float parameters that need no gradients: weights that are frozen are among them, since burn tells the two not apart.
    ///
    /// # Errors
    /// Those of [`broadcast`](ProcessGroup::broadcast).
    ///
    /// # Examples
    /// ```
    /// use burn::nn::{BatchNorm, BatchNormConfig};
    /// use burn::tensor::{Device, Tensor};
    /// # use phalanx_burn::DistributedDataParallel;
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// let device = Device::default().autodiff();
    /// let mut norm: BatchNorm = BatchNormConfig::new(1).init(&device);
    /// let ddp = DistributedDataParallel::new(&mut norm, group, Default::default())?;
    /// norm.forward(Tensor::<2>::full([4, 1], 1.0 + group.rank() as f32, &device));
    /// ddp.sync_buffers(&norm, 0)?;
    /// assert_eq!(norm.running_mean.value_sync().into_scalar::<f32>(), 0.1); // a tenth of rank 0's batch
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn sync_buffers(&self, model: &impl Module, root: usize) -> Result<()> {
        sync_buffers(model, &self.group, root)
    }

    /// Makes sure that all ranks hold the same weights, bit for bit: [`verify_parameters`]. Once an epoch is cheap, and tells on which rank a run went
    /// astray before the accuracy does.
    ///
    /// # Errors
    /// [`Error::ParameterMismatch`](crate::Error::ParameterMismatch) on every rank, and the others of [`verify_parameters`].
    #[track_caller]
    pub fn verify_parameters(&self, model: &impl Module) -> Result<()> {
        verify_parameters(model, &self.group)
    }
}
