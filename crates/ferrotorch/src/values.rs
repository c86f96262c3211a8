//! The numbers of tensors in memory of the host, as what they are: ferrotorch's element types are known to the compiler, the group's to a call.

use crate::error::refused;
use ferrotorch_core::{FerrotorchResult, Float, Tensor, TensorStorage};
use half::{bf16, f16};
use phalanx::DType;
use phalanx_train::Array;
use std::any::Any;

/// Evaluates `$body` with `$numbers` as the `Vec` that `$values` is: of `f32`, `f64`, `f16` or `bf16`, which are all the floats of ferrotorch's.
macro_rules! with_numbers {
    ($values:expr, $numbers:ident => $body:expr) => {
        match $values {
            $crate::values::Values::F32($numbers) => $body,
            $crate::values::Values::F64($numbers) => $body,
            $crate::values::Values::F16($numbers) => $body,
            $crate::values::Values::BF16($numbers) => $body,
        }
    };
}
pub(crate) use with_numbers;

/// Evaluates a call on the numbers of two values of one type, a borrowed one and one that is changed.
macro_rules! same_type {
    ($pair:expr, ($input:ident, $output:ident) => $call:expr) => {
        match $pair {
            ($crate::values::Values::F32($input), $crate::values::Values::F32($output)) => {
                $call.map_err(told)
            }
            ($crate::values::Values::F64($input), $crate::values::Values::F64($output)) => {
                $call.map_err(told)
            }
            ($crate::values::Values::F16($input), $crate::values::Values::F16($output)) => {
                $call.map_err(told)
            }
            ($crate::values::Values::BF16($input), $crate::values::Values::BF16($output)) => {
                $call.map_err(told)
            }
            _ => Err(refused("the two tensors have elements of different types")),
        }
    };
}
pub(crate) use same_type;

/// The numbers of a tensor, in row-major order.
#[derive(Debug, Clone)]
pub(crate) enum Values {
    F32(Vec<f32>),
    F64(Vec<f64>),
    F16(Vec<f16>),
    BF16(Vec<bf16>),
}

/// `numbers` as a `Vec` of another type, if that is what they are.
fn same<T: Any, U: Any>(numbers: Vec<T>) -> Result<Vec<U>, Vec<T>> {
    let mut numbers = Some(numbers);
    let any: &mut dyn Any = &mut numbers;
    match any.downcast_mut::<Option<Vec<U>>>().and_then(Option::take) {
        Some(same) => Ok(same),
        None => Err(numbers.unwrap_or_default()),
    }
}

impl Values {
    /// A copy of a tensor's numbers: ferrotorch gives none of its own away.
    pub(crate) fn of<T: Float>(tensor: &Tensor<T>) -> FerrotorchResult<Self> {
        let numbers = match same(tensor.data_vec()?) {
            Ok(numbers) => return Ok(Self::F32(numbers)),
            Err(numbers) => numbers,
        };
        let numbers = match same(numbers) {
            Ok(numbers) => return Ok(Self::F64(numbers)),
            Err(numbers) => numbers,
        };
        let numbers = match same(numbers) {
            Ok(numbers) => return Ok(Self::F16(numbers)),
            Err(numbers) => numbers,
        };
        same(numbers)
            .map(Self::BF16)
            .map_err(|_| refused(format!("elements of type {} cannot be sent", std::any::type_name::<T>())))
    }

    /// A tensor of this shape in the host's memory, which needs no gradient.
    pub(crate) fn into_tensor<T: Float>(self, shape: Vec<usize>) -> FerrotorchResult<Tensor<T>> {
        let numbers = with_numbers!(self, numbers => same::<_, T>(numbers).ok());
        let numbers = numbers.ok_or_else(|| refused("the numbers are not of the tensor's type"))?;
        Tensor::from_storage(TensorStorage::cpu(numbers), shape, false)
    }

    pub(crate) fn len(&self) -> usize {
        with_numbers!(self, numbers => numbers.len())
    }

    /// As many zeros, of the same type.
    pub(crate) fn zeros(&self, len: usize) -> Self {
        match self {
            Self::F32(_) => Self::F32(vec![0.0; len]),
            Self::F64(_) => Self::F64(vec![0.0; len]),
            Self::F16(_) => Self::F16(vec![f16::ZERO; len]),
            Self::BF16(_) => Self::BF16(vec![bf16::ZERO; len]),
        }
    }
}

impl From<Values> for Array {
    fn from(values: Values) -> Self {
        with_numbers!(values, numbers => Self::from(numbers))
    }
}

impl TryFrom<Array> for Values {
    type Error = phalanx_train::Error;

    fn try_from(array: Array) -> phalanx_train::Result<Self> {
        match phalanx_train::Tensor::dtype(&array) {
            DType::F64 => Vec::try_from(array).map(Self::F64),
            DType::F16 => Vec::try_from(array).map(Self::F16),
            DType::BF16 => Vec::try_from(array).map(Self::BF16),
            _ => Vec::try_from(array).map(Self::F32),
        }
    }
}
