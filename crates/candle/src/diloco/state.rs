//! The state of DiLoCo in checkpoints: the part that all ranks hold alike, and each rank's own.

use super::{DiLoCo, InnerOptimizer};
use crate::checkpoint::{Checkpoint, Result, State, Stateful, load_vars, save_vars};

/// The outer weights, as `anchor.NAME` under the prefix, their momentum, the number of steps, and what is under way: all ranks hold them alike. Each
/// rank has for itself its weights and buffers (`local.NAME`), its optimizer (`inner`), and what its hook has left out (`hook`), so this saves the model, too.
///
/// Any number of ranks loads it. On as many as have saved it the training goes on bit for bit. On another number a
/// rank begins with the weights and the optimizer of one of those that were there. For an evaluation `load_vars(&varmap, "PREFIX.anchor", …)` loads the
/// outer weights alone, where they are of the variables' type, and the model has no buffers.
///
/// Saving waits for what is under way.
impl<O: InnerOptimizer + Stateful> Stateful for DiLoCo<O> {
    fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) -> Result<()> {
        self.outer.save(prefix, state)?;
        state.of_rank(self.outer.group().rank(), |own| {
            save_vars(&self.varmap, &format!("{prefix}.local"), own)?;
            own.add(&format!("{prefix}.inner"), &self.inner)
        })
    }

    fn load(&mut self, prefix: &str, from: &Checkpoint) -> Result<()> {
        self.outer.load(prefix, from)?;
        let own = from.of_rank(self.outer.group().rank() % from.world_size().max(1));
        load_vars(&self.varmap, &format!("{prefix}.local"), &own)?;
        own.restore(&format!("{prefix}.inner"), &mut self.inner)
    }
}
