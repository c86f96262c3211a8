//! The error of this crate: failures of candle, of the group, and between the two.

use crate::Version;
use phalanx_train::Error as Train;
use std::fmt;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the group, of candle, or a disagreement about the model.
#[derive(thiserror::Error)]
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
        /// The root's version: `f32 [10, 128]`, or `none`.
        expected: String,
        /// The lowest rank that differs.
        rank: usize,
        /// The other rank's version.
        found: String,
    },
    /// Ranks have let different units of a sharded model work at the same time. No weights were mixed up; the ranks are at different
    /// places, so whoever sees it aborts the group with this message.
    #[error(
        "rank {rank} needs the weights of the unit `{found}` while rank 0 needs those of `{expected}`: all ranks let the same \
         units work in the same order"
    )]
    UnitMismatch {
        /// The weights that rank 0 gathers.
        expected: String,
        /// The lowest rank that gathers something else.
        rank: usize,
        /// The unit whose weights that rank needs.
        found: String,
    },
    /// Ranks hold different versions of a parameter. Every rank gets this same error, nothing was changed, and the group
    /// is fine.
    #[error("parameter `{name}` differs between ranks: {}", listed(versions))]
    ParameterMismatch {
        /// The first parameter, in name order, that is not the same on all ranks.
        name: String,
        /// The versions, each by the lowest rank that holds it; at least two.
        versions: Vec<Version>,
    },
    /// The shares of the ranks in a step do not make one batch: gradients weighed by them would be too large, or too small. Every rank gets this
    /// same error, no gradients are given, what was accumulated for the step is gone, and the group is fine.
    #[error("{}", told(what, shares))]
    ShareMismatch {
        /// How the shares do not fit together.
        what: String,
        /// Each rank's share, in rank order: `4 of 12 samples`.
        shares: Vec<String>,
    },
    /// No rank has a gradient for some variables, and [`MissingGradients::Error`](crate::MissingGradients::Error) refuses that. Every rank gets this
    /// same error, no gradients are given, what was accumulated for the step is gone, and the group is fine.
    #[error("{}", Train::NoGradient { names: names.clone(), hint: NO_GRADIENT_HINT })]
    NoGradient {
        /// The variables, in name order.
        names: Vec<String>,
    },
}

/// The same words as `Display`: what `fn main() -> phalanx_candle::Result<()>` and `unwrap` print is what a person wants to read.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Advice where no rank has a gradient for a variable. `docs/reference/ddp.md` has all operations that lose gradients.
pub(crate) const NO_GRADIENT_HINT: &str = "Either the loss does not depend on them, or an operation between them and the loss loses gradients without a \
     word, as the fused ones of candle_nn do: LayerNorm and ops::layer_norm (use ops::layer_norm_slow), RmsNorm and ops::rms_norm \
     (RmsNorm::forward_diff, ops::rms_norm_slow), ops::softmax_last_dim (ops::softmax), rotary_emb::rope (rope_slow). If they are to stay as they \
     are, set MissingGradients::Allow";

impl From<Train> for Error {
    fn from(error: Train) -> Self {
        match error {
            Train::Group(error) => Self::Group(error),
            Train::Checkpoint(error) => Self::Checkpoint(error),
            Train::ModelMismatch { name, root, expected, rank, found } => {
                Self::ModelMismatch { name, root, expected, rank, found }
            }
            Train::UnitMismatch { expected, rank, found } => Self::UnitMismatch { expected, rank, found },
            Train::ParameterMismatch { name, versions } => Self::ParameterMismatch { name, versions },
            Train::ShareMismatch { what, shares } => Self::ShareMismatch { what, shares },
            Train::NoGradient { names, .. } => Self::NoGradient { names },
            Train::Tensors(error) => Self::Candle(match error.downcast() {
                Ok(candles) => *candles,
                Err(other) => candle_core::Error::wrap(other),
            }),
            other => Self::Candle(candle_core::Error::wrap(other)),
        }
    }
}

fn told(what: &str, shares: &[String]) -> String {
    Train::ShareMismatch { what: what.to_owned(), shares: shares.to_vec() }.to_string()
}

fn listed(versions: &[Version]) -> String {
    versions.iter().map(Version::to_string).collect::<Vec<_>>().join(", ")
}
