//! Training that communicates seldom: ranks train for themselves, and average what they have become.

mod averager;
mod config;
mod fragment;
mod state;

pub use config::DiLoCoConfig;

use crate::missing::MissingCheck;
use crate::{Result, Tensor, Weights, sync_model};
use averager::{Averager, AveragerHandle, FragmentGradients};
use fragment::{Fragment, Weight};
use phalanx::error::OpKind;
use phalanx::{CallSite, DType, Error, ProcessGroup, ReduceOp};
use phalanx_compress::{CommHook, Traffic};
use std::fmt;

/// The part of an optimizer that brings ranks together every so many steps, where each trains for itself in between: Local SGD (Stich 2018), DiLoCo
/// (Douillard et al. 2023) and streaming DiLoCo (Douillard et al. 2025), by one mechanism, for tensors of any library.
///
/// A step of the program is the backward pass of its own batch, a step of its own optimizer, and then [`step`](Self::step). Gradients are not reduced, but, where
/// `group` goes across sites, over the ranks of one site.
///
/// All ranks hold the same *outer weights*. Every [`sync_every`](DiLoCoConfig::sync_every) steps the mean over the ranks of what each is
/// away from them is the gradient of an *outer step* with Nesterov momentum, and the ranks go on from there. With a learning rate of 1 and
/// no momentum that is the mean of the weights. The model may be averaged in [`fragments`](DiLoCoConfig::fragments), each at its
/// own time, while the training goes on for [`delay`](DiLoCoConfig::delay) steps.
///
/// Construction, `step` and [`finish`](Self::finish) are collective: all ranks make equally many steps. In between they need not keep pace, but for the
/// group's time limit: see [`with_timeout`](ProcessGroup::with_timeout). What is dropped with an average under way leaves it to end by itself.
///
/// # Cost
/// Twice the weights' memory, as 32 bits at least, and once that of the largest fragment, all of it on the host. Of n bytes of weights, on P ranks, 2n(P − 1)/P
/// are sent in `sync_every` steps, where data-parallel training sends as much in each.
///
/// # Determinism
/// The outer weights have the same bits on all ranks. From run to run on ranks of one host that share memory, and elsewhere where the algorithms are the
/// same: see [reproducibility](phalanx::ProcessGroup#reproducibility).
///
/// # Examples
/// ```
/// use phalanx::ProcessGroup;
/// use phalanx_train::{Array, DiLoCo, DiLoCoConfig, Sgd, SgdParams, verify_parameters};
///
/// fn train(group: &ProcessGroup) -> phalanx_train::Result<()> {
///     let mut weights = [Array::from(vec![group.rank() as f32; 3])]; // different on each rank
///     let mut diloco = DiLoCo::new([("weight", &mut weights[0])], group, DiLoCoConfig::diloco(20))?;
///     let mut sgd = Sgd::new([("weight", &weights[0])], SgdParams { lr: 0.1, ..Default::default() });
///     let target = 1.0 + 2.0 * group.rank() as f32; // its data
///     for _ in 0..200 {
///         let distances = weights[0].as_slice::<f32>().unwrap().iter().map(|weight| weight - target);
///         let grads = [Some(Array::from(distances.collect::<Vec<_>>()))];
///         diloco.check_gradients(&grads)?; // meets the others in the first step alone
///         sgd.step(&mut weights, &grads)?;
///         diloco.step(&mut weights)?; // every 20th brings the ranks together
///     }
///     diloco.finish(&mut weights)?;
///     verify_parameters([("weight", &weights[0])], group)?;
///     assert!((weights[0].as_slice::<f32>().unwrap()[0] - 2.0).abs() < 0.1); // between 1 and 3
///     assert!(diloco.traffic().ratio() > 19.0);
///     Ok(())
/// }
/// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || train(&group).unwrap()); });
/// ```
pub struct DiLoCo {
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

impl fmt::Debug for DiLoCo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiLoCo")
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

impl DiLoCo {
    /// Makes weights equal to those of rank 0, which are the first outer weights. Weights are what an optimizer changes: leave out what the forward pass
    /// itself changes, such as running statistics, which a momentum would carry astray.
    ///
    /// To begin with data-parallel training and change over later (Lin et al. 2018), make this one then.
    ///
    /// # Errors
    /// As of [`sync_model`]. [`phalanx::Error::Misuse`] for a configuration that makes no sense, with fewer layers than fragments, or that is
    /// not the same on all ranks; and for weights that are no floats.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, DiLoCo, DiLoCoConfig};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// let mut weight = Array::from(vec![group.rank() as f32]); // different on each rank
    /// let diloco = DiLoCo::new([("weight", &mut weight)], group, DiLoCoConfig::diloco(20))?;
    /// assert_eq!(weight, Array::from(vec![0f32])); // rank 0's
    /// # drop(diloco);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn new<'n, 'm, T: Tensor>(
        weights: impl IntoIterator<Item = (&'n str, &'m mut T)>,
        group: &ProcessGroup,
        config: DiLoCoConfig,
    ) -> Result<Self> {
        config.check(group)?;
        let mut weights: Vec<_> = weights.into_iter().collect();
        sync_model(weights.iter_mut().map(|(name, weight)| (*name, &mut **weight)), group, 0)?;
        Self::around(weights.into_iter().map(|(name, weight)| (name, &*weight)), group, config)
    }

