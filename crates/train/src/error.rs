//! What can go wrong between tensors and the group.

use crate::Version;
use crate::verify::listed;

/// What every fallible call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the group, of the library that has the tensors, or a disagreement about the model.
#[derive(Debug, thiserror::Error)]
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
    #[error("parameter `{name}` differs between ranks: {}", listed(versions))]
    ParameterMismatch {
        /// The first parameter, in name order, that is not the same on all ranks.
        name: String,
        /// What there is of it, by the lowest rank that holds it; at least two versions.
        versions: Vec<Version>,
    },
}
