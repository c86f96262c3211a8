//! What the suite asks of an adapter: the trait `Library`, and those for what not all have.

use super::{Batch, Named, Toy};
use phalanx_group::ProcessGroup;
use std::path::Path;

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

/// A library with its adapter's ZeRO: each rank keeps a part of the gradients, and of what the optimizer remembers.
pub trait Sharding: Sized {
    /// Builds the network, makes its weights rank 0's, and deals them out. Gradients are dealt out as well, or not (ZeRO-2 or ZeRO-1). `rate` is that of plain
    /// gradient descent.
    ///
    /// # Errors
    /// The adapter's.
    fn deal_out(toy: &Toy, group: &ProcessGroup, with_gradients: bool, rate: f64) -> Result<Self, String>;

    /// The weights as this rank's network has them now.
    fn weights(&self) -> Named;

    /// A step, with the optimizer's, after which the network has all weights. As of [`Library::step`], without the loss.
    ///
    /// # Errors
    /// The adapter's.
    fn step(&mut self, batch: Option<&Batch>, share: Option<(usize, usize)>) -> Result<(), String>;
}

/// A library with its adapter's averages of weights: Local SGD, of which DiLoCo is made.
pub trait Averaging: Sized {
    /// Builds the network, and makes its weights rank 0's. They are averaged every so many steps. `rate` is that of plain gradient descent.
    ///
    /// # Errors
    /// The adapter's.
    fn average(toy: &Toy, group: &ProcessGroup, sync_every: u64, rate: f64) -> Result<Self, String>;

    /// The weights as this rank's network has them now.
    fn weights(&self) -> Named;

    /// A step of this rank's own optimizer on its own batch, and the average if it is time.
    ///
    /// # Errors
    /// The adapter's.
    fn step(&mut self, batch: &Batch) -> Result<(), String>;

    /// Averages what was trained since the last time.
    ///
    /// # Errors
    /// The adapter's.
    fn finish(&mut self) -> Result<(), String>;
}

/// A library with its adapter's checkpoints.
pub trait Saving: Library {
    /// Saves the weights as those of a step, with all ranks of the group.
    ///
    /// # Errors
    /// The adapter's.
    fn save(&self, folder: &Path, group: &ProcessGroup, step: u64) -> Result<(), String>;

    /// Gives the network the weights that were saved of a step, by whatever number of ranks.
    ///
    /// # Errors
    /// The adapter's.
    fn load(&mut self, folder: &Path, group: &ProcessGroup, step: u64) -> Result<(), String>;
}