    /// As [`new`](Self::new), around weights that are equal on all ranks already.
    ///
    /// # Errors
    /// As of [`new`](Self::new), but for those of [`sync_model`].
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, DiLoCo, DiLoCoConfig};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// let weight = Array::from(vec![1f32]); // of a checkpoint that all ranks have loaded
    /// let diloco = DiLoCo::around([("weight", &weight)], group, DiLoCoConfig::diloco(20))?;
    /// # drop(diloco);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn around<'n, 'm, T: Tensor>(
        weights: impl IntoIterator<Item = (&'n str, &'m T)>,
        group: &ProcessGroup,
        config: DiLoCoConfig,
    ) -> Result<Self> {
        config.check(group)?;
        let all: Vec<_> = weights.into_iter().collect();
        if let Some((name, weight)) = all.iter().find(|(_, weight)| !weight.dtype().is_float()) {
            let what = format!(
                "`{name}` can't be averaged: it is {}; pass only weights that are floats",
                weight.dtype()
            );
            return Err(Error::misuse(OpKind::AllReduce, what).into());
        }
        let dtype = wide(all.iter().map(|(_, weight)| weight.dtype()));
        let weight = |(index, (name, weight)): (usize, &(&str, &T))| Weight {
            name: (*name).to_owned(),
            dims: weight.dims().to_vec(),
            index,
        };
        let mut weights: Vec<_> = all.iter().enumerate().map(weight).collect();
        // Whatever the program's order is: this one is the same on all ranks.
        weights.sort_by(|a, b| a.name.cmp(&b.name));
        let layers = || {
            let what =
                format!("fragments is {}, but the model has fewer layers of weights", config.fragments);
            Error::misuse(OpKind::AllReduce, what)
        };
        let dealt = fragment::deal(weights, config.fragments).ok_or_else(layers)?;
        let mut fragments = Vec::new();
        for members in dealt {
            let mut fragment = Fragment::new(members, dtype)?;
            for member in 0..fragment.members.len() {
                let index = fragment.members[member].0.index;
                fragment.begin(member, all[index].1)?;
            }
            fragments.push(fragment);
        }
        let group = group.split(Some(0), 0)?.expect("all ranks gave one colour");
        let largest = fragments.iter().map(Fragment::bytes).max().unwrap_or(0);
        let averager = AveragerHandle::new(Averager::new(group.clone(), dtype, largest)?);
        tracing::debug!(fragments = fragments.len(), largest, "outer weights made");
        let (flight, steps, traffic) = (None, 0, Traffic::default());
        let missing_check = Some(MissingCheck::new(config.missing_gradients)).filter(MissingCheck::is_on);
        Ok(Self { group, config, fragments, averager, flight, steps, traffic, missing_check })
    }

    /// Has `hook` average what 32-bit weights are away from the outer ones, in fewer bytes. All ranks pass the same kind. A model
    /// with weights of 64 bits goes without.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::compress::Cast;
    /// use phalanx_train::{Array, DiLoCo, DiLoCoConfig};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// let mut weights = [Array::from(vec![1f32; 1000])];
    /// let config = DiLoCoConfig::streaming(10, 1, 5);
    /// let diloco = DiLoCo::new([("weight", &mut weights[0])], group, config)?;
    /// let mut diloco = diloco.with_hook(Cast::bf16());
    /// # for _ in 0..20 { diloco.step(&mut weights)?; }
    /// # diloco.finish(&mut weights)?;
    /// # assert_eq!(diloco.traffic().ratio(), 20.0);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[must_use]
    pub fn with_hook(self, hook: impl CommHook + 'static) -> Self {
        // Nothing has been under way yet, so nothing has failed.
        let _ = self.averager.with(|averager| averager.hook = Some(Box::new(hook)));
        self
    }

    /// Finds weights for which no rank has a gradient, by the gradients of a step, before the program's optimizer takes them: once, in the first step in which
    /// any rank has some. A rank that has no batch passes `None`s. A program may do without.
    ///
    /// # Errors
    /// [`Error::NoGradient`](crate::Error::NoGradient), if [`DiLoCoConfig::missing_gradients`] asks for it. Those of
    /// [`all_reduce`](ProcessGroup::all_reduce).
    ///
    /// # Panics
    /// For fewer gradients than weights.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, DiLoCo, DiLoCoConfig, Error, MissingGradients};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// let (mut a, mut b) = (Array::from(vec![1f32]), Array::from(vec![1f32]));
    /// let config = DiLoCoConfig::diloco(20).missing_gradients(MissingGradients::Error);
    /// let mut diloco = DiLoCo::new([("a", &mut a), ("b", &mut b)], group, config)?;
    /// let outcome = diloco.check_gradients(&[Some(Array::from(vec![1f32])), None]);
    /// assert!(matches!(outcome, Err(Error::NoGradient { names, .. }) if names == ["b"]));
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn check_gradients<T: Tensor>(&mut self, grads: &[Option<T>]) -> Result<()> {
        let has_batch = grads.iter().any(Option::is_some);
        self.look_for_gradients(has_batch, |index| grads[index].is_some(), T::NO_GRADIENT_HINT)
    }

    /// Asks once, in the first step in which any rank has a batch, whether each weight has a gradient somewhere.
    ///
    /// # Errors
    /// As of [`check_gradients`](Self::check_gradients).
    #[doc(hidden)]
    #[track_caller]
    pub fn look_for_gradients(
        &mut self,
        has_batch: bool,
        has_gradient: impl Fn(usize) -> bool,
        hint: &'static str,
    ) -> Result<()> {
        // While something is under way the group is not ours: later, then.
        if self.missing_check.is_none() || self.flight.is_some() {
            return Ok(());
        }
        let group = self.group.with_call_site(CallSite::caller());
        let members = || self.fragments.iter().flat_map(|fragment| &fragment.members);
        let mine = members().map(|(weight, _)| has_gradient(weight.index));
        let mut users: Vec<u32> = std::iter::once(has_batch).chain(mine).map(u32::from).collect();
        group.all_reduce(&mut users, ReduceOp::Sum)?;
        if users[0] == 0 {
            return Ok(());
        }
        let named = members().zip(&users[1..]).filter(|&(_, &users)| users == 0);
        let mut missing: Vec<&str> = named.map(|((weight, _), _)| weight.name.as_str()).collect();
        missing.sort_unstable();
        match self.missing_check.take() {
            Some(mut missing_check) => missing_check.judge(missing, hint, &group),
            None => Ok(()),
        }
    }

    /// Ends a step in which the rank's own optimizer has changed its weights, which are in the order in which this was made. If it is their turn, the mean that was
    /// under way arrives, and the next fragment is sent.
    ///
    /// # Errors
    /// Those of [`all_reduce`](ProcessGroup::all_reduce), of one that was under way too: the rank's weights are its own then, from before the mean came. Those of the
    /// library.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, DiLoCo, DiLoCoConfig};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// let mut weights = [Array::from(vec![1f32])];
    /// let mut diloco = DiLoCo::new([("weight", &mut weights[0])], group, DiLoCoConfig::local_sgd(2))?;
    /// for _ in 0..2 {
    ///     weights[0].as_mut_slice::<f32>().unwrap()[0] -= group.rank() as f32; // 1 on rank 0; 0, then −1 on rank 1
    ///     diloco.step(&mut weights)?;
    /// }
    /// assert_eq!(weights[0], Array::from(vec![0f32])); // the mean, on both
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn step<T: Tensor>(&mut self, weights: &mut (impl Weights<T> + ?Sized)) -> Result<()> {
        let is_due = self.is_due();
        self.steps += 1;
        let bytes = self.fragments.iter().map(Fragment::bytes).sum();
        self.traffic.plain += Traffic::of_all_reduce(bytes, &self.group);
        if !is_due {
            return Ok(());
        }
        let turn = self.config.turn(self.steps);
        // What a checkpoint of another configuration has under way may be due after the next turn.
        if self.flight.is_some_and(|flight| flight.due <= self.steps || turn.is_some()) {
            self.land(weights)?;
        }
        if let Some(fragment) = turn {
            self.launch(fragment, self.config.delay, weights, CallSite::caller())?;
            if self.config.delay == 0 {
                self.land(weights)?;
            }
        }
        Ok(())
    }

    /// Whether the next [`step`](Self::step) looks at weights, or changes them: for libraries in which it costs something to get at them.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, DiLoCo, DiLoCoConfig};
    ///
    /// # let group = &phalanx::threads(1)[0];
    /// let mut weights = [Array::from(vec![1f32])];
    /// let mut diloco = DiLoCo::new([("weight", &mut weights[0])], group, DiLoCoConfig::local_sgd(3))?;
    /// let mut due = Vec::new();
    /// for _ in 0..6 {
    ///     due.push(diloco.is_due());
    ///     diloco.step(&mut weights)?;
    /// }
    /// assert_eq!(due, [false, false, true, false, false, true]);
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn is_due(&self) -> bool {
        let next = self.steps + 1;
        self.config.turn(next).is_some() || self.flight.is_some_and(|flight| flight.due <= next)
    }

    /// Waits for what is under way, averages what was trained since, and leaves all ranks with the outer weights: before an evaluation, or at the
    /// end. The training may go on afterwards.
    ///
    /// # Errors
    /// As of [`step`](Self::step).
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, DiLoCo, DiLoCoConfig};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// let mut weights = [Array::from(vec![1f32])];
    /// let mut diloco = DiLoCo::new([("weight", &mut weights[0])], group, DiLoCoConfig::local_sgd(100))?;
    /// weights[0].as_mut_slice::<f32>().unwrap()[0] -= group.rank() as f32;
    /// diloco.step(&mut weights)?;
    /// assert_eq!(weights[0], Array::from(vec![1.0 - group.rank() as f32])); // each its own
    /// diloco.finish(&mut weights)?;
    /// assert_eq!(weights[0], Array::from(vec![0.5f32]));
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn finish<T: Tensor>(&mut self, weights: &mut (impl Weights<T> + ?Sized)) -> Result<()> {
        let site = CallSite::caller();
        if self.flight.is_some() {
            self.land(weights)?;
        }
        for at in 0..self.fragments.len() {
            if self.fragments[at].sent_at < self.steps {
                self.launch(at, 0, weights, site.clone())?;
                self.land(weights)?;
            }
        }
        self.fragments.iter().try_for_each(|fragment| fragment.adopt(weights, 0.0))
    }

    /// Sends a fragment's pseudo-gradients; the mean is to be there after `delay` more steps.
    fn launch<T: Tensor>(
        &mut self,
        at: usize,
        delay: u64,
        weights: &mut (impl Weights<T> + ?Sized),
        site: CallSite,
    ) -> Result<()> {
        let fragment = &mut self.fragments[at];
        self.averager.with(|averager| fragment.pseudo_gradients(weights, averager.bytes()))??;
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
    fn land<T: Tensor>(&mut self, weights: &mut (impl Weights<T> + ?Sized)) -> Result<()> {
        let Some(InFlight { fragment, .. }) = self.flight.take() else { return Ok(()) };
        let (fragment, config) = (&mut self.fragments[fragment], &self.config);
        let step = |averager: &mut Averager| (fragment.step(averager.bytes(), config), averager.sent());
        let (outcome, sent) = self.averager.with(step)?;
        self.traffic.sent = sent;
        outcome?;
        fragment.adopt(weights, config.mix)
    }

    /// The bytes that this rank has sent for the means that have arrived, beside those of an all_reduce of all gradients in each step.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Array, DiLoCo, DiLoCoConfig};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// let mut weights = [Array::from(vec![1f32])];
    /// let mut diloco = DiLoCo::new([("weight", &mut weights[0])], group, DiLoCoConfig::local_sgd(10))?;
    /// for _ in 0..20 {
    ///     diloco.step(&mut weights)?;
    /// }
    /// assert_eq!(diloco.traffic().ratio(), 10.0);
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// The ranks, in a group of its own. Nothing may be called on it while a mean is under way.
    #[doc(hidden)]
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }
}

/// The type of the outer weights: f64 where a weight is, else f32, of weights of 16 bits too, for what a step adds to those is often too little.
fn wide(mut dtypes: impl Iterator<Item = DType>) -> DType {
    if dtypes.any(|dtype| dtype == DType::F64) { DType::F64 } else { DType::F32 }
}
