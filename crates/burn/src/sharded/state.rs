//! The state of sharded training in checkpoints: the weights, and what burn's optimizers remember of each rank's shards.

use super::Sharded;
use crate::checkpoint::{Checkpoint, Error, Result, State, Stateful, add_optimizer, read_optimizer};
use burn_optim::ModuleOptimizer;
use phalanx_train::Tensor as _;

impl Sharded {
    /// Adds burn's record of an optimizer of shards to `state`, under `prefix`, as this rank's own. Save the module as well, with
    /// [`save_module`](crate::checkpoint::save_module).
    ///
    /// # Errors
    /// [`Error::Tensors`] with burn's.
    ///
    /// # Examples
    /// ```
    /// # use burn::{module::Param, tensor::{Device, Tensor}};
    /// use burn::optim::{AdamConfig, ModuleOptimizer};
    /// use phalanx_burn::Sharded;
    /// use phalanx_burn::checkpoint::{Checkpoints, State, load_module, save_module};
    ///
    /// # let temporary = tempfile::tempdir().unwrap();
    /// # let folder = temporary.path();
    /// # let on = |group: &phalanx::ProcessGroup| -> phalanx_burn::Result<()> {
    /// # let mut weight = Param::from_tensor(Tensor::<1>::ones([2], &Device::default().autodiff()).require_grad());
    /// let mut optimizer: ModuleOptimizer = AdamConfig::new().init();
    /// let mut checkpoints = Checkpoints::open(folder, group)?;
    /// let (found, mut step) = (checkpoints.latest_good()?, 0);
    /// if let Some(found) = &found {
    ///     load_module(&mut weight, "model", found)?;
    /// }
    /// let mut zero = Sharded::new(&mut weight, group, Default::default())?;
    /// if let Some(found) = &found {
    ///     optimizer = zero.load_optimizer(optimizer, "optimizer", found)?;
    ///     step = found.step();
    /// }
    /// let grads = zero.backward(&weight, weight.val().square().sum())?;
    /// weight = zero.step(&mut optimizer, 0.25, weight, grads)?; // one step a day
    /// step += 1;
    /// let mut state = State::new();
    /// save_module(&weight, "model", &mut state)?;
    /// zero.save_optimizer(&optimizer, "optimizer", &mut state)?;
    /// checkpoints.save(step, state)?;
    /// # Ok(()) };
    /// # for _ in 0..2 { phalanx::on_threads(2, |group| Ok(on(&group).unwrap()))?; }
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn save_optimizer(
        &self,
        optimizer: &ModuleOptimizer,
        prefix: &str,
        state: &mut State<'_>,
    ) -> Result<()> {
        state.of_rank(self.group.rank(), |own| {
            own.value(format!("{prefix} shards"), &self.known_as())?;
            add_optimizer(optimizer, prefix, own)
        })
    }

    /// `optimizer` with the state that [`save_optimizer`](Self::save_optimizer) has saved under `prefix`, for as many ranks, and a `Sharded` of the same
    /// configuration and model.
    ///
    /// # Errors
    /// [`Error::Value`] for another number of ranks, or other shards. [`Error::Missing`], [`Error::Io`], and [`Error::Tensors`] for a record that burn can't
    /// read.
    ///
    /// # Examples
    /// See [`save_optimizer`](Self::save_optimizer).
    pub fn load_optimizer(
        &mut self,
        optimizer: ModuleOptimizer,
        prefix: &str,
        from: &Checkpoint,
    ) -> Result<ModuleOptimizer> {
        let name = format!("{prefix} shards");
        let (saved, ranks) = (from.world_size(), self.group.world_size());
        if saved != ranks {
            let what = format!(
                "burn's record of an optimizer that is dealt out goes on on as many ranks, and {saved} have saved it, but there are {ranks}; `adamw` and `sgd` go on on any number"
            );
            return Err(Error::Value { name, what });
        }
        let own = from.of_rank(self.group.rank());
        let known_as: Vec<(u64, usize)> = own.value(&name)?;
        let lengths = |shards: &[(u64, usize)]| shards.iter().map(|(_, len)| *len).collect::<Vec<_>>();
        let (found, expected) = (lengths(&known_as), lengths(&self.known_as()));
        if found != expected {
            let what =
                format!("it was saved of shards of {found:?} elements, but here they have {expected:?}");
            return Err(Error::Value { name, what });
        }
        let optimizer = read_optimizer(optimizer, prefix, &own)?;
        self.ids = known_as.into_iter().map(|(id, _)| id.into()).collect();
        Ok(optimizer)
    }

    /// Of each shard the number by which burn's optimizers know it, and its elements.
    fn known_as(&self) -> Vec<(u64, usize)> {
        self.ids.iter().zip(self.shards()).map(|(id, shard)| (id.val(), shard.dims()[0])).collect()
    }
}

/// The weights, whole, by name, of 16 bits as f32. After a load, [`gather`](Sharded::gather) brings them to the model. Where weights have 32 bits or more,
/// [`save_module`](crate::checkpoint::save_module) saves as much, and the rest of the module with it: load it before this is made.
impl Stateful for Sharded {
    fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) -> Result<()> {
        self.inner.save(prefix, state)
    }

    fn load(&mut self, prefix: &str, from: &Checkpoint) -> Result<()> {
        self.inner.load(prefix, from)
    }
}
