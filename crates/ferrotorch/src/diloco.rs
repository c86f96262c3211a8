//! Training in which ranks average their weights now and then, instead of their gradients in each step.

use crate::backend::Backend;
use crate::checkpoint::{self, Checkpoint, State, Stateful, load_module, save_module};
use crate::error::told;
use crate::parameters::{Named, by_name, lent, set_values, sync_model};
use ferrotorch_core::{FerrotorchResult, Float};
use ferrotorch_nn::Module;
use phalanx_train::compress::{CommHook, Traffic};
use phalanx_train::{Array, DiLoCoConfig, Tensor as _};
use std::sync::Arc;

/// Local SGD, DiLoCo (Douillard et al. 2023) and Streaming DiLoCo (Douillard et al. 2025): each rank trains for itself with an optimizer of ferrotorch's, and now
/// and then all average how far they have come. See [`DiLoCoConfig`].
///
/// Weights are changed in place, so an optimizer that was made of the module's parameters goes on with them.
///
/// # Cost
/// Two copies of the weights, and one of the largest fragment. Of n bytes of weights, on P ranks, 2n(P − 1)/P are sent in `sync_every`
/// steps, where data-parallel training sends as much in each.
///
/// # Examples
/// ```
/// use ferrotorch_core::{FerrotorchResult, backward, creation, grad_fns};
/// use ferrotorch_nn::{Linear, Module};
/// use ferrotorch_optim::{Optimizer, Sgd, SgdConfig};
/// use phalanx_ferrotorch::{Backend, DiLoCo, DiLoCoConfig, SimulatedBackend};
/// use std::sync::Arc;
///
/// fn train(backend: Arc<dyn Backend>) -> FerrotorchResult<()> {
///     let x = creation::full(&[4, 2], 1.0 + backend.rank() as f32)?;
///     let model = Linear::<f32>::new(2, 1, true)?; // at random: different on each rank
///     let mut diloco = DiLoCo::new(model, backend, DiLoCoConfig::diloco(20))?; // now equal
///     let parameters = diloco.module().parameters().into_iter().cloned().collect();
///     let mut optimizer = Sgd::new(parameters, SgdConfig::new(0.01));
///     for _ in 0..50 {
///         let y = diloco.module().forward(&x)?;
///         backward(&grad_fns::reduction::mean(&grad_fns::arithmetic::mul(&y, &y)?)?)?; // this rank's gradients
///         optimizer.step()?;
///         diloco.step()?; // every 20th brings the ranks together
///         optimizer.zero_grad()?;
///     }
///     diloco.finish()?;
///     assert!(diloco.traffic().ratio() > 16.0); // 3 averages in 50 steps
///     Ok(())
/// }
/// # std::thread::scope(|scope| {
/// #     for backend in SimulatedBackend::create_group(2).unwrap() {
/// #         scope.spawn(move || train(Arc::new(backend)).unwrap());
/// #     }
/// # });
/// ```
pub struct DiLoCo<M: Module<T>, T: Float> {
    module: M,
    outer: phalanx_train::DiLoCo,
    weights: Vec<Named<T>>,
}

impl<M: Module<T>, T: Float> std::fmt::Debug for DiLoCo<M, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiLoCo").field("outer", &self.outer).finish_non_exhaustive()
    }
}

impl<M: Module<T>, T: Float> DiLoCo<M, T> {
    /// Makes the module's parameters equal to those of rank 0, in place. They are the first outer weights.
    ///
    /// # Errors
    /// As of [`broadcast_parameters`](crate::DDP::broadcast_parameters). A configuration that makes no sense, with fewer layers than fragments, or that is
    /// not the same on all ranks.
    ///
    /// # Examples
    /// See [`DiLoCo`].
    #[track_caller]
    pub fn new(module: M, backend: Arc<dyn Backend>, config: DiLoCoConfig) -> FerrotorchResult<Self> {
        let group = backend.group();
        config.check(group).map_err(told)?;
        let named = by_name(&module);
        sync_model(&named, group, 0)?;
        let weights: Vec<_> = named.into_iter().filter(|one| one.tensor.requires_grad()).collect();
        let values = lent(&weights)?;
        let all = weights.iter().map(|one| one.name.as_str()).zip(&values);
        let outer = phalanx_train::DiLoCo::around(all, group, config).map_err(told)?;
        Ok(Self { module, outer, weights })
    }

