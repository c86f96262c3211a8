//! Error feedback: the parts of gradients that were left out are added to the next step's.

use phalanx::{DType, ProcessGroup};
use phalanx_checkpoint::{Checkpoint, Error, Result, State, TensorInfo};
use std::collections::BTreeMap;

/// For each bucket what is to be added to its next gradients.
#[derive(Debug, Default)]
pub(crate) struct Feedback(BTreeMap<usize, Vec<f32>>);

impl Feedback {
    /// Adds to `gradients` what was left out of this bucket. A bucket of another length than last time is another one: the buckets
    /// were planned anew, and what was left out of the old ones is dropped.
    pub(crate) fn add_to(&self, index: usize, gradients: &mut [f32]) {
        if let Some(left) = self.0.get(&index).filter(|left| left.len() == gradients.len()) {
            gradients.iter_mut().zip(left).for_each(|(gradient, left)| *gradient += left);
        }
    }

    /// The parts left out of a bucket of this length, to be read and set.
    pub(crate) fn of(&mut self, index: usize, len: usize) -> &mut [f32] {
        let left = self.0.entry(index).or_default();
        left.resize(len, 0.0);
        left
    }

    /// Adds this rank's to a state, as `name`.
    pub(crate) fn save(&self, name: &str, group: &ProcessGroup, state: &mut State<'_>) -> Result<()> {
        state.of_rank(group.rank(), |own| save_buckets(&self.0, name, own))
    }

    /// What was left out when it was saved as `name`. All ranks together owe it to the sum, whoever of them remembers it: so on another number of
    /// ranks each takes over what some of those owed.
    pub(crate) fn load(name: &str, group: &ProcessGroup, from: &Checkpoint) -> Result<Self> {
        let mut all = Self::default();
        for rank in predecessors(group, from) {
            for (index, left) in Self::of_rank(name, rank, from)?.0 {
                all.owe(index, left);
            }
        }
        Ok(all)
    }

    /// Loads the parts that rank `rank` has saved.
    pub(crate) fn of_rank(name: &str, rank: usize, from: &Checkpoint) -> Result<Self> {
        load_buckets(name, &from.of_rank(rank)).map(Self)
    }

    pub(crate) fn into_buckets(self) -> impl Iterator<Item = (usize, Vec<f32>)> {
        self.0.into_iter()
    }

    /// Adds to what is left out of a bucket.
    fn owe(&mut self, index: usize, more: Vec<f32>) {
        match self.0.get_mut(&index) {
            Some(left) => left.iter_mut().zip(more).for_each(|(left, more)| *left += more),
            None => drop(self.0.insert(index, more)),
        }
    }

    /// Adds to what is left out of a bucket from its gradient `start` on.
    pub(crate) fn owe_from(&mut self, index: usize, start: usize, more: &[f32]) {
        let left = self.0.get_mut(&index).and_then(|left| left.get_mut(start..)).unwrap_or_default();
        left.iter_mut().zip(more).for_each(|(left, more)| *left += more);
    }
}

/// The ranks of a checkpoint whose debts this rank takes over: those that are it, if there are as many ranks as there were.
pub(crate) fn predecessors(group: &ProcessGroup, from: &Checkpoint) -> impl Iterator<Item = usize> + use<> {
    (group.rank()..from.world_size()).step_by(group.world_size())
}

/// Adds numbers of each bucket to a state, as `name`.
pub(crate) fn save_buckets(
    buckets: &BTreeMap<usize, Vec<f32>>,
    name: &str,
    state: &mut State<'_>,
) -> Result<()> {
    state.value(name, &buckets.keys().collect::<Vec<_>>())?;
    for (index, values) in buckets {
        let (info, values) = (TensorInfo { dtype: DType::F32, shape: vec![values.len()] }, values.clone());
        state.tensor(format!("{name}.{index}"), info, move |range| {
            Ok(bytemuck::cast_slice(&values[range]).to_vec())
        });
    }
    Ok(())
}

/// Loads the buckets that [`save_buckets`] has saved as `name`; none if it has not.
pub(crate) fn load_buckets(name: &str, from: &Checkpoint) -> Result<BTreeMap<usize, Vec<f32>>> {
    let indices: Vec<usize> = match from.value(name) {
        Err(Error::Missing { .. }) => Vec::new(),
        found => found?,
    };
    indices.into_iter().map(|index| Ok((index, from.read(&format!("{name}.{index}"))?))).collect()
}

/// The part of a difference to remember: 0 if it is not finite, for one overflow would spoil all steps to come.
pub(crate) fn finite(difference: f32) -> f32 {
    if difference.is_finite() { difference } else { 0.0 }
}
