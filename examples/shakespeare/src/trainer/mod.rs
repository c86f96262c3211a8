//! The ways to train. The loop of `train.rs` is the same for all of them.

mod data_parallel;
mod low_communication;
mod sharded;

use crate::flags::{Flags, Method};
use crate::model::Transformer;
use candle_core::Tensor;
use candle_nn::{ParamsAdamW, VarMap};
use data_parallel::DataParallel;
use low_communication::LowCommunication;
use phalanx::ProcessGroup;
use phalanx_candle::checkpoint::{Checkpoint, State};
use phalanx_candle::{DiLoCoConfig, Result, Share, Stage};
use sharded::ShardedTransformer;

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

/// Makes the trainer that the flags ask for.
pub(crate) fn new(flags: &Flags, alphabet: usize, group: &ProcessGroup) -> Result<Box<dyn Trainer>> {
    let sharded = |stage| Ok(Box::new(ShardedTransformer::new(flags, stage, alphabet, group)?) as Box<_>);
    let seldom = |config| Ok(Box::new(LowCommunication::new(flags, config, alphabet, group)?) as Box<_>);
    let every = flags.sync_every;
    match flags.method {
        Method::Ddp => Ok(Box::new(DataParallel::new(flags, alphabet, group)?)),
        Method::Zero1 => sharded(Stage::Optimizer),
        Method::Zero2 => sharded(Stage::Gradients),
        Method::Zero3 => sharded(Stage::Weights),
        Method::LocalSgd => seldom(DiLoCoConfig::local_sgd(every)),
        Method::DiLoCo => seldom(DiLoCoConfig::diloco(every)),
        Method::StreamingDiLoCo => seldom(DiLoCoConfig::streaming(every, 2, every / 4)),
    }
}

fn adamw(rate: f64) -> ParamsAdamW {
    ParamsAdamW { lr: rate, beta2: 0.99, weight_decay: 0.1, ..Default::default() }
}
