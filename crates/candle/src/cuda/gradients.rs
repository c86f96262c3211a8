//! Gradients on a GPU: reduced where they lie, those of a bucket as one launch.

use super::{Loan, OnGpu};

use crate::element::{unsupported_dtype, with_element};
use crate::group::Place;
use crate::sendable::{Candle, told};
use candle_core::{Storage, Tensor};
use phalanx::error::OpKind;
use phalanx::{CallSite, DType, Error, ReduceOp};
use phalanx_nccl::HybridGroup;
use phalanx_train::memory::{Memory, Reduction, Sending};
use phalanx_train::{Plan, Result, Tensor as _};
use std::collections::HashMap;
use std::sync::Arc;

/// The memory in which the gradients of `plan` are reduced, if all are on this rank's GPU; `None` if none is on a GPU.
pub(crate) fn memory(plan: &Arc<Plan<Place>>, sending: Sending) -> Result<Option<Gradients>> {
    let mut hybrids = plan.parameters().iter().map(|parameter| parameter.device.hybrid());
    let Some(Some(hybrid)) = hybrids.clone().find(Option::is_some) else { return Ok(None) };
    if hybrids.any(|hybrid| hybrid.is_none()) {
        let hint = "some variables are on the CPU, others on a GPU; bring them together".to_owned();
        return Err(Error::Unsupported { op: OpKind::AllReduce, backend: "hybrid", hint }.into());
    }
    let all = plan.parameters().len();
    let mut grads = Vec::new();
    grads.resize_with(all, || None);
    let mut flights = Vec::new();
    flights.resize_with(plan.buckets().len(), || None);
    let (hybrid, owners) = (hybrid.clone(), HashMap::new());
    Ok(Some(Gradients { plan: plan.clone(), sending, hybrid, grads, owners, flights }))
}

/// The gradients of one step on a GPU. Nothing here waits for a device.
pub(crate) struct Gradients {
    plan: Arc<Plan<Place>>,
    sending: Sending,
    hybrid: HybridGroup,
    grads: Vec<Option<Candle>>,
    /// The gradient that each piece of memory belongs to: no gradient may be reduced twice.
    owners: HashMap<usize, usize>,
    /// The operation that is under way, for each bucket.
    flights: Vec<Option<Box<dyn Flight>>>,
}

impl Memory<Candle> for Gradients {
    fn lay(&mut self, parameter: usize, mut grad: Candle, scale: Option<f64>) -> Result<()> {
        let memory = address(grad.tensor());
        let owner = self.owners.get(&memory).and_then(|&owner| self.grads[owner].as_ref());
        if owner.is_some_and(|owner| address(owner.tensor()) == memory) {
            if self.sending == Sending::During {
                let name = &self.plan.parameters()[parameter].name;
                let what =
                    format!("the gradient of `{name}` shares its memory with another that is under way");
                return Err(Error::misuse(OpKind::AllReduce, what).into());
            }
            grad = grad.copied()?;
        }
        if let Some(scale) = scale {
            grad.multiply(scale)?;
        }
        self.owners.insert(address(grad.tensor()), parameter);
        self.grads[parameter] = Some(grad);
        Ok(())
    }

    fn skip(&mut self, parameter: usize) -> Result<()> {
        self.grads[parameter] = None;
        Ok(())
    }

    #[track_caller]
    fn launch(&mut self, at: usize, reduction: Reduction<'_>) -> Result<()> {
        let (bucket, Reduction { group, op, hook }) = (&self.plan.buckets()[at], reduction);
        if hook.is_some() && bucket.dtype == DType::F32 {
            let hint = "hooks see memory of the host only; send gradients on a GPU as they are".to_owned();
            return Err(Error::Unsupported { op: OpKind::AllReduce, backend: "hybrid", hint }.into());
        }
        let mut tensors = Vec::with_capacity(bucket.members.len());
        for &member in &bucket.members {
            let grad = match self.grads[member].take() {
                Some(grad) => grad,
                None => self.plan.zeros::<Candle>(member)?,
            };
            tensors.push(self.grads[member].insert(grad).tensor().clone());
        }
        let (hybrid, site) = (&self.hybrid, group.site());
        let Some(first) = tensors.first() else { return Ok(()) };
        let flight: Box<dyn Flight> = with_element!(first.dtype(),
            T => Box::new(Launched::<T>::new(&tensors, hybrid, op, site)?),
            other => return Err(unsupported_dtype(group, OpKind::AllReduce, other).into()),
        );
        self.flights[at] = Some(flight);
        Ok(())
    }

    fn land(&mut self, bucket: usize) -> Result<()> {
        self.flights[bucket].take().map_or(Ok(()), Flight::land)
    }

    fn lift(&mut self, parameter: usize) -> Result<Candle> {
        match self.grads[parameter].take() {
            Some(grad) => Ok(grad),
            None => self.plan.zeros(parameter),
        }
    }
}

/// The address of the tensor's memory, which differs between tensors that exist at the same time.
fn address(tensor: &Tensor) -> usize {
    std::ptr::from_ref::<Storage>(&tensor.storage_and_layout().0) as usize
}

/// A bucket under way.
trait Flight: Send {
    /// Makes candle's stream wait for the operation, and gives the tensors their memory back.
    fn land(self: Box<Self>) -> Result<()>;
}

/// The gradients, whose memory is away. The group looks after the operation.
struct Launched<T: OnGpu>(Vec<Loan<T>>);

impl<T: OnGpu> Launched<T> {
    /// Begins to reduce all of them, behind what candle has enqueued.
    fn new(tensors: &[Tensor], hybrid: &HybridGroup, op: ReduceOp, site: CallSite) -> Result<Self> {
        let lend = |tensor| Loan::<T>::of(tensor, hybrid).map_err(within);
        let mut loans = tensors.iter().map(lend).collect::<Result<Vec<_>>>()?;
        let mut batch = hybrid.batch();
        for loan in &mut loans {
            batch.all_reduce(loan.buffer(), op)?;
        }
        let _ = hybrid.launch_at(&batch, site)?;
        Ok(Self(loans))
    }
}

impl<T: OnGpu> Flight for Launched<T> {
    fn land(self: Box<Self>) -> Result<()> {
        self.0.into_iter().map(Loan::end).fold(Ok(()), crate::Result::and).map_err(within)
    }
}

/// An error of this crate where only those of the group and of candle can be told.
fn within(error: crate::Error) -> phalanx_train::Error {
    match error {
        crate::Error::Group(error) => error.into(),
        crate::Error::Candle(error) => told(error),
        other => phalanx_train::Error::Tensors(other.into()),
    }
}
