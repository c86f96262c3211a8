//! The gradients of candle's backward pass, by the places that their variables have among all.

use crate::group::{Place, Ranks};
use crate::model::{Parameter, is_buffer};
use crate::sendable::{Candle, sent_as};
use crate::uses::Uses;
use crate::{DdpConfig, Group, Result, Share};
use candle_core::backprop::GradStore;
use candle_core::{DType, Tensor, TensorId, Var};
use phalanx::error::OpKind;
use phalanx_compress::{CommHook, Traffic};
use phalanx_train::{Gradients, Tensor as _};
use std::collections::HashMap;
use std::sync::Arc;

/// The variables that can have a gradient, and what reduces these.
#[derive(Debug)]
pub(crate) struct BackwardGradients {
    inner: phalanx_train::Reducer<Candle>,
    group: Ranks,
    variables: Variables,
    /// For each variable: how many nodes of this step's graph still report a gradient of it.
    expected: Vec<usize>,
    /// Sums of those that were reported, for the same step.
    reported: Gradients<Candle>,
    /// Whether they are reported for a step to come, and none is being made.
    collects: bool,
    /// Accumulated gradients of tensors that are none of our variables.
    others: GradStore,
}

/// The variables, in the order of their names.
#[derive(Debug)]
struct Variables {
    vars: Vec<Var>,
    /// The index of each variable in `vars`.
    places: HashMap<TensorId, usize>,
    uses: Arc<Uses>,
}

impl Variables {
    /// The variables that `loss` depends on, in the order in which the backward pass completes their gradients. Counts the nodes that report one.
    fn reached(&self, loss: &Tensor, expected: &mut [usize]) -> Vec<usize> {
        let nodes = loss.sorted_nodes();
        expected.fill(0);
        for node in &nodes {
            let variable = self.uses.variable(node.id());
            if let Some(&index) = variable.and_then(|variable| self.places.get(&variable)) {
                expected[index] += 1;
            }
        }
        nodes.iter().filter_map(|node| self.places.get(&node.id()).copied()).collect()
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
        uses: Arc<Uses>,
    ) -> Result<Self> {
        let (vars, parameters) = differentiable(parameters, wire, group)?;
        let cap_bytes = config.bucket_cap_bytes;
        let mut inner = phalanx_train::Reducer::new(parameters, group.host(), cap_bytes, overlap)?;
        inner.set_missing_gradients(config.missing_gradients);
        let places = vars.iter().enumerate().map(|(at, var)| (var.id(), at)).collect();
        let (expected, reported) = (vec![0; vars.len()], vars.iter().map(|_| None).collect());
        let variables = Variables { vars, places, uses };
        let others = GradStore::default();
        let group = group.clone();
        Ok(Self { inner, group, variables, expected, reported, collects: false, others })
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
        if !self.inner.has_begun() {
            self.reported.fill_with(|| None); // of a backward pass that failed
        } else if !self.inner.overlaps() {
            // Of the step that is forgotten.
            self.reported.fill_with(|| None);
            self.others = GradStore::default();
        }
        let Self { inner, variables, expected, .. } = self;
        let coming = std::iter::once_with(|| variables.reached(loss, expected)).flatten();
        let outcome = inner.begin(share, coming).map_err(Into::into);
        self.unless_another_goes_on(outcome)
    }

    /// Takes a gradient of a variable, as a node of the graph reports it. False if it is for candle, because no step is being made.
    pub(crate) fn arrive(&mut self, id: TensorId, grad: &Tensor) -> Result<bool> {
        let is_ours = self.collects || self.inner.has_begun();
        let Some(&index) = self.variables.places.get(&id).filter(|_| is_ours) else {
            return Ok(false);
        };
        let mut grad = Candle::new(&self.group, OpKind::AllReduce, grad)?;
        if let Some(before) = self.reported[index].take() {
            grad = sum(before, grad, &self.variables.vars[index])?;
        }
        self.expected[index] = self.expected[index].saturating_sub(1);
        let is_sent = self.inner.overlaps() && !self.collects;
        // What is not sent before the end waits: candle's store may have more for this variable.
        if is_sent && self.expected[index] == 0 {
            self.inner.ready(index, grad)?;
        } else {
            self.reported[index] = Some(grad);
        }
        Ok(true)
    }

    /// Ends the step: `grads` has more gradients of this rank, and then those of the global batch.
    pub(crate) fn finish(&mut self, grads: &mut GradStore) -> Result<()> {
        let outcome = self.end(grads);
        self.whole(outcome)
    }

    fn end(&mut self, grads: &mut GradStore) -> Result<()> {
        for (index, var) in self.variables.vars.iter().enumerate() {
            let stored = grads.remove(var);
            let stored = stored.map(|grad| Candle::new(&self.group, OpKind::AllReduce, &grad)).transpose()?;
            let grad = match (self.reported[index].take(), stored) {
                (Some(reported), Some(stored)) => Some(sum(reported, stored, var)?),
                (reported, stored) => reported.or(stored),
            };
            if let Some(grad) = grad {
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

    /// A backward pass begins whose gradients the next step sends, unless a step is being made: then they are candle's.
    pub(crate) fn collect(&mut self) {
        if !self.inner.has_begun() {
            self.reported.fill_with(|| None);
            self.collects = true;
        }
    }

    /// Ends it. Returns the gradients that were reported.
    pub(crate) fn collected(&mut self) -> Gradients<Candle> {
        let none: Gradients<Candle> = self.reported.iter().map(|_| None).collect();
        if std::mem::take(&mut self.collects) { std::mem::replace(&mut self.reported, none) } else { none }
    }

    /// Adds gradients to those that the next step sends.
    pub(crate) fn keep(&mut self, reported: Gradients<Candle>, grads: GradStore) -> Result<()> {
        let outcome = self.add(reported, grads);
        self.whole(outcome)
    }

    fn add(&mut self, reported: Gradients<Candle>, mut grads: GradStore) -> Result<()> {
        for ((index, var), reported) in self.variables.vars.iter().enumerate().zip(reported) {
            let stored = grads.remove(var);
            let stored = stored.map(|grad| Candle::new(&self.group, OpKind::AllReduce, &grad)).transpose()?;
            for grad in [reported, stored].into_iter().flatten() {
                self.inner.keep(index, grad)?;
            }
        }
        Ok(self.others.extend(grads)?)
    }

    /// The backward pass has failed.
    pub(crate) fn give_up(&mut self, reason: &str) {
        self.inner.give_up(reason);
        self.reported.fill_with(|| None);
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

/// The sum of two gradients of a variable, in its type.
fn sum(a: Candle, b: Candle, var: &Var) -> Result<Candle> {
    let dtype = Candle::local(var)?.dtype;
    Ok(a.to_dtype(dtype)?.add(b.to_dtype(dtype)?)?)
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
