//! The weights of a layer, whose gradients may go past candle's store.

use super::operation::plain;
use crate::uses::{Source, StandIn, ask};
use candle_core::{CpuStorage, Result, Shape, Tensor, bail};
use candle_nn::{VarBuilder, init};
use std::sync::{Mutex, PoisonError};

/// The weights of a layer.
#[derive(Clone)]
pub(super) struct Weight {
    pub(super) tensor: Tensor,
    source: Option<Source>,
}

impl Weight {
    /// The variable `weight`, with the initial values that candle's layers have.
    pub(super) fn get(shape: impl Into<Shape>, vb: &VarBuilder<'_>) -> Result<Self> {
        let shape = shape.into();
        let (tensor, source) = ask(|| vb.get_with_hints(shape, "weight", init::DEFAULT_KAIMING_NORMAL))?;
        Ok(Self { tensor, source })
    }

    /// As [`get`](Self::get), for candle's operations.
    pub(super) fn of_graph(shape: impl Into<Shape>, vb: &VarBuilder<'_>) -> Result<Self> {
        let tensor = vb.get_with_hints(shape.into(), "weight", init::DEFAULT_KAIMING_NORMAL)?;
        Ok(Self { tensor, source: None })
    }

    /// What an operation keeps of them.
    pub(super) fn used(&self) -> Result<UsedWeight> {
        let stand_in = match &self.source {
            Some(source) if self.tensor.is_variable() => Some(source.stand_in(&self.tensor)?),
            _ => None,
        };
        let argument = stand_in.as_ref().map_or_else(|| self.tensor.clone(), |it| it.token.clone());
        Ok(UsedWeight { tensor: plain(&self.tensor)?, argument, stand_in })
    }
}

/// The weights as one operation has them.
pub(super) struct UsedWeight {
    pub(super) tensor: Tensor,
    /// What the graph has for them among the operation's arguments.
    pub(super) argument: Tensor,
    stand_in: Option<StandIn>,
}

impl UsedWeight {
    /// Takes their gradient. What is returned is the argument's.
    pub(super) fn give(&self, grad: Tensor) -> Result<Tensor> {
        match &self.stand_in {
            Some(stand_in) => stand_in.give(grad),
            None => Ok(grad),
        }
    }
}

/// What an operation has computed before candle asks for it, which it does once.
pub(super) struct Outcome(Mutex<Option<(CpuStorage, Shape)>>);

impl Outcome {
    pub(super) fn new(numbers: Vec<f32>, dims: Vec<usize>) -> Self {
        Self(Mutex::new(Some((CpuStorage::F32(numbers), Shape::from(dims)))))
    }

    pub(super) fn take(&self) -> Result<(CpuStorage, Shape)> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(outcome) => Ok(outcome),
            None => bail!("the outcome of an operation was taken twice"),
        }
    }
}
