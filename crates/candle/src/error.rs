//! What can go wrong between candle and the group.

use crate::Version;
use phalanx_train::Error as Train;

/// What every fallible call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the group, of candle, or a disagreement about the model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The group could not do it; see [`phalanx::Error`] for whose trouble it is and whether the group is usable.
    #[error(transparent)]
    Group(#[from] phalanx::Error),
    /// Candle could not do it. Nothing was sent for the tensor in question.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// A checkpoint could not be saved or loaded; see [`checkpoint::Error`](crate::checkpoint::Error).
    #[error(transparent)]
    Checkpoint(#[from] crate::checkpoint::Error),
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
    /// Ranks have let different units of a sharded model work at the same time. No weights were mixed up; the ranks are at different
    /// places, so whoever sees it aborts the group with this message.
    #[error(
        "rank {rank} needs the weights of the unit `{found}` while rank 0 needs those of `{expected}`: all ranks let the same \
         units work in the same order"
    )]
    UnitMismatch {
        /// What rank 0 gathers.
        expected: String,
        /// The lowest rank that gathers something else.
        rank: usize,
        /// What it gathers.
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

impl From<Train> for Error {
    fn from(error: Train) -> Self {
        match error {
            Train::Group(error) => Self::Group(error),
            Train::ModelMismatch { name, root, expected, rank, found } => {
                Self::ModelMismatch { name, root, expected, rank, found }
            }
            Train::ParameterMismatch { name, versions } => Self::ParameterMismatch { name, versions },
            Train::Tensors(error) => Self::Candle(match error.downcast() {
                Ok(candles) => *candles,
                Err(other) => candle_core::Error::wrap(other),
            }),
            other => Self::Candle(candle_core::Error::wrap(other)),
        }
    }
}

fn listed(versions: &[Version]) -> String {
    versions.iter().map(Version::to_string).collect::<Vec<_>>().join(", ")
}
