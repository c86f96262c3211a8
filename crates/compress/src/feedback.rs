//! What was left out, until it is sent.

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

    /// Where to note what is left out of a bucket of this length.
    pub(crate) fn of(&mut self, index: usize, len: usize) -> &mut [f32] {
        let left = self.0.entry(index).or_default();
        left.resize(len, 0.0);
        left
    }
}

/// What is to be remembered of a difference: nothing if it is no number, or one overflow would spoil all steps to come.
pub(crate) fn finite(difference: f32) -> f32 {
    if difference.is_finite() { difference } else { 0.0 }
}
