//! A part only of optimizer state, gradients or weights on every rank.

use super::common::{Trainer, adamw};
use crate::flags::Flags;
use crate::model::{Block, Transformer, initialise};
use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};
use phalanx::ProcessGroup;
use phalanx_candle::checkpoint::{Checkpoint, State};
use phalanx_candle::{AdamW, Result, ShardConfig, Sharded, Share, Stage};

/// Sharded training. The optimizer knows this rank's shards only.
pub(super) struct ShardedTransformer {
    sharded: Sharded<Transformer>,
    optimizer: AdamW,
    clip: f64,
}

impl ShardedTransformer {
    pub(super) fn new(flags: &Flags, stage: Stage, alphabet: usize, group: &ProcessGroup) -> Result<Self> {
        let Flags { size, precision, seed, clip, .. } = *flags;
        let config = ShardConfig::default().stage(stage).overlap(flags.overlap.into());
        let sharded = Sharded::build(precision.dtype(), group, config, |units, vb| {
            Transformer::with_blocks(size, alphabet, vb, |vb| {
                Ok(Box::new(units.unit(vb, |vb| Block::new(size, vb))?))
            })
        })?;
        sharded.import(&drawn(flags, alphabet, seed)?)?;
        let optimizer = AdamW::sharded(&sharded, adamw(flags.lr))?;
        Ok(Self { sharded, optimizer, clip })
    }
}

/// The weights to begin with, for which all are in memory once, so that every way to train begins alike.
fn drawn(flags: &Flags, alphabet: usize, seed: u64) -> Result<VarMap> {
    let varmap = VarMap::new();
    Transformer::new(flags.size, alphabet, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    initialise(&varmap, flags.size, seed)?;
    Ok(varmap)
}

impl Trainer for ShardedTransformer {
    fn step(&mut self, (now, next): &(Tensor, Tensor), share: Share, rate: f64) -> Result<f64> {
        let loss = self.sharded.forward(|model| model.loss(now, next))?;
        let mut grads = self.sharded.backward_share(&loss, share)?;
        self.sharded.clip_grad_norm(&mut grads, self.clip)?;
        self.optimizer.set_params(adamw(rate));
        self.optimizer.step(&grads)?;
        Ok(f64::from(loss.to_scalar::<f32>()?))
    }

    fn with_model(&self, work: &mut dyn FnMut(&Transformer) -> candle_core::Result<()>) -> Result<()> {
        self.sharded.forward(work)
    }

    fn weights(&self) -> Result<Option<VarMap>> {
        self.sharded.export(0)
    }

    fn save<'a>(&'a self, state: &mut State<'a>) -> Result<()> {
        state.add("model", &self.sharded)?;
        Ok(state.add("optimizer", &self.optimizer)?)
    }

    fn load(&mut self, from: &Checkpoint) -> Result<()> {
        from.restore("model", &mut self.sharded)?;
        Ok(from.restore("optimizer", &mut self.optimizer)?)
    }
}
