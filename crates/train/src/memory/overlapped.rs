//! Buckets that are under way together, while the program goes on.

use super::bytes::copy;
use super::traits::{Memory, Reduction};
use crate::element::{unsupported, with_float};
use crate::{Plan, Result, Tensor};
use phalanx::backend::copy_slice;
use phalanx::error::OpKind;
use phalanx::{Element, Error, ProcessGroup, ReduceOp, RegisteredBuffer, Work};
use std::sync::Arc;

/// A room for each bucket, into which gradients are copied as they come.
pub(super) struct Overlapped<T: Tensor> {
    plan: Arc<Plan<T::Device>>,
    rooms: Vec<Box<dyn Room>>,
    grads: Vec<Option<T>>,
}

impl<T: Tensor> Overlapped<T> {
    /// Collective.
    #[track_caller]
    pub(super) fn new(plan: Arc<Plan<T::Device>>, group: &ProcessGroup) -> Result<Self> {
        let mut rooms = Vec::new();
        for bucket in plan.buckets() {
            rooms.push(with_float!(bucket.dtype,
                E => room::<E>(group, bucket.elements)?,
                other => return Err(unsupported(group, OpKind::AllReduce, other).into()),
            ));
        }
        let grads = plan.parameters().iter().map(|_| None).collect();
        Ok(Self { plan, rooms, grads })
    }
}

impl<T: Tensor> Memory<T> for Overlapped<T> {
    fn lay(&mut self, parameter: usize, grad: T, scale: Option<f64>) -> Result<()> {
        let (bucket, home) = self.plan.home(parameter);
        let dtype = self.plan.buckets()[bucket].dtype;
        copy(&grad, &mut self.rooms[bucket].bytes()?[home], dtype, scale)?;
        self.grads[parameter] = Some(grad);
        Ok(())
    }

    fn skip(&mut self, parameter: usize) -> Result<()> {
        let (bucket, home) = self.plan.home(parameter);
        self.rooms[bucket].bytes()?[home].fill(0);
        self.grads[parameter] = None;
        Ok(())
    }

    #[track_caller]
    fn launch(&mut self, bucket: usize, reduction: Reduction<'_>) -> Result<()> {
        Ok(self.rooms[bucket].launch(reduction.group, reduction.op)?)
    }

    fn land(&mut self, bucket: usize) -> Result<()> {
        Ok(self.rooms[bucket].land()?)
    }

    fn lift(&mut self, parameter: usize) -> Result<T> {
        let mut grad = match self.grads[parameter].take() {
            Some(grad) => grad,
            None => self.plan.zeros(parameter)?,
        };
        let (bucket, home) = self.plan.home(parameter);
        let bytes = &self.rooms[bucket].bytes()?[home];
        grad.write(|grad| copy_slice(grad, bytes))?;
        Ok(grad)
    }
}

/// A bucket's registered memory, which an operation owns while it is in flight.
trait Room: Send {
    /// The gradients, end to end.
    ///
    /// # Errors
    /// While they are in flight, and after an operation that failed: that took them along.
    fn bytes(&mut self) -> phalanx::Result<&mut [u8]>;
    /// Begins to reduce them.
    fn launch(&mut self, group: &ProcessGroup, op: ReduceOp) -> phalanx::Result<()>;
    /// Waits until they are reduced.
    fn land(&mut self) -> phalanx::Result<()>;
}

/// A room for `elements` gradients of one type, all zero. Collective.
#[track_caller]
fn room<E: Element>(group: &ProcessGroup, elements: usize) -> phalanx::Result<Box<dyn Room>> {
    Ok(Box::new(State::Here(group.alloc::<E>(elements)?)))
}

enum State<E: Element> {
    Here(RegisteredBuffer<E>),
    InFlight(Work<RegisteredBuffer<E>>),
    Lost,
}

impl<E: Element> Room for State<E> {
    fn bytes(&mut self) -> phalanx::Result<&mut [u8]> {
        match self {
            Self::Here(buffer) => Ok(bytemuck::cast_slice_mut(buffer)),
            _ => Err(lost()),
        }
    }

    #[track_caller]
    fn launch(&mut self, group: &ProcessGroup, op: ReduceOp) -> phalanx::Result<()> {
        match std::mem::replace(self, Self::Lost) {
            Self::Here(buffer) => *self = Self::InFlight(group.all_reduce_async(buffer, op)?),
            _ => return Err(lost()),
        }
        Ok(())
    }

    fn land(&mut self) -> phalanx::Result<()> {
        match std::mem::replace(self, Self::Lost) {
            Self::InFlight(work) => *self = Self::Here(work.wait()?),
            _ => return Err(lost()),
        }
        Ok(())
    }
}

fn lost() -> Error {
    Error::misuse(OpKind::AllReduce, "an operation that failed took the buckets along; wrap the model anew")
}
