//! What all ways to train have in common.

use crate::model::Transformer;
use candle_core::Tensor;
use candle_nn::{ParamsAdamW, VarMap};
use phalanx_candle::checkpoint::{Checkpoint, State};
use phalanx_candle::{Result, Share};

/// A model on all ranks, and what makes it better.
pub(crate) trait Trainer {
    /// Learns from this rank's windows, `[n, context]` with what follows each character: so much of all ranks' windows. Returns their
    /// mean loss. Collective.
    fn step(&mut self, windows: &(Tensor, Tensor), share: Share, rate: f64) -> Result<f64>;

    /// Has `work` done with the model as this rank has it. Collective.
    fn with_model(&self, work: &mut dyn FnMut(&Transformer) -> candle_core::Result<()>) -> Result<()>;

    /// Makes the model on all ranks what the training has come to. Collective.
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    /// The weights by name, on rank 0 at least. Collective.
    fn weights(&self) -> Result<Option<VarMap>>;

    /// Bytes that this rank has sent for the sake of the weights, if they are counted.
    fn bytes_sent(&self) -> Option<u64> {
        None
    }

    /// Adds all that it needs to go on.
    fn save<'a>(&'a self, state: &mut State<'a>) -> Result<()>;

    /// Goes on from there. On all ranks alike.
    fn load(&mut self, from: &Checkpoint) -> Result<()>;
}

pub(super) fn adamw(rate: f64) -> ParamsAdamW {
    ParamsAdamW { lr: rate, beta2: 0.99, weight_decay: 0.1, ..Default::default() }
}
