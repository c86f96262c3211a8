//! Training in which ranks average their weights now and then, instead of their gradients in each step.

use crate::checkpoint::{Checkpoint, State, Stateful, load_vars, save_vars};
use crate::torch::Torch;
use crate::variables::{Variable, named, variables};
use crate::{DiLoCoConfig, Result, checkpoint};
use phalanx::error::OpKind;
use phalanx::{CallSite, ProcessGroup};
use phalanx_train::Tensor as _;
use phalanx_train::compress::{CommHook, Traffic};
use tch::nn::VarStore;

/// Local SGD, DiLoCo (Douillard et al. 2023) and Streaming DiLoCo (Douillard et al. 2025): each rank trains for itself with an optimizer of tch's, and now and
/// then all average how far they have come. See [`DiLoCoConfig`].
///
/// # Cost
/// Two copies of the weights, and one of the largest fragment. Of n bytes of weights, on P ranks, 2n(P − 1)/P are sent in `sync_every`
/// steps, where data-parallel training sends as much in each.
///
/// # Determinism
/// The outer weights have the same bits on all ranks. From run to run on ranks of one host that share memory, and elsewhere where the algorithms are the
/// same: see [reproducibility](ProcessGroup#reproducibility).
///
/// # Examples
/// ```
/// use phalanx_tch::{DiLoCo, DiLoCoConfig, verify_parameters};
/// use tch::nn::{Module, OptimizerConfig};
/// use tch::{Device, Kind, Tensor, nn};
///
/// phalanx::on_threads(2, |group| {
///     let store = nn::VarStore::new(Device::Cpu);
///     let model = nn::linear(store.root(), 2, 1, Default::default()); // different on each rank
///     let mut diloco = DiLoCo::new(&store, &group, DiLoCoConfig::diloco(20)).unwrap(); // now equal
///     let mut adam = nn::Adam::default().build(&store, 0.01).unwrap();
///     let x = Tensor::full([4, 2], 1.0 + group.rank() as f64, (Kind::Float, Device::Cpu));
///     for _ in 0..50 {
///         adam.backward_step(&model.forward(&x).square().mean(None)); // by this rank's gradients
///         diloco.step().unwrap(); // every 20th brings the ranks together
///     }
///     diloco.finish().unwrap();
///     verify_parameters(&store, &group).unwrap();
///     assert!(diloco.traffic().ratio() > 16.0); // 3 averages in 50 steps
///     Ok(())
/// })?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[derive(Debug)]
pub struct DiLoCo {
    outer: phalanx_train::DiLoCo,
    weights: Vec<Variable>,
    buffers: Vec<Variable>,
}

impl DiLoCo {
    /// Makes the variables of `store` equal to those of rank 0, which are the first outer weights.
    ///
    /// To begin with data-parallel training and change over later (Lin et al. 2018), make this one then.
    ///
    /// # Errors
    /// As of [`sync_model`](crate::sync_model). [`phalanx::Error::Misuse`] for a configuration that makes no sense, with fewer layers than fragments, or that is
    /// not the same on all ranks.
    ///
    /// # Examples
    /// See [`DiLoCo`].
    #[track_caller]
    pub fn new(store: &VarStore, group: &ProcessGroup, config: DiLoCoConfig) -> Result<Self> {
        config.check(group)?;
        crate::sync_model(store, group, 0)?;
        let (weights, buffers): (Vec<_>, Vec<_>) =
            variables(store).into_iter().partition(|variable| variable.tensor.requires_grad());
        let shared = named(&weights, OpKind::AllReduce)?;
        let of_weights = shared.iter().map(|(name, tensor)| (*name, tensor));
        let outer = phalanx_train::DiLoCo::around(of_weights, group, config)?;
        drop(shared);
        Ok(Self { outer, weights, buffers })
    }

    /// Has `hook` average what 32-bit weights are away from the outer ones, in fewer bytes. All ranks pass the same kind. A model
    /// with weights of 64 bits goes without.
    #[must_use]
    pub fn with_hook(self, hook: impl CommHook + 'static) -> Self {
        Self { outer: self.outer.with_hook(hook), ..self }
    }

