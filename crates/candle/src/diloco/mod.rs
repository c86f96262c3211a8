//! Training that communicates seldom: ranks train for themselves, and average what they have become.

mod averager;
mod config;
mod fragment;
mod state;

pub use config::DiLoCoConfig;

use crate::error::NO_GRADIENT_HINT;
use crate::model::{self, Parameter, is_buffer, parameters};
use crate::{AdamW, Group, Result, sync_model};
use averager::{Averager, AveragerHandle, FragmentGradients};
use candle_core::DType;
use candle_core::backprop::GradStore;
use candle_nn::VarMap;
use fragment::Fragment;
use phalanx::error::OpKind;
use phalanx::{CallSite, Error, ProcessGroup, ReduceOp};
use phalanx_compress::{CommHook, Traffic};
use phalanx_train::missing::MissingCheck;
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
/// [`with_timeout`](ProcessGroup::with_timeout). In the first step all meet once, to find weights
/// [without a gradient](DiLoCoConfig::missing_gradients).
///
/// What is dropped with an average under way leaves it to end by itself.
///
/// # Cost
/// Twice the weights' memory, and once that of the largest fragment. Of n bytes of weights, on P ranks, 2n(P − 1)/P are sent in
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
    varmap: VarMap,
    /// A group of our own, so that a mean that is under way does not meet the program's calls.
    group: ProcessGroup,
    config: DiLoCoConfig,
    fragments: Vec<Fragment>,
    averager: AveragerHandle,
    flight: Option<InFlight>,
    steps: u64,
    traffic: Traffic,
    /// Until the ranks know which weights have gradients.
    missing_check: Option<MissingCheck>,
}

impl<O: fmt::Debug> fmt::Debug for DiLoCo<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiLoCo")
            .field("inner", &self.inner)
            .field("group", &self.group)
            .field("config", &self.config)
            .field("steps", &self.steps)
            .field("flight", &self.flight)
            .finish_non_exhaustive()
    }
}

