//! A tensor's elements in memory of the host, where groups reach them.

use crate::{Error, Result};
use burn_core::tensor::kind::Numeric;
use burn_core::tensor::{Bytes, DType as Burns, Device, Tensor, TensorData};
use phalanx::DType;
use phalanx::error::OpKind;

/// Elements in row-major order, aligned as such elements are.
pub(crate) struct Elements {
    bytes: Bytes,
    dims: Vec<usize>,
    burns: Burns,
    dtype: DType,
}

impl Elements {
    /// The elements of a tensor. Where nobody else holds it, and it is in the host's memory, this is that memory.
    pub(crate) fn of<const D: usize, K: Numeric>(op: OpKind, tensor: Tensor<D, K>) -> Result<Self> {
        let burns = tensor.dtype();
        let dtype = shared(burns).ok_or_else(|| {
            let hint = format!("elements of type {burns:?} cannot be sent; convert with `cast`");
            phalanx::Error::Unsupported { op, backend: "burn", hint }
        })?;
        let (bytes, shape, _) = tensor.try_into_data().map_err(failed)?.into_parts();
        let dims = shape.iter().copied().collect();
        let mut elements = Self { bytes, dims, burns, dtype };
        // What burn has from a file may lie anywhere.
        if !elements.bytes.as_ptr().addr().is_multiple_of(dtype.size()) {
            let mut aligned = elements.zeros(&elements.dims);
            aligned.bytes.copy_from_slice(&elements.bytes);
            elements = aligned;
        }
        Ok(elements)
    }

    /// As many zeros as these dimensions hold, of the same type.
    pub(crate) fn zeros(&self, dims: &[usize]) -> Self {
        let (bytes, ..) = TensorData::full_dtype(dims.to_vec(), 0, self.burns).into_parts();
        Self { bytes, dims: dims.to_vec(), burns: self.burns, dtype: self.dtype }
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn dims(&self) -> &[usize] {
        &self.dims
    }

    pub(crate) fn len(&self) -> usize {
        self.dims.iter().product()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    pub(crate) fn into_data(self) -> TensorData {
        TensorData::from_bytes(self.bytes, self.dims, self.burns)
    }

    pub(crate) fn into_tensor<const D: usize, K: Numeric>(self, device: &Device) -> Tensor<D, K> {
        let dtype = self.burns;
        Tensor::from_data(self.into_data(), (device, dtype))
    }
}

/// The element type as phalanx calls it, of those that both carry.
pub(crate) fn shared(dtype: Burns) -> Option<DType> {
    Some(match dtype {
        Burns::F64 => DType::F64,
        Burns::F32 => DType::F32,
        Burns::F16 => DType::F16,
        Burns::BF16 => DType::BF16,
        Burns::I64 => DType::I64,
        Burns::I32 => DType::I32,
        Burns::I16 => DType::I16,
        Burns::I8 => DType::I8,
        Burns::U64 => DType::U64,
        Burns::U32 => DType::U32,
        Burns::U16 => DType::U16,
        Burns::U8 => DType::U8,
        _ => return None,
    })
}

/// Burn's error, as this crate has it.
pub(crate) fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Tensors(error.into())
}
