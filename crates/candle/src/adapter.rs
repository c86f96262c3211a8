//! The implementation of `phalanx-train`'s trait `Tensor` for candle's tensors.

use crate::element::{assign, bytes_mut_anywhere, on_host, read, with_element};
use crate::group::Place;
use crate::sendable::{Candle, candles, told, unknown};
use candle_core::Tensor;
use phalanx::DType;
#[cfg(feature = "cuda")]
use phalanx::ProcessGroup;
#[cfg(feature = "cuda")]
use phalanx_train::Plan;
#[cfg(feature = "cuda")]
use phalanx_train::memory::{Memory, Sending};
use phalanx_train::{AdamWStep, Result, SgdParams, SgdStep, adamw_on_host, element, sgd_on_host};
use std::ops::Range;

impl phalanx_train::Tensor for Candle {
    type Device = Place;

    const NO_GRADIENT_HINT: &'static str = crate::error::NO_GRADIENT_HINT;

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn dims(&self) -> &[usize] {
        self.tensor.dims()
    }

    fn device(&self) -> Place {
        self.place.clone()
    }

    fn zeros(dtype: DType, dims: &[usize], place: &Place) -> Result<Self> {
        let tensor = Tensor::zeros(dims, candles(dtype)?, place.device()).map_err(told)?;
        Ok(Self { tensor, dtype, place: place.clone() })
    }

    fn to_dtype(self, dtype: DType) -> Result<Self> {
        let tensor = self.tensor.to_dtype(candles(dtype)?).and_then(|tensor| tensor.contiguous());
        Ok(Self { tensor: tensor.map_err(told)?, dtype, place: self.place })
    }

    fn add(self, other: Self) -> Result<Self> {
        let alike = self.dtype == other.dtype && self.tensor.shape() == other.tensor.shape();
        if self.tensor.device().is_cpu() && alike && self.tensor.is_contiguous() {
            // What is added up here is nobody else's: parts of one gradient that were kept for the others.
            let mut sum = self;
            let dtype = sum.dtype;
            other.read(|more| sum.write(|bytes| element::add(dtype, bytes, more)))??;
            return Ok(sum);
        }
        Ok(Self { tensor: (self.tensor + other.tensor).map_err(told)?, ..self })
    }

    fn read<R>(&self, look: impl FnOnce(&[u8]) -> R) -> Result<R> {
        with_element!(self.tensor.dtype(),
            T => on_host(&self.tensor).and_then(|here| read::<T, _>(&here, |values| look(bytemuck::cast_slice(values)))).map_err(told),
            other => Err(unknown(other.as_str())),
        )
    }

    fn write<R>(&mut self, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        bytes_mut_anywhere(&self.tensor, change).map_err(told)
    }

    /// Of a tensor on a GPU these elements alone are copied to the host.
    fn read_range(&self, elements: Range<usize>) -> Result<Vec<u8>> {
        let (tensor, range) = if self.tensor.device().is_cpu() {
            (self.tensor.clone(), elements)
        } else {
            let part =
                || self.tensor.flatten_all()?.narrow(0, elements.start, elements.len())?.force_contiguous();
            (part().and_then(|part| on_host(&part)).map_err(told)?, 0..elements.len())
        };
        with_element!(tensor.dtype(),
            T => read::<T, _>(&tensor, |all| bytemuck::cast_slice(&all[range]).to_vec()).map_err(told),
            other => Err(unknown(other.as_str())),
        )
    }

    /// On a GPU by candle, into new memory.
    fn multiply(&mut self, by: f64) -> Result<()> {
        if self.tensor.device().is_cpu() {
            let dtype = self.dtype;
            return self.write(|bytes| element::multiply(dtype, bytes, by));
        }
        self.tensor = (&self.tensor * by).map_err(told)?;
        Ok(())
    }

    /// On a GPU by candle, into new memory.
    fn shrink(&mut self, by: f64) -> Result<()> {
        if self.tensor.device().is_cpu() {
            let dtype = self.dtype;
            return self.write(|bytes| element::shrink(dtype, bytes, by));
        }
        self.tensor = shrunk(&self.tensor, by).map_err(told)?;
        Ok(())
    }