    /// Ends a step in which this rank's own optimizer has changed its weights. If it is their turn, the mean that was under way arrives, and the next fragment is
    /// sent.
    ///
    /// # Errors
    /// Those of [`all_reduce`](ProcessGroup::all_reduce), of one that was under way too: the rank's weights are its own then, from before the mean came. In the
    /// first step [`Error::NoGradient`](crate::Error::NoGradient), if [`DiLoCoConfig::missing_gradients`] asks for it: it looks at the gradients that the
    /// variables have, so take them away after this.
    ///
    /// # Examples
    /// ```
    /// use phalanx_tch::{DiLoCo, DiLoCoConfig};
    /// use tch::nn::OptimizerConfig;
    /// use tch::{Device, nn};
    ///
    /// let found = phalanx::on_threads(2, |group| {
    ///     let store = nn::VarStore::new(Device::Cpu);
    ///     let x = store.root().ones("x", &[1]);
    ///     let mut diloco = DiLoCo::new(&store, &group, DiLoCoConfig::local_sgd(2)).unwrap();
    ///     let mut sgd = nn::Sgd::default().build(&store, 1.0).unwrap();
    ///     for _ in 0..2 {
    ///         sgd.backward_step(&(&x * group.rank() as f64).sum(None));
    ///         diloco.step().unwrap(); // rank 0 stays at 1, and rank 1 goes to 0 and −1
    ///     }
    ///     Ok(f64::try_from(x).unwrap())
    /// })?;
    /// assert_eq!(found, [0.0, 0.0]); // the mean, on both
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    #[track_caller]
    pub fn step(&mut self) -> Result<()> {
        let has: Vec<bool> = self.weights.iter().map(|weight| weight.tensor.grad().defined()).collect();
        self.outer.look_for_gradients(has.contains(&true), |index| has[index], Torch::NO_GRADIENT_HINT)?;
        self.outer.step(&mut lent(&self.weights)?)
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
    /// See [`DiLoCo`].
    #[track_caller]
    pub fn finish(&mut self) -> Result<()> {
        self.outer.finish(&mut lent(&self.weights)?)?;
        let group = self.outer.group().with_call_site(CallSite::caller());
        phalanx_train::sync_buffers(&mut lent(&self.buffers)?, &group, 0)
    }

    /// The bytes that this rank has sent for the means that have arrived, beside those of an all_reduce of all gradients in each step.
    pub fn traffic(&self) -> Traffic {
        self.outer.traffic()
    }

    /// Adds this and the variables of `store` to `state`, under `prefix`: the outer weights (`anchor.NAME`), their momentum, the number of steps, and what is under
    /// way, which all ranks hold alike; and as each rank's own its variables (`local.NAME`), and what its hook has left out (`hook`). What tch's optimizer
    /// remembers is not part of it: tch gives nobody access.
    ///
    /// Saving waits for what is under way.
    ///
    /// # Errors
    /// Those of what is under way.
    ///
    /// # Examples
    /// ```
    /// use phalanx_tch::checkpoint::{Checkpoints, State};
    /// use phalanx_tch::{DiLoCo, DiLoCoConfig};
    /// use tch::nn::OptimizerConfig;
    /// use tch::{Device, nn};
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path().to_path_buf();
    /// # for day in 1..3 { let folder = folder.clone(); phalanx::on_threads(2, move |group| {
    /// let store = nn::VarStore::new(Device::Cpu);
    /// let x = store.root().ones("x", &[1]);
    /// let mut diloco = DiLoCo::new(&store, &group, DiLoCoConfig::local_sgd(2)).unwrap();
    /// let mut checkpoints = Checkpoints::open(folder.clone(), &group).unwrap();
    /// let mut step = 0;
    /// if let Some(found) = checkpoints.latest_good().unwrap() {
    ///     diloco.load(&store, "training", &found).unwrap();
    ///     step = found.step();
    /// }
    /// let mut sgd = nn::Sgd::default().build(&store, 1.0).unwrap();
    /// sgd.backward_step(&(&x * group.rank() as f64).sum(None)); // one step a day
    /// diloco.step().unwrap();
    /// let mut state = State::new();
    /// diloco.save(&store, "training", &mut state).unwrap();
    /// checkpoints.save(step + 1, state).unwrap();
    /// # let found = f64::try_from(&x).unwrap();
    /// # assert_eq!(found, if day == 1 { 1.0 - group.rank() as f64 } else { 0.0 });
    /// # Ok(()) })?; }
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn save<'a>(
        &'a self,
        store: &VarStore,
        prefix: &str,
        state: &mut State<'a>,
    ) -> checkpoint::Result<()> {
        self.outer.save(prefix, state)?;
        state.of_rank(self.outer.group().rank(), |own| save_vars(store, &format!("{prefix}.local"), own))
    }

    /// Makes this and the variables of `store` what [`save`](Self::save) has saved under `prefix`.
    ///
    /// On another number of ranks than have saved it a rank begins with the weights of one of those that were there.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::checkpoint::Error::Missing), [`Error::OtherTensor`](crate::checkpoint::Error::OtherTensor) and
    /// [`Error::Value`](crate::checkpoint::Error::Value): the checkpoint is of another model, or of other fragments.
    /// [`Error::Io`](crate::checkpoint::Error::Io).
    ///
    /// # Examples
    /// See [`save`](Self::save).
    pub fn load(&mut self, store: &VarStore, prefix: &str, from: &Checkpoint) -> checkpoint::Result<()> {
        self.outer.load(prefix, from)?;
        let own = from.of_rank(self.outer.group().rank() % from.world_size().max(1));
        load_vars(store, &format!("{prefix}.local"), &own)
    }
}

/// Variables as tensors whose elements are changed in place.
fn lent(variables: &[Variable]) -> Result<Vec<Torch>> {
    Ok(named(variables, OpKind::AllReduce)?.into_iter().map(|(_, tensor)| tensor).collect())
}