    /// Has `hook` average what 32-bit weights are away from the outer ones, in fewer bytes. All ranks pass the same kind.
    #[must_use]
    pub fn with_hook(self, hook: impl CommHook + 'static) -> Self {
        Self { outer: self.outer.with_hook(hook), ..self }
    }

    /// The module, with this rank's weights.
    pub fn module(&self) -> &M {
        &self.module
    }

    /// The module alone.
    pub fn into_inner(self) -> M {
        self.module
    }

    /// Ends a step in which this rank's own optimizer has changed its weights. If it is their turn, the mean that was under way arrives, and the next fragment is
    /// sent.
    ///
    /// # Errors
    /// Those of the group, of a mean that was under way too: the rank's weights are its own then, from before the mean came. In the first step no gradient of some
    /// weight on any rank, if [`DiLoCoConfig::missing_gradients`] asks for it: it looks at the gradients that the parameters have, so take them away after this.
    ///
    /// # Examples
    /// See [`DiLoCo`].
    #[track_caller]
    pub fn step(&mut self) -> FerrotorchResult<()> {
        let has = |one: &Named<T>| one.tensor.grad().is_ok_and(|grad| grad.is_some());
        let has: Vec<bool> = self.weights.iter().map(has).collect();
        let looked =
            self.outer.look_for_gradients(has.contains(&true), |index| has[index], Array::NO_GRADIENT_HINT);
        looked.map_err(told)?;
        if !self.outer.is_due() {
            return self.outer.step::<Array>(&mut Vec::new()).map_err(told);
        }
        let mut values = lent(&self.weights)?;
        self.outer.step(&mut values).map_err(told)?;
        set_values(&self.weights, values)
    }

    /// Waits for what is under way, averages what was trained since, and leaves all ranks with the outer weights: before an evaluation, or at the
    /// end. The training may go on afterwards.
    ///
    /// # Errors
    /// As of [`step`](Self::step).
    ///
    /// # Examples
    /// See [`DiLoCo`].
    #[track_caller]
    pub fn finish(&mut self) -> FerrotorchResult<()> {
        let mut values = lent(&self.weights)?;
        self.outer.finish(&mut values).map_err(told)?;
        set_values(&self.weights, values)
    }

    /// The bytes that this rank has sent for the means that have arrived, beside those of an all_reduce of all gradients in each step.
    pub fn traffic(&self) -> Traffic {
        self.outer.traffic()
    }

    /// Adds this and its module to `state`, under `prefix`: the outer weights (`anchor.NAME`), their momentum, the number of steps, and what is under way, which all
    /// ranks hold alike; and as each rank's own its parameters (`local.NAME`), and what its hook has left out (`hook`). What the optimizer remembers is the
    /// program's to save.
    ///
    /// Saving waits for what is under way.
    ///
    /// # Errors
    /// Those of what is under way.
    pub fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) -> FerrotorchResult<()> {
        let local = |own: &mut State<'_>| -> Result<(), checkpoint::Error> {
            save_module(&self.module, &format!("{prefix}.local"), own)
                .map_err(|error| checkpoint::Error::Tensors(Box::new(error)))
        };
        let all = self.outer.save(prefix, state);
        let all = all.and_then(|()| state.of_rank(self.outer.group().rank(), local));
        all.map_err(told)
    }

    /// Makes this and its module what [`save`](Self::save) has saved under `prefix`. On another number of ranks than have saved it a rank begins with the weights
    /// of one of those that were there.
    ///
    /// # Errors
    /// The checkpoint is of another model, or of other fragments, or can't be read.
    pub fn load(&mut self, prefix: &str, from: &Checkpoint) -> FerrotorchResult<()> {
        self.outer.load(prefix, from).map_err(told)?;
        let own = from.of_rank(self.outer.group().rank() % from.world_size().max(1));
        load_module(&mut self.module, &format!("{prefix}.local"), &own)
    }
}
