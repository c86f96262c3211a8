//! candle's tensors, as far as their elements are known to both candle and phalanx.

use crate::Group;
use crate::element::{unsupported_dtype, with_element};
use crate::group::Place;
use candle_core::{Tensor, Var};
use phalanx::error::OpKind;
use phalanx::{DType, Element, ProcessGroup};
use phalanx_train::{Error, Result};

/// A tensor of a type that can be sent.
#[derive(Debug, Clone)]
pub(crate) struct Candle {
    pub(crate) tensor: Tensor,
    pub(crate) dtype: DType,
    pub(crate) place: Place,
}

impl Candle {
    /// Refuses what can't be sent, with an error of `op`.
    pub(crate) fn new(group: &impl Group, op: OpKind, tensor: &Tensor) -> phalanx::Result<Self> {
        let place = Place::of(group, op, tensor.device())?;
        Ok(Self { tensor: tensor.clone(), dtype: sent_as(group.host(), op, tensor.dtype())?, place })
    }

    /// For work on this rank alone.
    pub(crate) fn local(tensor: &Tensor) -> Result<Self> {
        let dtype = known(tensor.dtype()).ok_or_else(|| unknown(tensor.dtype().as_str()))?;
        let place = Place::alone(tensor.device());
        Ok(Self { tensor: tensor.contiguous().map_err(told)?, dtype, place })
    }

    /// Variables, for work on this rank alone.
    pub(crate) fn all_local<'v>(vars: impl IntoIterator<Item = &'v Var>) -> Result<Vec<Self>> {
        vars.into_iter().map(|var| Self::local(var)).collect()
    }

    pub(crate) fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Copies the tensor to memory of its own.
    #[cfg(feature = "cuda")]
    pub(crate) fn copied(self) -> Result<Self> {
        Ok(Self { tensor: self.tensor.force_contiguous().map_err(told)?, ..self })
    }

    pub(crate) fn into_tensor(self) -> Tensor {
        self.tensor
    }
}

/// An error of candle, until [`Error`](crate::Error) takes it out again.
pub(crate) fn told(error: candle_core::Error) -> Error {
    Error::Tensors(error.into())
}

pub(crate) fn unknown(dtype: &str) -> Error {
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
pub(crate) fn candles(dtype: DType) -> Result<candle_core::DType> {
    dtype.name().parse().map_err(|_| unknown(dtype.name()))
}
