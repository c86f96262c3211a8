//! The state of DiLoCo in checkpoints, as far as all ranks hold it alike.

use super::fragment::Fragment;
use super::{DiLoCo, InFlight};
use crate::checkpoint::{Checkpoint, Error, Result, State, Stateful, TensorInfo, fits, read_part};
use crate::{Array, Tensor};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::rc::Rc;

/// How far the training is.
#[derive(Serialize, Deserialize)]
struct Place {
    steps: u64,
    /// The step in which each fragment was sent last.
    sent_at: Vec<u64>,
    /// The fragment whose mean is under way, and the step in which it is due.
    flight: Option<(usize, u64)>,
}

/// The outer weights, as `anchor.NAME` under the prefix, their momentum, the number of steps, and what is under way, which all ranks hold alike; and what each
/// rank's hook has left out (`hook`). A rank's weights and its own optimizer are not part of it: the program saves them, as each rank's own, by
/// [`State::of_rank`].
///
/// Saving waits for what is under way.
impl Stateful for DiLoCo {
    fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) -> Result<()> {
        for fragment in &self.fragments {
            for (kind, numbers) in [("anchor", &fragment.anchor), ("momentum", &fragment.momentum)] {
                for (name, info, place) in fragment.tensors(prefix, kind) {
                    let part = move |range: Range<usize>| {
                        Ok(numbers.read_range(place.start + range.start..place.start + range.end)?)
                    };
                    state.tensor(name, info, part);
                }
            }
        }
        if let Some(InFlight { fragment, .. }) = self.flight {
            let fragment = &self.fragments[fragment];
            let means: Rc<[u8]> =
                self.averager.with(|averager| averager.bytes()[..fragment.bytes()].into())?;
            for (name, info, place) in fragment.tensors(prefix, "mean") {
                let means = means.clone();
                let part = move |range: Range<usize>| {
                    let elements = place.start + range.start..place.start + range.end;
                    Ok(means[fragment.place(&elements)].to_vec())
                };
                state.tensor(name, info, part);
            }
        }
        let sent_at = self.fragments.iter().map(|fragment| fragment.sent_at).collect();
        let flight = self.flight.map(|flight| (flight.fragment, flight.due));
        state.value(format!("{prefix}.place"), &Place { steps: self.steps, sent_at, flight })?;
        self.averager.with(|averager| match &averager.hook {
            Some(hook) => hook.save(&format!("{prefix}.hook"), &self.group, state),
            None => Ok(()),
        })?
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
        let means = flight.map_or_else(Vec::new, |(at, _)| self.fragments[at].tensors(prefix, "mean"));
        let outer = self
            .fragments
            .iter()
            .flat_map(|fragment| ["anchor", "momentum"].map(|kind| fragment.tensors(prefix, kind)).concat());
        for (name, info, _) in outer.chain(means) {
            fits(&name, info, from)?;
        }
        for (fragment, sent_at) in self.fragments.iter_mut().zip(sent_at) {
            read_all(fragment.tensors(prefix, "anchor"), &mut fragment.anchor, from)?;
            read_all(fragment.tensors(prefix, "momentum"), &mut fragment.momentum, from)?;
            fragment.sent_at = sent_at;
        }
        self.flight = flight.map(|(fragment, due)| InFlight { fragment, due });
        if let Some(InFlight { fragment, .. }) = self.flight {
            let fragment = &self.fragments[fragment];
            self.averager.with(|averager| {
                fragment.tensors(prefix, "mean").into_iter().try_for_each(|(name, _, place)| {
                    let bytes = &mut averager.bytes()[fragment.place(&place)];
                    from.read_bytes(&name, 0..place.len(), bytes)
                })
            })??;
        }
        self.averager.with(|averager| match &mut averager.hook {
            Some(hook) => hook.load(&format!("{prefix}.hook"), &self.group, from),
            None => Ok(()),
        })??;
        self.steps = steps;
        Ok(())
    }
}

/// A tensor by name, and its elements in a fragment.
type Named = (String, TensorInfo, Range<usize>);

impl Fragment {
    fn tensors(&self, prefix: &str, kind: &str) -> Vec<Named> {
        let dtype = self.anchor.dtype();
        let named = self.members.iter().map(|(weight, place)| {
            let info = TensorInfo { dtype, shape: weight.dims.clone() };
            (format!("{prefix}.{kind}.{}", weight.name), info, place.clone())
        });
        named.collect()
    }
}

fn read_all(tensors: Vec<Named>, into: &mut Array, from: &Checkpoint) -> Result<()> {
    tensors
        .into_iter()
        .try_for_each(|(name, _, place)| read_part(&name, 0..place.len(), into, place.start, from))
}