    /// On a GPU by candle.
    fn sum_of_squares(&self) -> Result<f64> {
        if self.tensor.device().is_cpu() {
            return self.read(|bytes| element::sum_of_squares(self.dtype, bytes));
        }
        let squares = || self.tensor.to_dtype(candle_core::DType::F64)?.sqr()?.sum_all()?.to_scalar();
        squares().map_err(told)
    }

    /// On a GPU by candle.
    fn is_finite(&self) -> Result<bool> {
        if self.tensor.device().is_cpu() {
            return self.read(|bytes| element::is_finite(self.dtype, bytes));
        }
        // Zero times what is not finite is not a number.
        let nothing =
            || (self.tensor.to_dtype(candle_core::DType::F64)? * 0.0)?.sum_all()?.to_scalar::<f64>();
        Ok(nothing().map_err(told)? == 0.0)
    }

    /// On a GPU by the operations of candle's own, with new memory for moments.
    fn adamw(&mut self, first: &mut Self, second: &mut Self, grad: &Self, step: &AdamWStep) -> Result<()> {
        if self.tensor.device().is_cpu() {
            return adamw_on_host(self, first, second, grad, step);
        }
        let moments = adamw_on_device(step, &self.tensor, &first.tensor, &second.tensor, &grad.tensor);
        (first.tensor, second.tensor) = moments.map_err(told)?;
        Ok(())
    }

    /// On a GPU by the operations of candle's own, with new memory for the velocity.
    fn sgd(&mut self, velocity: Option<&mut Self>, grad: &Self, step: &SgdStep) -> Result<()> {
        if self.tensor.device().is_cpu() {
            return sgd_on_host(self, velocity, grad, step);
        }
        let velocity = velocity.map(|velocity| &mut velocity.tensor);
        sgd_on_device(step, &self.tensor, velocity, &grad.tensor).map_err(told)
    }

    #[cfg(feature = "cuda")]
    fn memory(
        plan: &std::sync::Arc<Plan<Place>>,
        sending: Sending,
        _: &ProcessGroup,
    ) -> Result<Option<Box<dyn Memory<Self>>>> {
        Ok(crate::cuda::memory(plan, sending)?.map(|gradients| Box::new(gradients) as _))
    }
}

/// Returns the moments.
fn adamw_on_device(
    step: &AdamWStep,
    weight: &Tensor,
    first: &Tensor,
    second: &Tensor,
    grad: &Tensor,
) -> candle_core::Result<(Tensor, Tensor)> {
    let scaled;
    let grad = match step.grad_factor {
        1.0 => grad,
        by => {
            scaled = shrunk_or_more(grad, by)?;
            &scaled
        }
    };
    let first = ((first * step.first)? + (grad * (1.0 - step.first))?)?;
    let second = ((second * step.second)? + (grad.sqr()? * (1.0 - step.second))?)?;
    let slope = (&first * step.first_scale)?;
    let size = ((&second * step.second_scale)?.sqrt()? + step.eps)?;
    let kept = (weight.detach() * (1.0 - step.decay))?;
    assign(weight, &(kept - ((slope / size)? * step.learning)?)?)?;
    Ok((first, second))
}

fn sgd_on_device(
    step: &SgdStep,
    weight: &Tensor,
    velocity: Option<&mut Tensor>,
    grad: &Tensor,
) -> candle_core::Result<()> {
    let SgdParams { lr, momentum, dampening, weight_decay, nesterov } = step.params;
    let grad = match step.grad_factor {
        1.0 => grad.clone(),
        by => shrunk_or_more(grad, by)?,
    };
    let mut grad = match weight_decay {
        0.0 => grad,
        decay => (grad + (weight.detach() * decay)?)?,
    };
    if let Some(velocity) = velocity {
        *velocity = match step.is_first {
            true => grad.copy()?,
            false => ((&*velocity * momentum)? + (&grad * (1.0 - dampening))?)?,
        };
        grad = if nesterov { (grad + (&*velocity * momentum)?)? } else { velocity.clone() };
    }
    assign(weight, &(weight.detach() - (grad * lr)?)?)
}

/// Multiplies by any number; by one from 0 to 1 as [`shrunk`] does.
fn shrunk_or_more(tensor: &Tensor, by: f64) -> candle_core::Result<Tensor> {
    if by > 1.0 { tensor * by } else { shrunk(tensor, by) }
}

