//! Buckets that are reduced one after the other.

use super::bytes::copy;
use super::traits::{Memory, Reduction};
use crate::{Plan, Result, Tensor, element};
use phalanx::backend::copy_slice;
use std::ops::DerefMut;
use std::sync::Arc;

/// One small buffer for all buckets, which stays in the cache. A gradient that is alone in its bucket is reduced where it lies.
pub(super) struct Sequential<T: Tensor, R> {
    plan: Arc<Plan<T::Device>>,
    room: R,
    /// The gradients of the bucket, and the factor of each.
    grads: Vec<Option<(T, Option<f64>)>>,
}

impl<T: Tensor, R: DerefMut<Target = [u64]>> Sequential<T, R> {
    /// `room` has the words of the largest bucket of several gradients.
    pub(super) fn new(room: R, plan: Arc<Plan<T::Device>>) -> Self {
        let grads = plan.parameters().iter().map(|_| None).collect();
        Self { plan, room, grads }
    }
}

impl<T: Tensor, R: DerefMut<Target = [u64]> + Send> Memory<T> for Sequential<T, R> {
    fn lay(&mut self, parameter: usize, grad: T, scale: Option<f64>) -> Result<()> {
        self.grads[parameter] = Some((grad, scale));
        Ok(())
    }

    fn skip(&mut self, parameter: usize) -> Result<()> {
        self.grads[parameter] = None;
        Ok(())
    }

    #[track_caller]
    fn launch(&mut self, at: usize, mut reduction: Reduction<'_>) -> Result<()> {
        let bucket = &self.plan.buckets()[at];
        if let [alone] = bucket.members[..] {
            let (grad, scale) = match &mut self.grads[alone] {
                Some(laid) => laid,
                none => none.insert((self.plan.zeros(alone)?, None)),
            };
            grad.write(|bytes| {
                if let Some(scale) = *scale {
                    element::multiply(bucket.dtype, bytes, scale);
                }
                reduction.perform(&self.plan, at, bytes)
            })??;
            return Ok(());
        }
        let room: &mut [u8] = bytemuck::cast_slice_mut(&mut self.room);
        let bytes = &mut room[..bucket.bytes()];
        for &member in &bucket.members {
            let place = &mut bytes[self.plan.home(member).1];
            match &self.grads[member] {
                Some((grad, scale)) => copy(grad, place, bucket.dtype, *scale)?,
                None => place.fill(0),
            }
        }
        Ok(reduction.perform(&self.plan, at, bytes)?)
    }

    fn land(&mut self, _: usize) -> Result<()> {
        Ok(())
    }

    fn lift(&mut self, parameter: usize) -> Result<T> {
        let (bucket, home) = self.plan.home(parameter);
        let mut grad = match self.grads[parameter].take() {
            Some((grad, _)) => grad,
            None => self.plan.zeros(parameter)?,
        };
        if self.plan.buckets()[bucket].members.len() > 1 {
            let room: &[u8] = bytemuck::cast_slice(&self.room);
            grad.write(|grad| copy_slice(grad, &room[home]))?;
        }
        Ok(grad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Array, Parameter};
    use phalanx::{ReduceOp, threads};

    #[test]
    fn small_gradients_travel_together_and_large_ones_where_they_lie() {
        let group = &threads(1)[0];
        let lengths = [3, 50, 2];
        let grads = lengths.map(|len| Array::from((0..len).map(|i| f64::from(i) + 0.5).collect::<Vec<_>>()));
        let places = grads.each_ref().map(|grad| grad.as_slice::<f64>().unwrap().as_ptr());
        let parameters = ["a", "b", "c"].iter().zip(&grads).map(|(name, grad)| Parameter::of(*name, grad));
        let plan = Arc::new(Plan::new(&parameters.collect(), &[0, 2, 1], 64));
        let mut memory = Sequential::new(vec![0; 5], plan.clone());
        for (index, grad) in grads.into_iter().enumerate() {
            memory.lay(index, grad, Some(2.0)).unwrap();
        }
        for (at, bucket) in plan.buckets().iter().enumerate() {
            memory.launch(at, Reduction { group, op: ReduceOp::Sum, hook: None }).unwrap();
            memory.land(at).unwrap();
            for &index in &bucket.members {
                let grad = memory.lift(index).unwrap();
                let grad = grad.as_slice::<f64>().unwrap();
                assert_eq!(grad.as_ptr(), places[index], "it stays where it was");
                assert!(grad.iter().zip(0..).all(|(&x, i)| x == f64::from(2 * i) + 1.0), "{grad:?}");
            }
        }
        assert_eq!(plan.buckets().iter().map(|b| &b.members[..]).collect::<Vec<_>>(), [&[0, 2][..], &[1]]);
        let travelled: &[f64] = bytemuck::cast_slice(&memory.room);
        assert_eq!(travelled, [1.0, 3.0, 5.0, 1.0, 3.0]);
    }
}
