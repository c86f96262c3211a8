//! The implementation of `phalanx-train`'s trait `Tensor` for tensors of libtorch.

use crate::error::told;
use crate::memory::{dtype, kind, read, write};
use crate::{Error, Result};
use phalanx::DType;
use phalanx::error::OpKind;
use phalanx_train::Tensor as Train;
use tch::{Device, Tensor};

/// A tensor in memory of the host.
#[derive(Debug)]
pub(crate) struct Torch {
    op: OpKind,
    tensor: Tensor,
    dtype: DType,
    dims: Vec<usize>,
}

impl Torch {
    /// `op` is the operation in which it travels, for errors.
    pub(crate) fn of(op: OpKind, tensor: Tensor) -> Result<Self> {
        let dtype = dtype(op, &tensor)?;
        let dims = dims(&tensor);
        Ok(Self { op, tensor, dtype, dims })
    }

    pub(crate) fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

/// The dimensions, as numbers that are never negative.
pub(crate) fn dims(tensor: &Tensor) -> Vec<usize> {
    tensor.size().into_iter().map(|dim| usize::try_from(dim).unwrap_or_default()).collect()
}

/// The dimensions as tch takes them.
pub(crate) fn size(dims: &[usize]) -> Vec<i64> {
    // libtorch has counted the elements of tensors with as many, or will refuse it.
    dims.iter().map(|&dim| i64::try_from(dim).unwrap_or(i64::MAX)).collect()
}

/// A tensor of zeros in memory of the host.
pub(crate) fn zeros(dtype: DType, dims: &[usize]) -> Result<Tensor> {
    let kind =
        kind(dtype).ok_or_else(|| Error::Tensors(format!("tch has no elements of type {dtype}").into()))?;
    Tensor::f_zeros(size(dims), (kind, Device::Cpu)).map_err(told)
}

impl Train for Torch {
    type Device = ();

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn dims(&self) -> &[usize] {
        &self.dims
    }

    fn device(&self) {}

    fn zeros(dtype: DType, dims: &[usize], (): &()) -> Result<Self> {
        Self::of(OpKind::AllReduce, zeros(dtype, dims)?)
    }

    fn to_dtype(self, dtype: DType) -> Result<Self> {
        if dtype == self.dtype {
            return Ok(self);
        }
        let kind = kind(dtype)
            .ok_or_else(|| Error::Tensors(format!("tch has no elements of type {dtype}").into()))?;
        let converted = tch::no_grad(|| self.tensor.f_to_kind(kind)).map_err(told)?;
        Self::of(self.op, converted)
    }

    fn add(self, other: Self) -> Result<Self> {
        let sum = tch::no_grad(|| self.tensor.f_add(&other.tensor)).map_err(told)?;
        Self::of(self.op, sum)
    }

    fn read<R>(&self, look: impl FnOnce(&[u8]) -> R) -> Result<R> {
        read(self.op, &self.tensor, look)
    }

    fn write<R>(&mut self, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        write(self.op, &mut self.tensor, change)
    }
}
