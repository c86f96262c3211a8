//! Training that communicates seldom: ranks train for themselves, and average what they have become.

mod state;

pub use phalanx_train::DiLoCoConfig;

use crate::error::NO_GRADIENT_HINT;
use crate::model;
use crate::sendable::Candle;
use crate::{AdamW, Group, Result, sync_model};
use candle_core::Var;
use candle_core::backprop::GradStore;
use candle_nn::VarMap;
use phalanx::CallSite;
use phalanx_compress::{CommHook, Traffic};
use std::fmt;

/// The optimizer with which each rank trains by itself: any of candle's, ours, or one of your own.
pub trait InnerOptimizer {
    /// Changes the variables by this rank's gradients.
    ///
    /// # Errors
    /// Its own.
    fn inner_step(&mut self, grads: &GradStore) -> Result<()>;
}

impl<O: candle_nn::Optimizer> InnerOptimizer for O {
    fn inner_step(&mut self, grads: &GradStore) -> Result<()> {
        Ok(self.step(grads)?)
    }
}

impl InnerOptimizer for AdamW {
    fn inner_step(&mut self, grads: &GradStore) -> Result<()> {
        self.step(grads)
    }
}

/// An optimizer that trains each rank for itself and brings the ranks together every so many steps: Local SGD (Stich 2018), DiLoCo
/// (Douillard et al. 2023) and streaming DiLoCo (Douillard et al. 2025), by one mechanism.
///
/// It takes the place of the optimizer that it is given. The gradients are the rank's own: the loss's `backward`, with no
/// [`DistributedDataParallel`](crate::DistributedDataParallel) around the model, or one over the ranks of one site, where `group` goes
/// across the sites.
///
/// All ranks hold the same *outer weights*. Every [`sync_every`](DiLoCoConfig::sync_every) steps the mean over the ranks of what each is
/// away from them is the gradient of an *outer step* with Nesterov momentum, and the ranks go on from there. With a learning rate of 1 and
/// no momentum that is the mean of the weights. The model may be averaged in [`fragments`](DiLoCoConfig::fragments), each at its
/// own time, while the training goes on for [`delay`](DiLoCoConfig::delay) steps.
///
/// Construction, `step` and [`finish`](Self::finish) are collective: all ranks make equally many steps. One that has fewer batches makes the rest
/// with an empty `GradStore`. In between they need not keep pace, but for the group's time limit: see
/// [`with_timeout`](phalanx::ProcessGroup::with_timeout). In the first step all meet once, to find weights
/// [without a gradient](DiLoCoConfig::missing_gradients).
///
/// What is dropped with an average under way leaves it to end by itself.
///
/// # Cost
/// Twice the weights' memory, and once that of the largest fragment, on the host. Of n bytes of weights, on P ranks, 2n(P − 1)/P are sent in
/// `sync_every` steps, where data-parallel training sends as much in each.
///
/// # Determinism
/// The outer weights have the same bits on all ranks. From run to run on ranks of one host that share memory, and elsewhere where the algorithms are the
/// same: see [reproducibility](phalanx::ProcessGroup#reproducibility).
///
/// # Examples
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{Module, VarBuilder, VarMap};
/// use phalanx::ProcessGroup;
/// use phalanx_candle::{AdamW, DiLoCo, DiLoCoConfig, verify_parameters};
///
/// fn train(group: &ProcessGroup) -> phalanx_candle::Result<()> {
///     let varmap = VarMap::new();
///     let model = candle_nn::linear(2, 1, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
///     let adamw = AdamW::new(&varmap, Default::default())?;
///     let mut optimizer = DiLoCo::new(adamw, &varmap, group, DiLoCoConfig::diloco(20))?;
///     let x = Tensor::full(1.0 + group.rank() as f32, (4, 2), &Device::Cpu)?;
///     for _ in 0..50 {
///         let loss = model.forward(&x)?.sqr()?.mean_all()?;
///         optimizer.step(&loss.backward()?)?; // every 20th brings the ranks together
///     }
///     optimizer.finish()?;
///     verify_parameters(&varmap, group)?;
///     assert!(optimizer.traffic().ratio() > 16.0); // 3 averages in 50 steps
///     Ok(())
/// }
/// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || train(&group).unwrap()); });
/// ```
pub struct DiLoCo<O> {
    inner: O,
    outer: phalanx_train::DiLoCo,
    varmap: VarMap,
    /// The variables that are weights, and the same as the outer part knows them.
    vars: Vec<Var>,
    weights: Vec<Candle>,
}