/// Multiplies by a number from 0 to 1. candle rounds to the nearest, so what that may add is taken off before: no element becomes larger than its
/// product.
fn shrunk(tensor: &Tensor, by: f64) -> candle_core::Result<Tensor> {
    // Half of the last place: of numbers that have all digits, as a part of them, and of the smallest.
    let (part, least): (i32, i32) = match tensor.dtype() {
        candle_core::DType::F16 => (-11, -25),
        candle_core::DType::BF16 => (-8, -134),
        candle_core::DType::F32 => (-24, -150),
        _ => return tensor * by,
    };
    // And a little more: some conversions from f64 round twice.
    let [part, least] = [part, least].map(|exponent| 1.01 * f64::from(exponent).exp2());
    let (wide, by) = (tensor.to_dtype(candle_core::DType::F64)?, by * (1.0 - part));
    let (positive, negative) = (wide.affine(by, -least)?.relu()?, wide.affine(-by, -least)?.relu()?);
    (positive - negative)?.to_dtype(tensor.dtype())
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};
    use phalanx_train::Tensor as _;
    use proptest::prelude::*;

    /// What a GPU would do, here on the host.
    #[test]
    fn on_a_device_gradient_descent_is_the_same_to_the_last_bit() {
        let numbers = |step: usize| {
            let all: Vec<f32> = (0..60).map(|i| ((i * 31 + step * 17) as f32).sin()).collect();
            Tensor::new(all, &Device::Cpu).unwrap()
        };
        let heavy = SgdParams { lr: 0.1, momentum: 0.9, ..Default::default() };
        for params in [
            SgdParams { momentum: 0.0, weight_decay: 0.1, ..heavy },
            SgdParams { nesterov: true, weight_decay: 0.1, ..heavy },
            SgdParams { dampening: 0.25, ..heavy },
        ] {
            let (there, mut velocity) = (candle_core::Var::from_tensor(&numbers(0)).unwrap(), numbers(9));
            let mut here = Candle::local(&numbers(0).copy().unwrap()).unwrap();
            let mut here_velocity = Candle::local(&numbers(9).copy().unwrap()).unwrap();
            for at in 1..5 {
                let step = params.at_step(at == 1);
                let kept = params.has_velocity();
                sgd_on_device(&step, &there, kept.then_some(&mut velocity), &numbers(at)).unwrap();
                let grad = Candle::local(&numbers(at)).unwrap();
                here.sgd(kept.then_some(&mut here_velocity), &grad, &step).unwrap();
                let bits = |tensor: &Tensor| {
                    tensor.to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>()
                };
                assert_eq!(bits(&there), bits(&here.tensor), "{params:?}, step {at}");
            }
        }
    }

    proptest! {
        /// candle's operations round on a GPU as they do here.
        #[test]
        fn what_is_shrunk_on_a_device_is_never_larger_than_the_product(
            kind in 0..4usize,
            numbers in prop::collection::vec((-1.0..1.0f64, -12.0..0.0f64), 1..50),
            size in -40.0..38.0f64,
            by in prop_oneof![0.0..1.0f64, 0.99..1.0f64, Just(0.0)],
        ) {
            let dtype = [DType::F32, DType::F64, DType::F16, DType::BF16][kind];
            let (digits, least, most) = [
                (f64::from(f32::EPSILON), 1.5e-45, 1e38),
                (f64::EPSILON, 0.0, 1e38),
                (1e-3, 6e-8, 65000.0),
                (8e-3, 1e-40, 1e38),
            ][kind];
            let numbers: Vec<f64> =
                numbers.into_iter().map(|(x, less)| (x * 10f64.powf(size + less)).clamp(-most, most)).collect();
            let tensor = Tensor::new(numbers, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            let wide = |tensor: &Tensor| tensor.to_dtype(DType::F64).unwrap().to_vec1::<f64>().unwrap();
            let found = shrunk(&tensor, by).unwrap();
            prop_assert_eq!(found.dtype(), dtype);
            for (before, after) in wide(&tensor).iter().zip(wide(&found)) {
                let exact = before * by;
                prop_assert!(after.abs() <= exact.abs() && after * exact >= 0.0, "{exact} became {after}");
                prop_assert!((exact - after).abs() <= 2.1 * (digits * exact.abs() + least), "{exact} became {after}");
            }
        }
    }
}
