//! Training that communicates seldom: ranks train for themselves, and average what they have become.

mod state;

use crate::model::sync_buffers;
use crate::names::{Named, Role, parameters};
use crate::trained::Trained;
use crate::{DiLoCoConfig, Result, sync_model};
use burn_core::module::Module;
use burn_optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn_optim::{GradientsParams, ModuleOptimizer};
use phalanx::error::OpKind;
use phalanx::{CallSite, ProcessGroup};
use phalanx_train::compress::{CommHook, Traffic};
use phalanx_train::{Array, Tensor as _};

/// An optimizer that trains each rank for itself and brings the ranks together every so many steps: Local SGD (Stich 2018), DiLoCo
/// (Douillard et al. 2023) and streaming DiLoCo (Douillard et al. 2025), by one mechanism.
///
/// It takes the place of the optimizer of burn's that it is given. The gradients are the rank's own: those of the loss's `backward`, with no
/// [`DistributedDataParallel`](crate::DistributedDataParallel) around the model, or one over the ranks of one site, where `group` goes across the sites.
///
/// All ranks hold the same *outer weights*. Every [`sync_every`](DiLoCoConfig::sync_every) steps the mean over the ranks of what each is
/// away from them is the gradient of an *outer step* with Nesterov momentum, and the ranks go on from there. With a learning rate of 1 and
/// no momentum that is the mean of the weights. The model may be averaged in [`fragments`](DiLoCoConfig::fragments), each at its
/// own time, while the training goes on for [`delay`](DiLoCoConfig::delay) steps.
///
/// Averaged are the weights that need gradients when this is made. Running statistics are each rank's own until [`finish`](Self::finish).
///
/// Construction, `step` and `finish` are collective: all ranks make equally many steps. A rank that has fewer batches makes the rest with an empty
/// `GradientsParams`. In between they need not keep pace, but for the group's time limit: see [`with_timeout`](ProcessGroup::with_timeout). In the first step all
/// meet once, to find weights [without a gradient](DiLoCoConfig::missing_gradients).
///
/// # Cost
/// Twice the weights' memory, and once that of the largest fragment, on the host. Of n bytes of weights, on P ranks, 2n(P − 1)/P are sent in `sync_every`
/// steps, where data-parallel training sends as much in each. In a step in which a fragment is sent or arrives its weights are copied to the host and back.
///
/// # Determinism
/// The outer weights have the same bits on all ranks. From run to run on ranks of one host that share memory, and elsewhere where the algorithms are the
/// same: see [reproducibility](ProcessGroup#reproducibility).
///
/// # Examples
/// ```
/// use burn::nn::LinearConfig;
/// use burn::optim::{AdamConfig, GradientsParams};
/// use burn::tensor::{Device, Tensor};
/// use phalanx::ProcessGroup;
/// use phalanx_burn::{DiLoCo, DiLoCoConfig, verify_parameters};
///
/// fn train(group: &ProcessGroup) -> phalanx_burn::Result<()> {
///     let device = Device::default().autodiff();
///     let mut model = LinearConfig::new(2, 1).init(&device); // different on each rank
///     let adam = AdamConfig::new().init();
///     let mut diloco = DiLoCo::new(adam, &mut model, group, DiLoCoConfig::diloco(20))?; // now equal
///     let x = Tensor::<2>::full([4, 2], 1.0 + group.rank() as f32, &device);
///     for _ in 0..50 {
///         let loss = model.forward(x.clone()).square().mean();
///         let grads = GradientsParams::from_grads(loss.backward(), &model); // this rank's
///         model = diloco.step(0.01, model, grads)?; // every 20th brings the ranks together
///     }
///     model = diloco.finish(model)?;
///     verify_parameters(&model, group)?;
///     assert!(diloco.traffic().ratio() > 16.0); // 3 averages in 50 steps
///     Ok(())
/// }
/// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || train(&group).unwrap()); });
/// ```
pub struct DiLoCo {
    optimizer: ModuleOptimizer,
    outer: phalanx_train::DiLoCo,
    weights: Trained,
}

impl std::fmt::Debug for DiLoCo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiLoCo").field("outer", &self.outer).finish_non_exhaustive()
    }
}

