//! Tensors as [`Array`]s of the host, in which training works, and back.

use crate::elements::{Elements, failed};
use crate::{Error, Result};
use burn_core::tensor::kind::Numeric;
use burn_core::tensor::{Device, Tensor, TensorData};
use half::{bf16, f16};
use phalanx::DType;
use phalanx::error::OpKind;
use phalanx_train::{Array, Tensor as _};

/// Evaluates `$body` with `$T` as the Rust type of `$dtype`, or `$otherwise` for a type of later versions.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr, $other:pat => $otherwise:expr $(,)?) => {
        with_element!(@ $dtype, $T, $body, $other, $otherwise,
            F32 f32, F64 f64, F16 f16, BF16 bf16, I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64)
    };
    (@ $dtype:expr, $T:ident, $body:expr, $other:pat, $otherwise:expr, $($name:ident $type:ty),*) => {
        match $dtype {
            $(DType::$name => {
                type $T = $type;
                $body
            })*
            $other => $otherwise,
        }
    };
}

/// The elements of a tensor. Where nobody else holds it, and it is in the host's memory, they are not copied.
pub(crate) fn array<const D: usize, K: Numeric>(op: OpKind, tensor: Tensor<D, K>) -> Result<Array> {
    Elements::of(op, tensor)?.into_array()
}

/// A tensor on `device` with the elements of `array`, which has its type and dimensions.
pub(crate) fn tensor<const D: usize, K: Numeric>(array: Array, device: &Device) -> Result<Tensor<D, K>> {
    let dims = array.dims().to_vec();
    let data = with_element!(array.dtype(),
        T => TensorData::new(Vec::<T>::try_from(array)?, dims),
        other => return Err(unknown(other)),
    );
    let dtype = data.dtype();
    Ok(Tensor::from_data(data, (device, dtype)))
}

impl Elements {
    fn into_array(self) -> Result<Array> {
        let dims = self.dims().to_vec();
        let array = with_element!(self.dtype(),
            T => Array::from(self.into_data().try_into_vec::<T>().map_err(failed)?),
            other => return Err(unknown(other)),
        );
        array.shaped(&dims)
    }
}

fn unknown(dtype: DType) -> Error {
    Error::Tensors(format!("burn has no elements of type {dtype}").into())
}
