//! candle's tensors, as `phalanx-train` knows tensors.

use crate::element::{bytes_mut, read, require_cpu, unsupported_dtype, with_element};
use candle_core::{Device, Tensor};
use phalanx::{DType, Element, OpKind, ProcessGroup, ReduceOp};
use phalanx_train::{Error, Result};

/// A tensor on the CPU, of a type that can be sent.
#[derive(Debug, Clone)]
pub(crate) struct Candle {
    tensor: Tensor,
    dtype: DType,
}

impl Candle {
    /// Refuses what can't be sent, with an error of `op`.
    pub(crate) fn new(group: &ProcessGroup, op: OpKind, tensor: &Tensor) -> phalanx::Result<Self> {
        require_cpu(group, op, tensor.device())?;
        Ok(Self { tensor: tensor.clone(), dtype: sent_as(group, op, tensor.dtype())? })
    }

    /// For work on this rank alone.
    pub(crate) fn local(tensor: &Tensor) -> Result<Self> {
        let dtype = known(tensor.dtype()).ok_or_else(|| unknown(tensor.dtype().as_str()))?;
        Ok(Self { tensor: tensor.contiguous().map_err(told)?, dtype })
    }

    pub(crate) fn into_tensor(self) -> Tensor {
        self.tensor
    }
}

impl phalanx_train::Tensor for Candle {
    type Device = Device;

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn dims(&self) -> &[usize] {
        self.tensor.dims()
    }

    fn device(&self) -> Device {
        self.tensor.device().clone()
    }

    fn zeros(dtype: DType, dims: &[usize], device: &Device) -> Result<Self> {
        let tensor = Tensor::zeros(dims, candles(dtype)?, device).map_err(told)?;
        Ok(Self { tensor, dtype })
    }

    fn to_dtype(self, dtype: DType) -> Result<Self> {
        let tensor = self.tensor.to_dtype(candles(dtype)?).and_then(|tensor| tensor.contiguous());
        Ok(Self { tensor: tensor.map_err(told)?, dtype })
    }

    fn add(self, other: Self) -> Result<Self> {
        Ok(Self { tensor: (self.tensor + other.tensor).map_err(told)?, dtype: self.dtype })
    }

    fn read<R>(&self, look: impl FnOnce(&[u8]) -> R) -> Result<R> {
        with_element!(self.tensor.dtype(),
            T => read::<T, _>(&self.tensor, |values| look(bytemuck::cast_slice(values))).map_err(told),
            other => Err(unknown(other.as_str())),
        )
    }

    fn write<R>(&mut self, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        bytes_mut(&self.tensor, change).map_err(told)
    }
}

/// An error of candle, until [`Error`](crate::Error) takes it out again.
fn told(error: candle_core::Error) -> Error {
    Error::Tensors(error.into())
}

fn unknown(dtype: &str) -> Error {
    told(candle_core::Error::Msg(format!(
        "elements of type {dtype} are not known to both candle and phalanx"
    )))
}

/// candle's type as phalanx knows it.
fn known(dtype: candle_core::DType) -> Option<DType> {
    with_element!(dtype, T => Some(<T as Element>::DTYPE), _ => None)
}

/// As [`known`], with an error of `op`.
pub(crate) fn sent_as(group: &ProcessGroup, op: OpKind, dtype: candle_core::DType) -> phalanx::Result<DType> {
    known(dtype).ok_or_else(|| unsupported_dtype(group, op, dtype))
}

/// phalanx's type as candle knows it.
fn candles(dtype: DType) -> Result<candle_core::DType> {
    dtype.name().parse().map_err(|_| unknown(dtype.name()))
}

/// [`ProcessGroup::all_reduce`] of bytes.
#[track_caller]
pub(crate) fn all_reduce(
    group: &ProcessGroup,
    dtype: candle_core::DType,
    bytes: &mut [u8],
    op: ReduceOp,
) -> phalanx::Result<()> {
    phalanx_train::all_reduce(group, sent_as(group, OpKind::AllReduce, dtype)?, bytes, op)
}

/// Multiplies elements, and rounds once.
pub(crate) fn multiply(dtype: candle_core::DType, bytes: &mut [u8], by: f64) {
    if let Some(dtype) = known(dtype) {
        phalanx_train::multiply(dtype, bytes, by);
    }
}
