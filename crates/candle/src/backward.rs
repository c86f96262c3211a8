//! The gradients of candle's backward pass, by the places that their variables have among all.

use crate::group::{Place, Ranks};
use crate::model::{Parameter, is_buffer};
use crate::sendable::{Candle, sent_as};
use crate::{DdpConfig, Group, Result, Share};
use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, TensorId, Var};
use phalanx::error::OpKind;
use phalanx_compress::{CommHook, Traffic};
use phalanx_train::Gradients;
use std::collections::HashMap;

/// The variables that can have a gradient, and what reduces these.
#[derive(Debug)]
pub(crate) struct BackwardGradients {
    inner: phalanx_train::Reducer<Candle>,
    group: Ranks,
    variables: Variables,
    /// Accumulated gradients of tensors that are none of our variables.
    others: GradStore,
}

/// The variables, in the order of their names.
#[derive(Debug)]
struct Variables {
    vars: Vec<Var>,
    /// The index of each variable in `vars`.
    places: HashMap<TensorId, usize>,
}

impl Variables {
    /// The variables that `loss` depends on, in the order in which the backward pass completes their gradients.
    fn reached(&self, loss: &Tensor) -> Vec<usize> {
        loss.sorted_nodes().iter().filter_map(|node| self.places.get(&node.id()).copied()).collect()
    }
}

/// The floating-point variables among `parameters`: others, such as counters, never have a gradient.
fn differentiable(
    parameters: Vec<Parameter>,
    wire: impl Fn(&Parameter) -> DType,
    group: &impl Group,
) -> Result<(Vec<Var>, Vec<phalanx_train::Parameter<Place>>)> {
    let mut all = (Vec::new(), Vec::new());
    for parameter in parameters.into_iter().filter(|p| p.var.dtype().is_float()) {
        let tensor = Candle::new(group, OpKind::AllReduce, &parameter.var)?;
        let wire = sent_as(group.host(), OpKind::AllReduce, wire(&parameter))?;
        let is_buffer = is_buffer(&parameter.name);
        let known = phalanx_train::Parameter::of(parameter.name, &tensor).wire(wire);
        all.1.push(if is_buffer { known.optional() } else { known });
        all.0.push(parameter.var);
    }
    Ok(all)
}

impl BackwardGradients {
    /// For the floating-point variables of `parameters`, which are in name order. `wire` says in what type the gradients of one travel.
    pub(crate) fn new(
        parameters: Vec<Parameter>,
        wire: impl Fn(&Parameter) -> DType,
        config: DdpConfig,
        overlap: bool,
        group: &Ranks,
    ) -> Result<Self> {
        let (vars, parameters) = differentiable(parameters, wire, group)?;
        let cap_bytes = config.bucket_cap_bytes;
        let mut inner = phalanx_train::Reducer::new(parameters, group.host(), cap_bytes, overlap)?;
        inner.set_missing_gradients(config.missing_gradients);
        let places = vars.iter().enumerate().map(|(at, var)| (var.id(), at)).collect();
        let variables = Variables { vars, places };
        Ok(Self { inner, group: group.clone(), variables, others: GradStore::default() })
    }

    pub(crate) fn set_hook(&mut self, hook: Box<dyn CommHook>) {
        self.inner.set_hook(hook);
    }

    pub(crate) fn hook_mut(&mut self) -> Option<&mut dyn CommHook> {
        self.inner.hook_mut()
    }

    pub(crate) fn traffic(&self) -> Option<Traffic> {
        self.inner.traffic()
    }

    pub(crate) fn overlaps(&self) -> bool {
        self.inner.overlaps()
    }

    /// Begins a step with the gradients of `loss`.
    #[track_caller]
    pub(crate) fn begin(&mut self, share: Share, loss: &Tensor) -> Result<()> {
        if self.inner.has_begun() && !self.inner.overlaps() {
            self.others = GradStore::default(); // of the step that is forgotten
        }
        let Self { inner, variables, .. } = self;
        let coming = std::iter::once_with(|| variables.reached(loss)).flatten();
        let outcome = inner.begin(share, coming).map_err(Into::into);
        self.unless_another_goes_on(outcome)
    }

    /// Takes the gradient of a variable, complete but for what was accumulated, as the backward pass reports it. False if it is for candle, because no
    /// step is being made.
    pub(crate) fn arrive(&mut self, id: TensorId, grad: &Tensor) -> Result<bool> {
        let Some(&index) = self.variables.places.get(&id).filter(|_| self.inner.has_begun()) else {
            return Ok(false);
        };
        self.inner.ready(index, Candle::new(&self.group, OpKind::AllReduce, grad)?)?;
        Ok(true)
    }

