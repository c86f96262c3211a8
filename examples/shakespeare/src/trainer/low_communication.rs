//! Every rank for itself, and all together now and then.

use super::common::{Trainer, adamw};
use crate::flags::Flags;
use crate::model::{Transformer, initialise};
use candle_core::{Device, Tensor};
use candle_nn::{VarBuilder, VarMap};
use phalanx::ProcessGroup;
use phalanx_candle::checkpoint::{Checkpoint, State};
use phalanx_candle::{AdamW, DiLoCo, DiLoCoConfig, Result, Share, clip_grad_norm};

/// Local SGD, DiLoCo or streaming DiLoCo, around AdamW.
pub(super) struct LowCommunication {
    varmap: VarMap,
    model: Transformer,
    optimizer: DiLoCo<AdamW>,
    clip: f64,
}

impl LowCommunication {
    pub(super) fn new(
        flags: &Flags,
        config: DiLoCoConfig,
        alphabet: usize,
        group: &ProcessGroup,
    ) -> Result<Self> {
        let Flags { size, precision, hook, seed, clip, .. } = *flags;
        let varmap = VarMap::new();
        let vb = VarBuilder::from_varmap(&varmap, precision.dtype(), &Device::Cpu);
        let model = Transformer::new(size, alphabet, vb)?;
        initialise(&varmap, size, seed)?;
        let optimizer = DiLoCo::new(AdamW::new(&varmap, adamw(flags.lr))?, &varmap, group, config)?;
        let optimizer = match hook.make()? {
            Some(hook) => optimizer.with_hook(hook),
            None => optimizer,
        };
        Ok(Self { varmap, model, optimizer, clip })
    }
}

impl Trainer for LowCommunication {
    /// The rank's own step; its share of the batch is of no account.
    fn step(&mut self, (now, next): &(Tensor, Tensor), _: Share, rate: f64) -> Result<f64> {
        let loss = self.model.loss(now, next)?;
        let mut grads = loss.backward()?;
        clip_grad_norm(&self.varmap, &mut grads, self.clip)?;
        self.optimizer.inner_mut().set_params(adamw(rate));
        self.optimizer.step(&grads)?;
        Ok(f64::from(loss.to_scalar::<f32>()?))
    }

    fn with_model(&self, work: &mut dyn FnMut(&Transformer) -> candle_core::Result<()>) -> Result<()> {
        Ok(work(&self.model)?)
    }

    fn finish(&mut self) -> Result<()> {
        self.optimizer.finish()
    }

    fn weights(&self) -> Result<Option<VarMap>> {
        Ok(Some(self.varmap.clone()))
    }

    fn bytes_sent(&self) -> Option<u64> {
        Some(self.optimizer.traffic().sent)
    }

    fn save<'a>(&'a self, state: &mut State<'a>) -> Result<()> {
        Ok(state.add("training", &self.optimizer)?)
    }

    fn load(&mut self, from: &Checkpoint) -> Result<()> {
        Ok(from.restore("training", &mut self.optimizer)?)
    }
}
