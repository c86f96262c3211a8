//! The weights as the model has them, whose memory comes and goes.

use crate::element::{replace, with_element};
use crate::sendable::{Candle, candles, told};
use bytemuck::Zeroable;
use candle_core::{CpuStorage, DType, Device, Tensor, Var, WithDType};
use phalanx_train::{Array, Result, Weights};

/// The weights that a model was given, by the order in which it took them. Tensors of the model share their memory.
#[derive(Debug, Default)]
pub(crate) struct ModelWeights(pub(crate) Vec<Candle>);

impl Weights<Candle> for ModelWeights {
    fn with<R>(&mut self, index: usize, work: impl FnOnce(&mut Candle) -> Result<R>) -> Result<R> {
        work(&mut self.0[index])
    }

    fn come(&mut self, index: usize, _: &[usize]) -> Result<()> {
        let tensor = &self.0[index].tensor;
        replace(tensor, zeros(tensor.dtype(), tensor.elem_count())).map(drop).map_err(told)
    }

    /// What the model computes with them from now on is an error of candle: their memory has a type that no operation takes.
    fn go(&mut self, index: usize) -> Result<()> {
        replace(&self.0[index].tensor, CpuStorage::F4(Vec::new())).map(drop).map_err(told)
    }
}

fn zeros(dtype: DType, elements: usize) -> CpuStorage {
    with_element!(dtype,
        T => T::to_cpu_storage_owned(vec![T::zeroed(); elements]),
        _ => unreachable!("weights are floats"),
    )
}

/// Numbers as a tensor of one dimension, without copying.
pub(crate) fn tensor(array: Array) -> Result<Tensor> {
    with_element!(candles(phalanx_train::Tensor::dtype(&array))?,
        T => {
            let numbers: Vec<T> = array.try_into()?;
            let len = numbers.len();
            Tensor::from_vec(numbers, len, &Device::Cpu).map_err(told)
        },
        _ => unreachable!("weights are floats"),
    )
}

/// A shard, as an optimizer of candle's is given it: the memory is the same.
pub(crate) fn shard_var(shard: &Candle) -> candle_core::Result<Var> {
    Var::from_tensor(&shard.tensor)
}

/// A slice of weights as a shard.
pub(crate) fn shard(own: Array) -> Result<Candle> {
    Candle::local(Var::from_tensor(&tensor(own)?).map_err(told)?.as_tensor())
}
