//! What can go wrong between tensors and the group.

use crate::Version;
use crate::{missing, tally, verify};
use std::fmt;

/// What every fallible call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the group, of the library that has the tensors, or a disagreement about the model.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The group could not do it; see [`phalanx::Error`] for whose trouble it is and whether the group is usable.
    #[error(transparent)]
    Group(#[from] phalanx::Error),
    /// The library that has the tensors could not do it.
    #[error(transparent)]
    Tensors(#[from] Box<dyn std::error::Error + Send + Sync>),
    /// Two ranks have built different models. Every rank gets this same error, nothing was changed, and the
    /// group is fine.
    #[error("parameter `{name}` differs between ranks: rank {root} has {expected}, rank {rank} has {found}")]
    ModelMismatch {
        /// The first parameter, in name order, that is not the same on both.
        name: String,
        /// The rank the others are compared with.
        root: usize,
        /// What it has there: `f32 [10, 128]`, or `none`.
        expected: String,
        /// The lowest rank that differs.
        rank: usize,
        /// What it has there.
        found: String,
    },
    /// Ranks hold different versions of a parameter. Every rank gets this same error, nothing was changed, and the group
    /// is fine.
    #[error("parameter `{name}` differs between ranks: {}", verify::listed(versions))]
    ParameterMismatch {
        /// The first parameter, in name order, that is not the same on all ranks.
        name: String,
        /// What there is of it, by the lowest rank that holds it; at least two versions.
        versions: Vec<Version>,
    },
    /// The shares of the ranks in a step do not make one batch: gradients weighed by them would be too large, or too small. Every rank gets this
    /// same error, no gradients are given, what was kept for the step is gone, and the group is fine.
    #[error(
        "the shares of the ranks do not make one batch: {what} ({}); pass Share::new(samples of this rank, samples of all ranks \
         together), or Share::EQUAL on all ranks",
        tally::listed(shares)
    )]
    ShareMismatch {
        /// What does not fit.
        what: String,
        /// What each rank said, in rank order: `4 of 12 samples`.
        shares: Vec<String>,
    },
    /// No rank has a gradient for some parameters, which the program did not allow: see
    /// [`MissingGradients::Error`](crate::MissingGradients::Error). Every rank gets this same error, no gradients are given, what was kept for the step is gone, and
    /// the group is fine.
    #[error("{}", missing::told(names, hint))]
    NoGradient {
        /// The parameters, in name order.
        names: Vec<String>,
        /// What may be the cause, and what to do.
        hint: &'static str,
    },
}

/// The same words as `Display`: what `fn main() -> phalanx_train::Result<()>` and `unwrap` print is what a person wants to read.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
