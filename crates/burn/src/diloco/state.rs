//! The state of DiLoCo in checkpoints: the part that all ranks hold alike, and each rank's own.

use super::DiLoCo;
use crate::checkpoint::{
    Checkpoint, Result, State, Stateful, add_optimizer, load_module, read_optimizer, save_module,
};
use burn_core::module::Module;

impl DiLoCo {
    /// Adds this and `model` to `state`, under `prefix`: the outer weights (`anchor.NAME`), their momentum, the number of steps, and what is under way, which all
    /// ranks hold alike; and as each rank's own its parameters (`local.NAME`), burn's record of its optimizer (`inner`), and what its hook has left out (`hook`).
    ///
    /// Saving waits for what is under way.
    ///
    /// # Errors
    /// Those of what is under way, and [`Error::Tensors`](crate::checkpoint::Error::Tensors) with burn's.
    ///
    /// # Examples
    /// ```
    /// # use burn::{module::Param, optim::{GradientsParams, SgdConfig}, tensor::{Device, Tensor}};
    /// use phalanx_burn::checkpoint::{self, Checkpoints, State};
    /// use phalanx_burn::{DiLoCo, DiLoCoConfig};
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path();
    /// # let on = |group: &phalanx::ProcessGroup| -> phalanx_burn::Result<()> {
    /// # let value = Tensor::<1>::ones([1], &Device::default().autodiff());
    /// # let mut weight = Param::from_tensor(value.require_grad());
    /// let sgd = SgdConfig::new().init();
    /// let mut diloco = DiLoCo::new(sgd, &mut weight, group, DiLoCoConfig::local_sgd(2))?;
    /// let mut checkpoints = Checkpoints::open(folder, group)?;
    /// let mut step = 0;
    /// if let Some(found) = checkpoints.latest_good()? {
    ///     diloco.load(&mut weight, "training", &found)?;
    ///     step = found.step();
    /// }
    /// let loss = weight.val() * group.rank() as f32;
    /// let grads = GradientsParams::from_grads(loss.backward(), &weight);
    /// weight = diloco.step(1.0, weight, grads)?; // one step a day
    /// step += 1;
    /// let mut state = State::new();
    /// diloco.save(&weight, "training", &mut state)?;
    /// checkpoints.save(step, state)?;
    /// # let rank = group.rank() as f32;
    /// # assert_eq!(weight.val().into_scalar::<f32>(), if step == 1 { 1.0 - rank } else { 0.0 });
    /// # Ok(()) };
    /// # for _ in 0..2 { phalanx::on_threads(2, |group| Ok(on(&group).unwrap()))?; }
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn save<'a>(&'a self, model: &impl Module, prefix: &str, state: &mut State<'a>) -> Result<()> {
        self.outer.save(prefix, state)?;
        state.of_rank(self.outer.group().rank(), |own| {
            save_module(model, &format!("{prefix}.local"), own)?;
            add_optimizer(&self.optimizer, &format!("{prefix}.inner"), own)
        })
    }

    /// Makes this and `model` what [`save`](Self::save) has saved under `prefix`.
    ///
    /// On as many ranks as have saved it the training goes on bit for bit. On another number a rank begins with the weights and the optimizer of one of
    /// those that were there.
    ///
    /// # Errors
    /// [`Error::Missing`](crate::checkpoint::Error::Missing), [`Error::OtherTensor`](crate::checkpoint::Error::OtherTensor) and
    /// [`Error::Value`](crate::checkpoint::Error::Value): the checkpoint is of another model, or of other fragments; no weight was changed.
    /// [`Error::Io`](crate::checkpoint::Error::Io).
    ///
    /// # Examples
    /// See [`save`](Self::save).
    pub fn load<M: Module>(&mut self, model: &mut M, prefix: &str, from: &Checkpoint) -> Result<()> {
        let own = from.of_rank(self.outer.group().rank() % from.world_size().max(1));
        let mut loaded = model.clone();
        load_module(&mut loaded, &format!("{prefix}.local"), &own)?;
        let optimizer = read_optimizer(self.optimizer.clone(), &format!("{prefix}.inner"), &own)?;
        self.outer.load(prefix, from)?;
        (*model, self.optimizer) = (loaded, optimizer);
        Ok(())
    }
}
