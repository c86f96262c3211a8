//! The whole model on every rank, and the same gradients in each step.

use super::common::{Trainer, adamw};
use crate::flags::Flags;
use crate::model::{Transformer, initialise};
use candle_core::Tensor;
use candle_nn::VarMap;
use phalanx::ProcessGroup;
use phalanx_candle::checkpoint::{Checkpoint, Error, State, load_vars, save_vars};
use phalanx_candle::{AdamW, DdpConfig, DistributedDataParallel, LossScaler, Result, Share, clip_grad_norm};

/// Data-parallel training, with compressed or 16-bit gradients if the flags say so.
pub(super) struct DataParallel {
    varmap: VarMap,
    ddp: DistributedDataParallel<Transformer>,
    optimizer: AdamW,
    scaler: LossScaler,
    clip: f64,
}

impl DataParallel {
    pub(super) fn new(flags: &Flags, alphabet: usize, group: &ProcessGroup) -> Result<Self> {
        let Flags { size, precision, hook, seed, clip, .. } = *flags;
        let varmap = VarMap::new();
        let config = DdpConfig::default().overlap(flags.overlap.into());
        let build = |vb| Transformer::new(size, alphabet, vb);
        let ddp = DistributedDataParallel::build(&varmap, precision.dtype(), group, config, build)?;
        initialise(&varmap, size, seed)?;
        let ddp = match hook.make()? {
            Some(hook) => ddp.with_hook(hook),
            None => ddp,
        };
        let optimizer = AdamW::new(&varmap, adamw(flags.lr))?;
        let scaler = LossScaler::new(precision.loss_scale())?;
        Ok(Self { varmap, ddp, optimizer, scaler, clip })
    }
}

impl Trainer for DataParallel {
    fn step(&mut self, (now, next): &(Tensor, Tensor), share: Share, rate: f64) -> Result<f64> {
        let loss = self.ddp.forward(|model| model.loss(now, next))?;
        let mut grads = self.ddp.backward_share(&self.scaler.scale(&loss)?, share)?;
        if self.scaler.unscale(&self.varmap, &mut grads)? {
            clip_grad_norm(&self.varmap, &mut grads, self.clip)?;
            self.optimizer.set_params(adamw(rate));
            self.optimizer.step(&grads)?;
        }
        Ok(f64::from(loss.to_scalar::<f32>()?))
    }

    fn with_model(&self, work: &mut dyn FnMut(&Transformer) -> candle_core::Result<()>) -> Result<()> {
        self.ddp.forward(work)
    }

    fn weights(&self) -> Result<Option<VarMap>> {
        Ok(Some(self.varmap.clone()))
    }

    fn bytes_sent(&self) -> Option<u64> {
        self.ddp.traffic().map(|traffic| traffic.sent)
    }

    fn save<'a>(&'a self, state: &mut State<'a>) -> Result<()> {
        save_vars(&self.varmap, "model", state)?;
        state.add("optimizer", &self.optimizer)?;
        state.value("scaler", &self.scaler)?;
        Ok(state.add("hook", &self.ddp)?)
    }

    fn load(&mut self, from: &Checkpoint) -> Result<()> {
        load_vars(&self.varmap, "model", from)?;
        from.restore("optimizer", &mut self.optimizer)?;
        match from.value("scaler") {
            Err(Error::Missing { .. }) => {} // it was saved by another method
            scaler => self.scaler = scaler?,
        }
        Ok(from.restore("hook", &mut self.ddp)?)
    }
}
