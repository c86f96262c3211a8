//! Gradients in memory that the host can't see are reduced where they are, by a `Memory` of their own.

mod common;

use common::{ALL, MODEL, everywhere, gradient, number, parameters, sum};
use phalanx::{DType, ProcessGroup};
use phalanx_train::element::all_reduce;
use phalanx_train::memory::{Memory, Reduction, Sending};
use phalanx_train::{Array, Error, Plan, Reducer, Result, Share, Tensor, clip_grad_norm};
use std::sync::Arc;

/// An array whose numbers nobody but its own library sees.
#[derive(Debug, Clone, PartialEq)]
struct Far(Array);

impl Tensor for Far {
    type Device = ();

    fn dtype(&self) -> DType {
        self.0.dtype()
    }

    fn dims(&self) -> &[usize] {
        self.0.dims()
    }

    fn device(&self) {}

    fn zeros(dtype: DType, dims: &[usize], device: &()) -> Result<Self> {
        Array::zeros(dtype, dims, device).map(Self)
    }

    fn to_dtype(self, dtype: DType) -> Result<Self> {
        self.0.to_dtype(dtype).map(Self)
    }

    fn add(self, other: Self) -> Result<Self> {
        self.0.add(other.0).map(Self)
    }

    fn read<R>(&self, _: impl FnOnce(&[u8]) -> R) -> Result<R> {
        Err(Error::Tensors("the host can't see it".into()))
    }

    fn write<R>(&mut self, _: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        Err(Error::Tensors("the host can't see it".into()))
    }

    fn multiply(&mut self, by: f64) -> Result<()> {
        self.0.multiply(by)
    }

    fn shrink(&mut self, by: f64) -> Result<()> {
        self.0.shrink(by)
    }

    fn sum_of_squares(&self) -> Result<f64> {
        self.0.sum_of_squares()
    }

    fn memory(plan: &Arc<Plan<()>>, _: Sending, _: &ProcessGroup) -> Result<Option<Box<dyn Memory<Self>>>> {
        let grads = vec![None; plan.parameters().len()];
        Ok(Some(Box::new(InPlace { grads, plan: plan.clone() })))
    }
}

/// Each gradient is reduced where it lies.
struct InPlace {
    plan: Arc<Plan<()>>,
    grads: Vec<Option<Far>>,
}

impl Memory<Far> for InPlace {
    fn lay(&mut self, parameter: usize, mut grad: Far, scale: Option<f64>) -> Result<()> {
        if let Some(scale) = scale {
            grad.multiply(scale)?;
        }
        self.grads[parameter] = Some(grad);
        Ok(())
    }

    fn skip(&mut self, parameter: usize) -> Result<()> {
        self.grads[parameter] = Some(self.plan.zeros(parameter)?);
        Ok(())
    }

    fn launch(&mut self, bucket: usize, Reduction { group, op, .. }: Reduction<'_>) -> Result<()> {
        for &member in &self.plan.buckets()[bucket].members {
            let Far(grad) = self.grads[member].as_mut().expect("it was laid or skipped");
            let dtype = grad.dtype();
            grad.write(|bytes| all_reduce(group, dtype, bytes, op))??;
        }
        Ok(())
    }

    fn land(&mut self, _: usize) -> Result<()> {
        Ok(())
    }

    fn lift(&mut self, parameter: usize) -> Result<Far> {
        Ok(self.grads[parameter].take().expect("its bucket was launched"))
    }
}

#[test]
fn steps_are_the_same_wherever_gradients_are() {
    everywhere(3, |group, mode| {
        let parameters: Vec<_> = parameters();
        let mut reducer = Reducer::<Far>::new(parameters, &group, 100, mode).unwrap();
        let far = |index, step| Far(gradient(index, group.rank(), step, 3.0));
        for step in 0..4 {
            // Each rank leaves one out, and nobody has the last.
            let used = |index: usize, rank: usize| index != rank + step && index != ALL - 1;
            let mine = || (0..ALL).filter(|&index| used(index, group.rank()));
            mine()
                .filter(|index| step == 2 && index % 2 == 0)
                .for_each(|i| reducer.keep(i, far(i, 7)).unwrap());
            reducer.begin(Share::EQUAL, mine()).unwrap();
            mine().for_each(|i| reducer.ready(i, far(i, step)).unwrap());
            for (index, found) in reducer.finish().unwrap().into_iter().enumerate() {
                let users: Vec<_> = (0..3).filter(|&rank| used(index, rank)).collect();
                let expected = (!users.is_empty()).then(|| {
                    let now = sum(index, &users, step);
                    let kept = step == 2 && index % 2 == 0;
                    Far(if kept { now.add(sum(index, &users, 7)).unwrap() } else { now })
                });
                assert_eq!(found, expected, "{} in step {step}", MODEL[index].0);
            }
        }
    });
}

#[test]
fn weights_joins_and_clipping_need_no_host_either() {
    everywhere(2, |group, mode| {
        let mut reducer = Reducer::<Far>::new(parameters(), &group, 100, mode).unwrap();
        let far = |index, factor| Some(Far(gradient(index, group.rank(), 0, factor)));
        let share = Share::new([3, 1][group.rank()], 4);
        let found = reducer.reduce((0..ALL).map(|index| far(index, 4.0)).collect(), share).unwrap();
        for (index, found) in found.into_iter().enumerate() {
            let weighed = |e| 3.0 * number(index, 0, 0, e) + number(index, 1, 0, e);
            assert_eq!(found, Some(Far(common::array(index, weighed))));
        }
        let mut found = match group.rank() {
            0 => reducer.reduce((0..ALL).map(|index| far(index, 2.0)).collect(), Share::EQUAL).unwrap(),
            _ => reducer.join().unwrap().expect("rank 0 has a batch"),
        };
        let expected = |index| Some(Far(gradient(index, 0, 0, 2.0)));
        assert_eq!(found, (0..ALL).map(expected).collect::<Vec<_>>());
        let before = clip_grad_norm(&mut found, 1.0).unwrap();
        assert!(before > 1.0);
        assert!((clip_grad_norm(&mut found, 1.0).unwrap() - 1.0).abs() < 1e-2, "rounded to 16 bits");
    });
}