impl<O: fmt::Debug> fmt::Debug for DiLoCo<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiLoCo")
            .field("inner", &self.inner)
            .field("outer", &self.outer)
            .finish_non_exhaustive()
    }
}

impl<O: InnerOptimizer> DiLoCo<O> {
    /// Makes the variables of `varmap` equal to those of rank 0, which are the first outer weights. `inner` optimises the same variables.
    ///
    /// To begin with data-parallel training and change over later (Lin et al. 2018), make this one then.
    ///
    /// # Errors
    /// As of [`sync_model`]. [`phalanx::Error::Misuse`] for a configuration that makes no sense, with fewer layers than fragments, or that is
    /// not the same on all ranks.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// # use candle_nn::{Optimizer, SGD};
    /// use phalanx_candle::{DiLoCo, DiLoCoConfig};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// # let varmap = VarMap::new();
    /// let ranks = candle_nn::Init::Const(group.rank() as f64);
    /// let x = varmap.get(1, "x", ranks, DType::F32, &Device::Cpu)?; // different on each rank
    /// let sgd = SGD::new(varmap.all_vars(), 0.1)?;
    /// let optimizer = DiLoCo::new(sgd, &varmap, group, DiLoCoConfig::diloco(20))?;
    /// assert_eq!(x.to_vec1::<f32>()?, [0.0]); // rank 0's
    /// # drop(optimizer);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn new(inner: O, varmap: &VarMap, group: &impl Group, config: DiLoCoConfig) -> Result<Self> {
        config.check(group.host())?;
        sync_model(varmap, group, 0)?;
        let group = group.host();
        // What the forward pass changes is no weight: a momentum would carry a variance below zero.
        let parameters = model::weights(varmap);
        let weights = Candle::all_local(parameters.iter().map(|p| &p.var))?;
        let named = parameters.iter().map(|p| p.name.as_str()).zip(&weights);
        let outer = phalanx_train::DiLoCo::around(named, group, config)?;
        let vars = parameters.into_iter().map(|p| p.var).collect();
        Ok(Self { inner, outer, varmap: varmap.clone(), vars, weights })
    }

    /// Has `hook` average what 32-bit weights are away from the outer ones, in fewer bytes. All ranks pass the same kind. A model
    /// with weights of 64 bits goes without.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::{Optimizer, SGD, VarMap};
    /// use phalanx_candle::compress::Cast;
    /// use phalanx_candle::{DiLoCo, DiLoCoConfig};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1000, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// # let sgd = SGD::new(varmap.all_vars(), 0.1)?;
    /// let config = DiLoCoConfig::streaming(10, 1, 5);
    /// let mut optimizer = DiLoCo::new(sgd, &varmap, group, config)?.with_hook(Cast::bf16());
    /// # for _ in 0..20 { optimizer.step(&x.sqr()?.sum_all()?.backward()?)?; }
    /// # optimizer.finish()?;
    /// # assert_eq!(optimizer.traffic().ratio(), 20.0);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[must_use]
    pub fn with_hook(self, hook: impl CommHook + 'static) -> Self {
        Self { outer: self.outer.with_hook(hook), ..self }
    }

    /// Makes one step of the rank's own optimizer. Then, if it is their turn, the mean that was under way arrives, and the next fragment is sent.
    ///
    /// # Errors
    /// Those of the optimizer, before anything is sent. Those of [`all_reduce`](phalanx::ProcessGroup::all_reduce), of one that was under way too: the rank's
    /// weights are its own then, from before the mean came. In the first step [`Error::NoGradient`](crate::Error::NoGradient), if
    /// [`DiLoCoConfig::missing_gradients`] asks for it, before anything is changed.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// # use candle_nn::{Optimizer, SGD};
    /// # use phalanx_candle::{DiLoCo, DiLoCoConfig};
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// let sgd = SGD::new(varmap.all_vars(), 1.0)?;
    /// let mut optimizer = DiLoCo::new(sgd, &varmap, group, DiLoCoConfig::local_sgd(2))?;
    /// for _ in 0..2 {
    ///     let loss = (&x * group.rank() as f64)?.sum_all()?;
    ///     optimizer.step(&loss.backward()?)?; // rank 0 stays at 1, and rank 1 goes to 0 and −1
    /// }
    /// assert_eq!(x.to_vec1::<f32>()?, [0.0]); // the mean, on both
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn step(&mut self, grads: &GradStore) -> Result<()> {
        let has_batch = grads.get_ids().next().is_some();
        let has_gradient = |index: usize| grads.get(&self.vars[index]).is_some();
        self.outer.look_for_gradients(has_batch, has_gradient, NO_GRADIENT_HINT)?;
        self.inner.inner_step(grads)?;
        Ok(self.outer.step(&mut self.weights)?)
    }

    /// Waits for what is under way, averages what was trained since, and leaves all ranks with the outer weights: before an evaluation, or at the
    /// end. Buffers, such as the running statistics of batch normalisation, become those of rank 0; until then each rank has its own.
    ///
    /// The training may go on afterwards.
    ///
    /// # Errors
    /// As of [`step`](Self::step), and those of [`broadcast`](phalanx::ProcessGroup::broadcast).
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// # use candle_nn::{Optimizer, SGD};
    /// # use phalanx_candle::{DiLoCo, DiLoCoConfig};
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// # let sgd = SGD::new(varmap.all_vars(), 1.0)?;
    /// let mut optimizer = DiLoCo::new(sgd, &varmap, group, DiLoCoConfig::local_sgd(100))?;
    /// optimizer.step(&(&x * group.rank() as f64)?.sum_all()?.backward()?)?;
    /// assert_eq!(x.to_vec1::<f32>()?, [1.0 - group.rank() as f32]); // each its own
    /// optimizer.finish()?;
    /// assert_eq!(x.to_vec1::<f32>()?, [0.5]);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn finish(&mut self) -> Result<()> {
        self.outer.finish(&mut self.weights)?;
        let group = self.outer.group().with_call_site(CallSite::caller());
        model::sync_buffers(&self.varmap, &group, 0)
    }
}

