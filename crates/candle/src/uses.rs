//! The places in a graph from which a variable's gradients come to a step, past candle's own store: there each of them would be added to a tensor of zeros first.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, TensorId};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Nodes of graphs that report a gradient of a variable, each with this variable.
#[derive(Debug, Default)]
pub(crate) struct Uses(Mutex<HashMap<TensorId, TensorId>>);

impl Uses {
    pub(crate) fn add(&self, node: TensorId, var: TensorId) {
        self.lock().insert(node, var);
    }

    /// The variable whose gradient `node` reports.
    pub(crate) fn variable(&self, node: TensorId) -> Option<TensorId> {
        self.lock().get(&node).copied()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TensorId, TensorId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    static IS_ASKED: Cell<bool> = const { Cell::new(false) };
    static ANSWER: RefCell<Option<Source>> = const { RefCell::new(None) };
}

/// Has `get` take a variable from a `VarBuilder`. If that is one of a model whose gradients are sent, there is a source too: the tensor is the variable itself then, and a
/// layer gives its gradients to the source. candle's traits leave no other way to say so.
pub(crate) fn ask(get: impl FnOnce() -> Result<Tensor>) -> Result<(Tensor, Option<Source>)> {
    IS_ASKED.set(true);
    let tensor = get();
    IS_ASKED.set(false);
    let source = ANSWER.take();
    Ok((tensor?, source))
}

pub(crate) fn is_asked() -> bool {
    IS_ASKED.get()
}

pub(crate) fn answer(source: Source) {
    ANSWER.set(Some(source));
}

/// Takes gradients.
pub(crate) trait Receiver: Send + Sync {
    /// A gradient of `var` goes to the step that is being made, or back to candle.
    fn arrived(&self, var: &Tensor, grad: &Tensor) -> Result<Option<Tensor>>;
}

/// Where a layer's gradients of a variable go.
#[derive(Clone)]
pub(crate) struct Source {
    receiver: Arc<dyn Receiver>,
    uses: Arc<Uses>,
}

impl Source {
    pub(crate) fn new(receiver: Arc<dyn Receiver>, uses: Arc<Uses>) -> Self {
        Self { receiver, uses }
    }

    /// What stands for `var` among the arguments of an operation that has the variable itself.
    pub(crate) fn stand_in(&self, var: &Tensor) -> Result<StandIn> {
        let (source, node) = (self.clone(), OnceLock::new());
        let place = Arc::new(Place { source, grad: Mutex::default(), node });
        let token = var.apply_op1(StandInOp(place.clone()))?;
        let _ = place.node.set(token.id());
        self.uses.add(token.id(), var.id());
        Ok(StandIn { token, place })
    }
}

/// One number in a variable's place: candle allocates and adds up gradients of its size, not of the variable's.
pub(crate) struct StandIn {
    pub(crate) token: Tensor,
    place: Arc<Place>,
}

impl StandIn {
    /// Takes the variable's gradient. What is returned is for candle, which must not miss one of the token.
    pub(crate) fn give(&self, grad: Tensor) -> Result<Tensor> {
        *self.place.lock() = Some(grad);
        self.token.zeros_like()
    }
}

/// Where the gradient is from the backward pass of the operation to that of the token.
struct Place {
    source: Source,
    grad: Mutex<Option<Tensor>>,
    node: OnceLock<TensorId>,
}

impl Place {
    fn lock(&self) -> MutexGuard<'_, Option<Tensor>> {
        self.grad.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(node) = self.node.get() {
            self.source.uses.lock().remove(node);
        }
    }
}

struct StandInOp(Arc<Place>);

impl CustomOp1 for StandInOp {
    fn name(&self) -> &'static str {
        "phalanx-stand-in"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.0]), Shape::from(1)))
    }

    fn bwd(&self, arg: &Tensor, _res: &Tensor, _grad_res: &Tensor) -> Result<Option<Tensor>> {
        match self.0.lock().take() {
            Some(grad) => self.0.source.receiver.arrived(arg, &grad),
            None => Ok(None),
        }
    }
}