impl DiLoCo {
    /// Makes the parameters of `model` equal to those of rank 0, which are the first outer weights. `optimizer` is the one with which each rank trains
    /// for itself.
    ///
    /// To begin with data-parallel training and change over later (Lin et al. 2018), make this one then.
    ///
    /// # Errors
    /// As of [`sync_model`]; [`Error::ModelMismatch`](crate::Error::ModelMismatch) also where a weight is frozen on some ranks only.
    /// [`phalanx::Error::Misuse`] for a configuration that makes no sense, with fewer layers than fragments, or that is not the same on all ranks; and for a
    /// model without weights that need gradients.
    ///
    /// # Examples
    /// ```
    /// use burn::module::Param;
    /// use burn::optim::SgdConfig;
    /// use burn::tensor::{Device, Tensor};
    /// use phalanx_burn::{DiLoCo, DiLoCoConfig};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// let value = Tensor::<1>::full([2], group.rank() as f32, &Device::default().autodiff());
    /// let mut weight = Param::from_tensor(value.require_grad()); // different on each rank
    /// let diloco = DiLoCo::new(SgdConfig::new().init(), &mut weight, group, DiLoCoConfig::diloco(20))?;
    /// assert_eq!(weight.val().sum().into_scalar::<f32>(), 0.0); // rank 0's
    /// # drop(diloco);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn new<M: Module>(
        optimizer: ModuleOptimizer,
        model: &mut M,
        group: &ProcessGroup,
        config: DiLoCoConfig,
    ) -> Result<Self> {
        config.check(group)?;
        sync_model(model, group, 0)?;
        let found = parameters(model, OpKind::AllReduce)?;
        let weights = Trained::of(&found, OpKind::AllReduce, group)?;
        let trained = found.iter().filter(|found| found.role == Role::Weight);
        let named = trained.map(|Named { name, values, .. }| (name.as_str(), values));
        let outer = phalanx_train::DiLoCo::around(named, group, config)?;
        Ok(Self { optimizer, outer, weights })
    }

    /// Has `hook` average what 32-bit weights are away from the outer ones, in fewer bytes. All ranks pass the same kind. A model
    /// with weights of 64 bits goes without.
    ///
    /// # Examples
    /// ```
    /// # use burn::{module::Param, optim::{GradientsParams, SgdConfig}, tensor::{Device, Tensor}};
    /// use phalanx_burn::compress::Cast;
    /// use phalanx_burn::{DiLoCo, DiLoCoConfig};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// # let value = Tensor::<1>::ones([1000], &Device::default().autodiff());
    /// # let mut weight = Param::from_tensor(value.require_grad());
    /// # let sgd = SgdConfig::new().init();
    /// let config = DiLoCoConfig::streaming(10, 1, 5);
    /// let mut diloco = DiLoCo::new(sgd, &mut weight, group, config)?.with_hook(Cast::bf16());
    /// # for _ in 0..20 {
    /// #     let grads = GradientsParams::from_grads(weight.val().square().sum().backward(), &weight);
    /// #     weight = diloco.step(0.1, weight, grads)?;
    /// # }
    /// # diloco.finish(weight)?;
    /// # assert_eq!(diloco.traffic().ratio(), 20.0);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[must_use]
    pub fn with_hook(self, hook: impl CommHook + 'static) -> Self {
        Self { outer: self.outer.with_hook(hook), ..self }
    }

    /// Makes one step of the rank's own optimizer, and returns the model. Then, if it is their turn, the mean that was under way arrives, and the next fragment
    /// is sent.
    ///
    /// # Errors
    /// Those of [`all_reduce`](ProcessGroup::all_reduce), of one that was under way too. In the first step
    /// [`Error::NoGradient`](crate::Error::NoGradient), if [`DiLoCoConfig::missing_gradients`] asks for it. [`phalanx::Error::Misuse`] for another model.
    /// With an error the model is not returned: a program that goes on after one keeps a clone, whose parameters share their memory with it.
    ///
    /// # Examples
    /// ```
    /// # use burn::{module::Param, optim::{GradientsParams, SgdConfig}, tensor::{Device, Tensor}};
    /// # use phalanx_burn::{DiLoCo, DiLoCoConfig};
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// # let value = Tensor::<1>::ones([1], &Device::default().autodiff());
    /// # let mut weight = Param::from_tensor(value.require_grad());
    /// let sgd = SgdConfig::new().init();
    /// let mut diloco = DiLoCo::new(sgd, &mut weight, group, DiLoCoConfig::local_sgd(2))?;
    /// for _ in 0..2 {
    ///     let loss = weight.val() * group.rank() as f32;
    ///     let grads = GradientsParams::from_grads(loss.backward(), &weight);
    ///     weight = diloco.step(1.0, weight, grads)?; // rank 0 stays at 1, and rank 1 goes to 0 and −1
    /// }
    /// assert_eq!(weight.val().into_scalar::<f32>(), 0.0); // the mean, on both
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn step<M: Module>(
        &mut self,
        rate: impl Into<ModuleLearningRate>,
        model: M,
        grads: GradientsParams,
    ) -> Result<M> {
        let before = self.weights.lent(&model)?;
        let has_gradient = |index: usize| before.has_gradient(index, &grads);
        self.outer.look_for_gradients(!grads.is_empty(), has_gradient, Array::NO_GRADIENT_HINT)?;
        drop(before); // who holds weights besides the model has the optimizer copy them
        let model = self.optimizer.step(rate, model, grads);
        let mut weights = self.weights.lent(&model)?;
        self.outer.step(&mut weights)?;
        weights.returned(model)
    }

    /// Waits for what is under way, averages what was trained since, and leaves all ranks with the outer weights: before an evaluation, or at the
    /// end. Running statistics become those of rank 0; until then each rank has its own.
    ///
    /// The training may go on afterwards.
    ///
    /// # Errors
    /// As of [`step`](Self::step), and those of [`broadcast`](ProcessGroup::broadcast).
    ///
    /// # Examples
    /// ```
    /// # use burn::{module::Param, optim::{GradientsParams, SgdConfig}, tensor::{Device, Tensor}};
    /// # use phalanx_burn::{DiLoCo, DiLoCoConfig};
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// # let value = Tensor::<1>::ones([1], &Device::default().autodiff());
    /// # let mut weight = Param::from_tensor(value.require_grad());
    /// # let sgd = SgdConfig::new().init();
    /// let mut diloco = DiLoCo::new(sgd, &mut weight, group, DiLoCoConfig::local_sgd(100))?;
    /// let loss = weight.val() * group.rank() as f32;
    /// let grads = GradientsParams::from_grads(loss.backward(), &weight);
    /// weight = diloco.step(1.0, weight, grads)?;
    /// assert_eq!(weight.val().into_scalar::<f32>(), 1.0 - group.rank() as f32); // each its own
    /// weight = diloco.finish(weight)?;
    /// assert_eq!(weight.val().into_scalar::<f32>(), 0.5);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn finish<M: Module>(&mut self, model: M) -> Result<M> {
        let mut weights = self.weights.lent(&model)?;
        self.outer.finish(&mut weights)?;
        let model = weights.returned(model)?;
        sync_buffers(&model, &self.outer.group().with_call_site(CallSite::caller()), 0)?;
        Ok(model)
    }

    /// The bytes that this rank has sent for the means that have arrived, beside those of an all_reduce of all gradients in each step.
    ///
    /// # Examples
    /// ```
    /// # use burn::{module::Param, optim::{GradientsParams, SgdConfig}, tensor::{Device, Tensor}};
    /// # use phalanx_burn::{DiLoCo, DiLoCoConfig};
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_burn::Result<()> {
    /// # let value = Tensor::<1>::ones([1], &Device::default().autodiff());
    /// # let mut weight = Param::from_tensor(value.require_grad());
    /// # let sgd = SgdConfig::new().init();
    /// let mut diloco = DiLoCo::new(sgd, &mut weight, group, DiLoCoConfig::local_sgd(10))?;
    /// for _ in 0..20 {
    ///     let grads = GradientsParams::from_grads(weight.val().backward(), &weight);
    ///     weight = diloco.step(0.1, weight, grads)?;
    /// }
    /// assert_eq!(diloco.traffic().ratio(), 10.0);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn traffic(&self) -> Traffic {
        self.outer.traffic()
    }
}
