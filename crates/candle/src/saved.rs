//! The state of data-parallel training in checkpoints: the parts of gradients that its hook has left out.

use crate::DistributedDataParallel;
use crate::Group;
use crate::checkpoint::{Checkpoint, Result, State, Stateful};
use phalanx_compress::CommHook;

/// What the hook has left out until now, if there is one: `state.add("ddp", &ddp)`, and `found.restore("ddp", &mut ddp)`, where the training goes on on
/// as many ranks to the last bit. On another number nothing is lost either. What another kind of hook has left out, or gradients that are being
/// accumulated, is not part of it; nor are the weights, which [`save_vars`](crate::checkpoint::save_vars) saves.
impl<M> Stateful for DistributedDataParallel<M> {
    fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) -> Result<()> {
        self.hook(|hook, group| hook.save(prefix, group, state))
    }

    fn load(&mut self, prefix: &str, from: &Checkpoint) -> Result<()> {
        self.hook(|hook, group| hook.load(prefix, group, from))
    }
}

impl<M> DistributedDataParallel<M> {
    fn hook(&self, work: impl FnOnce(&mut dyn CommHook, &phalanx::ProcessGroup) -> Result<()>) -> Result<()> {
        self.gradients().hook_mut().map_or(Ok(()), |hook| work(hook, self.group.host()))
    }
}