impl<O> DiLoCo<O> {
    /// The bytes that this rank has sent for the means that have arrived, beside those of an all_reduce of all gradients in each step.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// # use candle_nn::{Optimizer, SGD};
    /// # use phalanx_candle::{DiLoCo, DiLoCoConfig};
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_candle::Result<()> {
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// # let sgd = SGD::new(varmap.all_vars(), 1.0)?;
    /// let mut optimizer = DiLoCo::new(sgd, &varmap, group, DiLoCoConfig::local_sgd(10))?;
    /// for _ in 0..20 {
    ///     optimizer.step(&x.sum_all()?.backward()?)?;
    /// }
    /// assert_eq!(optimizer.traffic().ratio(), 10.0);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn traffic(&self) -> Traffic {
        self.outer.traffic()
    }

    /// The rank's own optimizer.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// # use candle_nn::{Optimizer, SGD};
    /// # use phalanx_candle::{DiLoCo, DiLoCoConfig};
    /// # let group = &phalanx::threads(1)[0];
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// # let sgd = SGD::new(varmap.all_vars(), 0.1)?;
    /// let optimizer = DiLoCo::new(sgd, &varmap, group, DiLoCoConfig::local_sgd(10))?;
    /// assert_eq!(optimizer.inner().learning_rate(), 0.1);
    /// # Ok::<(), phalanx_candle::Error>(())
    /// ```
    pub fn inner(&self) -> &O {
        &self.inner
    }

    /// The rank's own optimizer, to change its learning rate for example.
    ///
    /// # Examples
    /// ```
    /// # use candle_core::{DType, Device};
    /// # use candle_nn::VarMap;
    /// # use candle_nn::{Optimizer, SGD};
    /// # use phalanx_candle::{DiLoCo, DiLoCoConfig};
    /// # let group = &phalanx::threads(1)[0];
    /// # let varmap = VarMap::new();
    /// # let x = varmap.get(1, "x", candle_nn::init::ONE, DType::F32, &Device::Cpu)?;
    /// # let sgd = SGD::new(varmap.all_vars(), 0.1)?;
    /// let mut optimizer = DiLoCo::new(sgd, &varmap, group, DiLoCoConfig::local_sgd(10))?;
    /// optimizer.inner_mut().set_learning_rate(0.01);
    /// assert_eq!(optimizer.inner().learning_rate(), 0.01);
    /// # Ok::<(), phalanx_candle::Error>(())
    /// ```
    pub fn inner_mut(&mut self) -> &mut O {
        &mut self.inner
    }
}
