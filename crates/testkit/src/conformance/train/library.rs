//! The trait `Library`: what the suite asks of an adapter.

use super::{Batch, Named, Toy};
use phalanx_group::ProcessGroup;

/// A library of tensors with its adapter, as one rank of the suite trains with it.
///
/// Whatever the library calls its weights, and in which order it has their elements: here they have the names and the layout of [`Toy`]. Errors
/// are told by their words.
pub trait Library: Sized {
    /// Builds the network, and wraps it for data-parallel training with buckets of at most so many bytes. No gradient for a weight is no error, and
    /// no warning is needed.
    ///
    /// # Errors
    /// The adapter's.
    fn wrap(toy: &Toy, group: &ProcessGroup, bucket_cap_bytes: usize) -> Result<Self, String>;

    /// The weights as they are now.
    fn weights(&self) -> Named;

    /// A step: the loss of this rank's batch, and the gradients of all. Without a share all ranks count alike; with one this rank has so many of so many
    /// samples. `None` is a rank that has no samples in this step, whose loss is 0.
    ///
    /// # Errors
    /// The adapter's.
    fn step(&mut self, batch: Option<&Batch>, share: Option<(usize, usize)>) -> Result<(f32, Named), String>;

    /// Keeps the gradients of a batch for the next step.
    ///
    /// # Errors
    /// The adapter's.
    fn accumulate(&mut self, batch: &Batch) -> Result<(), String>;

    /// Takes part in a step of the others, when this rank has no more batches. `None` when no rank has.
    ///
    /// # Errors
    /// The adapter's.
    fn join(&mut self) -> Result<Option<Named>, String>;

    /// Plain gradient descent by the gradients of the last step, or join, as the library itself does it.
    fn descend(&mut self, rate: f64);
}