    /// Ends the step: `grads` has more gradients of this rank, and then those of the global batch.
    pub(crate) fn finish(&mut self, grads: &mut GradStore) -> Result<()> {
        let outcome = self.end(grads);
        self.whole(outcome)
    }

    fn end(&mut self, grads: &mut GradStore) -> Result<()> {
        for (index, var) in self.variables.vars.iter().enumerate() {
            if let Some(grad) = grads.remove(var) {
                let grad = Candle::new(&self.group, OpKind::AllReduce, &grad)?;
                self.inner.ready(index, grad)?;
            }
        }
        let reduced = self.inner.finish()?;
        self.give(reduced, grads)
    }

    /// A whole step for gradients that are there already.
    #[track_caller]
    pub(crate) fn reduce(&mut self, grads: &mut GradStore, share: Share) -> Result<()> {
        let reduced = match gradients(&self.variables.vars, grads, &self.group) {
            Ok(mine) => self.inner.reduce(mine, share).map_err(Into::into),
            Err(error) => Err(error),
        };
        let outcome = reduced.and_then(|reduced| self.give(reduced, grads));
        self.unless_another_goes_on(outcome)
    }

    /// `None` if no rank takes part any more.
    #[track_caller]
    pub(crate) fn join(&mut self) -> Result<Option<GradStore>> {
        self.others = GradStore::default();
        let Some(reduced) = self.inner.join()? else { return Ok(None) };
        let mut grads = GradStore::default();
        self.give(reduced, &mut grads)?;
        Ok(Some(grads))
    }

    fn give(&mut self, reduced: Gradients<Candle>, grads: &mut GradStore) -> Result<()> {
        put(&self.variables.vars, reduced, grads);
        Ok(grads.extend(std::mem::take(&mut self.others))?)
    }

    /// Adds gradients to those that the next step sends.
    pub(crate) fn keep(&mut self, grads: GradStore) -> Result<()> {
        let outcome = self.add(grads);
        self.whole(outcome)
    }

    fn add(&mut self, mut grads: GradStore) -> Result<()> {
        for (index, var) in self.variables.vars.iter().enumerate() {
            if let Some(grad) = grads.remove(var) {
                self.inner.keep(index, Candle::new(&self.group, OpKind::AllReduce, &grad)?)?;
            }
        }
        Ok(self.others.extend(grads)?)
    }

    /// The backward pass has failed.
    pub(crate) fn give_up(&mut self, reason: &str) {
        self.inner.give_up(reason);
        self.others = GradStore::default();
    }

    /// After a failure nothing is left of what was accumulated: part of it may be gone.
    fn whole<R>(&mut self, outcome: Result<R>) -> Result<R> {
        if outcome.is_err() {
            self.inner.forget();
            self.others = GradStore::default();
        }
        outcome
    }

    /// As [`whole`](Self::whole), unless a step was refused in the middle of another, which goes on with all that is its own.
    fn unless_another_goes_on<R>(&mut self, outcome: Result<R>) -> Result<R> {
        if self.inner.has_begun() { outcome } else { self.whole(outcome) }
    }

    /// Buckets under way.
    #[cfg(test)]
    pub(crate) fn launched(&self) -> usize {
        self.inner.launched()
    }
}

/// Replaces this rank's gradients by the means over all ranks, without anything that is kept from step to step.
#[track_caller]
pub(crate) fn average(parameters: Vec<Parameter>, grads: &mut GradStore, group: &impl Group) -> Result<()> {
    let (vars, parameters) = differentiable(parameters, |p| p.var.dtype(), group)?;
    let mine = gradients(&vars, grads, group)?;
    let reduced = phalanx_train::sync_gradients(parameters, mine, group.host())?;
    put(&vars, reduced, grads);
    Ok(())
}

/// This rank's gradients of the variables.
fn gradients(vars: &[Var], grads: &GradStore, group: &impl Group) -> Result<Gradients<Candle>> {
    let of = |var: &Var| grads.get(var).map(|grad| Candle::new(group, OpKind::AllReduce, grad)).transpose();
    Ok(vars.iter().map(of).collect::<phalanx::Result<_>>()?)
}

/// Gives the variables these gradients, and no others.
pub(crate) fn put(vars: &[Var], reduced: Gradients<Candle>, grads: &mut GradStore) {
    for (var, grad) in vars.iter().zip(reduced) {
        match grad {
            Some(grad) => grads.insert(var, grad.into_tensor()),
            None => grads.remove(var),
        };
    }
}
