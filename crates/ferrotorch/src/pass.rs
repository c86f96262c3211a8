//! A backward pass during which gradients are sent.

use crate::error::{of_tensors, told};
use crate::parameters::Named;
use ferrotorch_core::{FerrotorchResult, Float, HookHandle, Tensor};
use phalanx_train::{Array, Error, Gradients, Reducer, Share};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a loss uses parameters.
pub(crate) struct Uses {
    /// Of each parameter, by how many operations: so often is something added to its gradient, at most.
    counts: Vec<usize>,
    /// Those that are used, the nearest to the loss first, where a backward pass begins.
    order: Vec<usize>,
}

impl Uses {
    /// Walks from `loss` to the parameters.
    pub(crate) fn of<T: Float>(loss: &Tensor<T>, named: &[Named<T>]) -> Self {
        let places: HashMap<_, _> =
            named.iter().enumerate().map(|(index, named)| (named.tensor.id(), index)).collect();
        let (mut counts, mut order) = (vec![0; named.len()], Vec::new());
        let (mut seen, mut next) = (HashSet::from([loss.id()]), VecDeque::from([loss]));
        while let Some(node) = next.pop_front() {
            let Some(operation) = node.grad_fn() else { continue };
            for input in operation.inputs() {
                if let Some(&index) = places.get(&input.id()) {
                    if counts[index] == 0 {
                        order.push(index);
                    }
                    counts[index] += 1;
                }
                if seen.insert(input.id()) {
                    next.push_back(input);
                }
            }
        }
        Self { counts, order }
    }
}

/// A reducer that hooks reach while a pass runs.
struct Pass {
    reducer: Reducer<Array>,
    /// How often each parameter's gradient is still to be added to.
    left: Vec<usize>,
    failure: Option<Error>,
}

impl Pass {
    /// Something was added to the gradient of a parameter. With the last addition it is complete.
    fn added<T: Float>(&mut self, index: usize, parameter: &Tensor<T>) {
        self.left[index] = self.left[index].saturating_sub(1);
        if self.left[index] == 0 && self.failure.is_none() {
            let named = Named { name: String::new(), tensor: parameter.clone() };
            self.failure = self.send(index, named.gradient()).err();
        }
    }

    fn send(&mut self, index: usize, grad: FerrotorchResult<Option<Array>>) -> Result<(), Error> {
        match grad.map_err(of_tensors)? {
            Some(grad) => self.reducer.ready(index, grad),
            None => Ok(()),
        }
    }
}

/// Runs the backward pass of `loss`, with gradients sent as they are complete. Returns the reducer, and the gradients of all ranks.
#[track_caller]
pub(crate) fn run<T: Float>(
    mut reducer: Reducer<Array>,
    named: &[Named<T>],
    loss: &Tensor<T>,
    share: Share,
) -> (Reducer<Array>, FerrotorchResult<Gradients<Array>>) {
    let Uses { counts, mut order } = Uses::of(loss, named);
    // What earlier passes have left is sent too.
    let has_gradient = |index: &usize| named[*index].tensor.grad().is_ok_and(|grad| grad.is_some());
    let kept: Vec<usize> = (0..named.len()).filter(|&i| counts[i] == 0).filter(has_gradient).collect();
    order.extend(&kept);
    if let Err(error) = reducer.begin(share, order.iter().copied()) {
        return (reducer, Err(told(error)));
    }
    let pass = Arc::new(Mutex::new(Pass { reducer, left: counts.clone(), failure: None }));
    let outcome = with_hooks(&pass, named, &counts, || ferrotorch_core::backward(loss));
    let mut pass = into_inner(pass);
    if let Err(error) = outcome {
        // The other ranks wait for the rest.
        pass.reducer.give_up(&format!("its backward pass failed: {error}"));
        return (pass.reducer, Err(error));
    }
    // An operation may have nothing for one of its inputs: fewer additions than were counted.
    let incomplete = order.into_iter().filter(|&index| pass.left[index] > 0 || counts[index] == 0);
    for index in incomplete.collect::<Vec<_>>() {
        if pass.failure.is_none() {
            pass.failure = pass.send(index, named[index].gradient()).err();
        }
    }
    let finished = match pass.failure {
        Some(failure) => Err(failure),
        None => pass.reducer.finish(),
    };
    (pass.reducer, finished.map_err(told))
}

fn lock(pass: &Mutex<Pass>) -> MutexGuard<'_, Pass> {
    pass.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pass, once no hook has it.
fn into_inner(pass: Arc<Mutex<Pass>>) -> Pass {
    let pass = Arc::into_inner(pass).expect("all hooks were removed");
    pass.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Does something while each parameter that is used tells the pass of every addition to its gradient.
fn with_hooks<T: Float>(
    pass: &Arc<Mutex<Pass>>,
    named: &[Named<T>],
    counts: &[usize],
    work: impl FnOnce() -> FerrotorchResult<()>,
) -> FerrotorchResult<()> {
    let mut hooks: Vec<(&Tensor<T>, HookHandle)> = Vec::new();
    let mut outcome = Ok(());
    for (index, Named { tensor, .. }) in named.iter().enumerate().filter(|(index, _)| counts[*index] > 0) {
        let told = pass.clone();
        let hook = move |parameter: &Tensor<T>| lock(&told).added(index, parameter);
        match tensor.register_post_accumulate_grad_hook(hook) {
            Ok(handle) => hooks.push((tensor, handle)),
            Err(error) => outcome = Err(error),
        }
    }
    let outcome = outcome.and_then(|()| work());
    hooks
        .into_iter()
        .fold(outcome, |outcome, (tensor, handle)| outcome.and(tensor.remove_hook(handle).map(drop)))
}
