//! The ways to train. The loop of `train.rs` is the same for all of them.

mod common;
mod data_parallel;
mod low_communication;
mod sharded;

pub(crate) use common::Trainer;

use crate::flags::{Flags, Method};
use data_parallel::DataParallel;
use low_communication::LowCommunication;
use phalanx::ProcessGroup;
use phalanx_candle::{DiLoCoConfig, Result, Stage};
use sharded::ShardedTransformer;

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
