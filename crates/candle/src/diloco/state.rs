//! The state of DiLoCo in checkpoints: the part that all ranks hold alike, and each rank's own.

use super::fragment::{Fragment, Member};
use super::{DiLoCo, InFlight, InnerOptimizer};
use crate::checkpoint::{
    Checkpoint, Error, Result, State, Stateful, copied, info, load_vars, restored, save_vars,
};
use candle_core::Tensor;
use serde::{Deserialize, Serialize};

/// How far the training is.
#[derive(Serialize, Deserialize)]
struct Place {
    steps: u64,
    /// The step in which each fragment was sent last.
    sent_at: Vec<u64>,
    /// The fragment whose mean is under way, and the step in which it is due.
    flight: Option<(usize, u64)>,
}

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
        for (name, tensor) in self.outer(prefix) {
            state.tensor(name, info(tensor)?, copied(tensor));
        }
        if let Some(InFlight { fragment, .. }) = self.flight {
            let fragment = &self.fragments[fragment];
            let means = self.averager.with(|averager| fragment.unpack(averager.bytes()))?;
            for (name, mean) in means_of(prefix, fragment, &means.map_err(tensors)?) {
                state.tensor(name, info(mean)?, copied(mean));
            }
        }
        let sent_at = self.fragments.iter().map(|fragment| fragment.sent_at).collect();
        let flight = self.flight.map(|flight| (flight.fragment, flight.due));
        state.value(format!("{prefix}.place"), &Place { steps: self.steps, sent_at, flight })?;
        self.averager.with(|averager| match &averager.hook {
            Some(hook) => hook.save(&format!("{prefix}.hook"), &self.group, state),
            None => Ok(()),
        })??;
        state.of_rank(self.group.rank(), |own| {
            save_vars(&self.varmap, &format!("{prefix}.local"), own)?;
            own.add(&format!("{prefix}.inner"), &self.inner)
        })
    }

    fn load(&mut self, prefix: &str, from: &Checkpoint) -> Result<()> {
        let name = format!("{prefix}.place");
        let Place { steps, sent_at, flight } = from.value(&name)?;
        let fragments = self.fragments.len();
        if sent_at.len() != fragments || flight.is_some_and(|(fragment, _)| fragment >= fragments) {
            let what =
                format!("it was saved with {} fragments, but this DiLoCo has {fragments}", sent_at.len());
            return Err(Error::Value { name, what });
        }
        restored(from, self.outer(prefix))?;
        self.flight = flight.map(|(fragment, due)| InFlight { fragment, due });
        if let Some(InFlight { fragment, .. }) = self.flight {
            let fragment = &self.fragments[fragment];
            let means = fragment.pseudo_gradients().map_err(tensors)?;
            restored(from, means_of(prefix, fragment, &means))?;
            self.averager.with(|averager| Fragment::pack(&means, averager.bytes()))?.map_err(tensors)?;
        }
        for (fragment, sent_at) in self.fragments.iter_mut().zip(sent_at) {
            fragment.sent_at = sent_at;
        }
        self.averager.with(|averager| match &mut averager.hook {
            Some(hook) => hook.load(&format!("{prefix}.hook"), &self.group, from),
            None => Ok(()),
        })??;
        self.steps = steps;
        let own = from.of_rank(self.group.rank() % from.world_size().max(1));
        load_vars(&self.varmap, &format!("{prefix}.local"), &own)?;
        own.restore(&format!("{prefix}.inner"), &mut self.inner)
    }
}

impl<O> DiLoCo<O> {
    /// The tensors that all ranks hold alike, by the names under which they are saved.
    fn outer(&self, prefix: &str) -> impl Iterator<Item = (String, &Tensor)> {
        let members = self.fragments.iter().flat_map(|fragment| &fragment.members);
        members.flat_map(move |Member { parameter, anchor, momentum }| {
            let name = |kind| format!("{prefix}.{kind}.{}", parameter.name);
            [(name("anchor"), anchor), (name("momentum"), momentum)]
        })
    }
}

/// The means that are under way, by name.
fn means_of<'t>(
    prefix: &str,
    fragment: &Fragment,
    means: &'t [Tensor],
) -> impl Iterator<Item = (String, &'t Tensor)> {
    let name = move |member: &Member| format!("{prefix}.mean.{}", member.parameter.name);
    fragment.members.iter().map(name).zip(means)
}

fn tensors(error: crate::Error) -> Error {
    Error::Tensors(error.into())
}