/// A fragment whose mean is under way, and the step after which it is to be there.
#[derive(Debug, Clone, Copy)]
struct InFlight {
    fragment: usize,
    due: u64,
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
        let mut parameters = parameters(varmap);
        // What the forward pass changes is no weight: a momentum would carry a variance below zero.
        parameters.retain(|p| p.var.dtype().is_float() && !is_buffer(&p.name));
        let dtype = wide(&parameters);
        let layers = || {
            let what =
                format!("fragments is {}, but the model has fewer layers of weights", config.fragments);
            Error::misuse(OpKind::AllReduce, what)
        };
        let dealt = fragment::deal(parameters, config.fragments).ok_or_else(layers)?;
        let fragments =
            dealt.into_iter().map(|members| Fragment::new(members, dtype)).collect::<Result<Vec<_>>>()?;
        let group = group.split(Some(0), 0)?.expect("all ranks gave one colour");
        let largest = fragments.iter().map(Fragment::bytes).max().unwrap_or(0);
        let averager = AveragerHandle::new(Averager::new(group.clone(), dtype, largest)?);
        tracing::debug!(fragments = fragments.len(), largest, "outer weights made");
        let (flight, steps, traffic) = (None, 0, Traffic::default());
        let missing_check = Some(MissingCheck::new(config.missing_gradients)).filter(MissingCheck::is_on);
        Ok(Self {
            inner,
            varmap: varmap.clone(),
            group,
            config,
            fragments,
            averager,
            flight,
            steps,
            traffic,
            missing_check,
        })
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
        // Nothing has been under way yet, so nothing has failed.
        let _ = self.averager.with(|averager| averager.hook = Some(Box::new(hook)));
        self
    }

    /// Makes one step of the rank's own optimizer. Then, if it is their turn, the mean that was under way arrives, and the next fragment is sent.
    ///
    /// # Errors
    /// Those of the optimizer, before anything is sent. Those of [`all_reduce`](ProcessGroup::all_reduce), of one that was under way too: the rank's
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
        self.look_for_gradients(grads, CallSite::caller())?;
        self.inner.inner_step(grads)?;
        self.steps += 1;
        let bytes = self.fragments.iter().map(Fragment::bytes).sum();
        self.traffic.plain += Traffic::of_all_reduce(bytes, &self.group);
        let turn = self.config.turn(self.steps);
        // What a checkpoint of another configuration has under way may be due after the next turn.
        if self.flight.is_some_and(|flight| flight.due <= self.steps || turn.is_some()) {
            self.land()?;
        }
        if let Some(fragment) = turn {
            self.launch(fragment, self.config.delay, CallSite::caller())?;
            if self.config.delay == 0 {
                self.land()?;
            }
        }
        Ok(())
    }

    /// Waits for what is under way, averages what was trained since, and leaves all ranks with the outer weights: before an evaluation, or at the
    /// end. Buffers, such as the running statistics of batch normalisation, become those of rank 0; until then each rank has its own.
    ///
    /// The training may go on afterwards.
    ///
    /// # Errors
    /// As of [`step`](Self::step), and those of [`broadcast`](ProcessGroup::broadcast).
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
        let site = CallSite::caller();
        if self.flight.is_some() {
            self.land()?;
        }
        for at in 0..self.fragments.len() {
            if self.fragments[at].sent_at < self.steps {
                self.launch(at, 0, site.clone())?;
                self.land()?;
            }
        }
        self.fragments.iter().try_for_each(|fragment| fragment.adopt(0.0))?;
        model::sync_buffers(&self.varmap, &self.group.with_call_site(site), 0)
    }

    /// Asks once, in the first step in which any rank has a batch, whether each weight has a gradient somewhere.
    fn look_for_gradients(&mut self, grads: &GradStore, site: CallSite) -> Result<()> {
        // While something is under way the group is not ours: later, then.
        if self.missing_check.is_none() || self.flight.is_some() {
            return Ok(());
        }
        let group = self.group.with_call_site(site);
        let members = || self.fragments.iter().flat_map(|fragment| &fragment.members);
        let mine = members().map(|member| grads.get(&member.parameter.var).is_some());
        let has_batch = grads.get_ids().next().is_some();
        let mut users: Vec<u32> = std::iter::once(has_batch).chain(mine).map(u32::from).collect();
        group.all_reduce(&mut users, ReduceOp::Sum)?;
        if users[0] == 0 {
            return Ok(());
        }
        let named = members().zip(&users[1..]).filter(|&(_, &users)| users == 0);
        let mut missing: Vec<&str> = named.map(|(member, _)| member.parameter.name.as_str()).collect();
        missing.sort_unstable();
        match self.missing_check.take() {
            Some(mut missing_check) => Ok(missing_check.judge(missing, NO_GRADIENT_HINT, &group)?),
            None => Ok(()),
        }
    }

    /// Sends a fragment's pseudo-gradients; the mean is to be there after `delay` more steps.
    fn launch(&mut self, at: usize, delay: u64, site: CallSite) -> Result<()> {
        let fragment = &mut self.fragments[at];
        let gradients = fragment.pseudo_gradients()?;
        self.averager.with(|averager| Fragment::pack(&gradients, averager.bytes()))??;
        let sent = FragmentGradients { index: at, bytes: fragment.bytes(), shapes: fragment.shapes(), site };
        match delay {
            0 => self.averager.average(sent)?,
            _ => self.averager.begin(sent),
        }
        fragment.sent_at = self.steps;
        self.flight = Some(InFlight { fragment: at, due: self.steps + delay });
        Ok(())
    }

    /// Makes the outer step by the mean that was under way, and lets the rank go on from there.
    fn land(&mut self) -> Result<()> {
        let Some(InFlight { fragment, .. }) = self.flight.take() else { return Ok(()) };
        let fragment = &mut self.fragments[fragment];
        let (means, sent) =
            self.averager.with(|averager| (fragment.unpack(averager.bytes()), averager.sent()))?;
        self.traffic.sent = sent;
        fragment.step(&means?, &self.config)?;
        fragment.adopt(self.config.mix)
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
        self.traffic
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

/// The type of the outer weights: f64 where a weight is, else f32, of weights of 16 bits too, for what a step adds to those is often too little.
fn wide(parameters: &[Parameter]) -> DType {
    let is_double = parameters.iter().any(|p| p.var.dtype() == DType::F64);
    if is_double { DType::F64 } else { DType::F32 }
}
