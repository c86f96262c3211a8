//! The error of this crate: failures of tensors, of the group, and between the two.

use crate::version::{self, Version};
use std::fmt;

/// The result of every fallible call of this crate.
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
    /// A checkpoint could not be saved or loaded; see [`checkpoint::Error`](crate::checkpoint::Error).
    #[error(transparent)]
    Checkpoint(#[from] phalanx_checkpoint::Error),
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
    #[error("parameter `{name}` differs between ranks: {}", version::listed(versions))]
    ParameterMismatch {
        /// The first parameter, in name order, that is not the same on all ranks.
        name: String,
        /// The versions, each by the lowest rank that holds it; at least two.
        versions: Vec<Version>,
    },
    /// The shares of the ranks in a step do not make one batch: gradients weighed by them would be too large, or too small. Every rank gets this
    /// same error, no gradients are given, what was kept for the step is gone, and the group is fine.
    #[error(
        "the shares of the ranks do not make one batch: {what} ({}); pass Share::new(samples of this rank, samples of all ranks \
         together), or Share::EQUAL on all ranks",
        by_rank(shares)
    )]
    ShareMismatch {
        /// How the shares do not fit together.
        what: String,
        /// Each rank's share, in rank order: `4 of 12 samples`.
        shares: Vec<String>,
    },
    /// No rank has a gradient for some parameters, which the program did not allow: see
    /// [`MissingGradients::Error`](crate::MissingGradients::Error). Every rank gets this same error, no gradients are given, what was kept for the step is gone, and
    /// the group is fine.
    #[error("{}", no_gradient(names, hint))]
    NoGradient {
        /// The parameters, in name order.
        names: Vec<String>,
        /// The likely cause, and what to do.
        hint: &'static str,
    },
}

/// The same words as `Display`: what `fn main() -> phalanx_train::Result<()>` and `unwrap` print is what a person wants to read.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Lists each rank's share in one line; ranks next to each other with equal shares stand together.
fn by_rank(shares: &[String]) -> String {
    let mut runs: Vec<(usize, usize, &str)> = Vec::new();
    for (rank, share) in shares.iter().enumerate() {
        match runs.last_mut() {
            Some((_, last, text)) if *text == share => *last = rank,
            _ => runs.push((rank, rank, share)),
        }
    }
    let told = |&(first, last, share): &(usize, usize, &str)| match first == last {
        true => format!("rank {first}: {share}"),
        false => format!("ranks {first} to {last}: {share} each"),
    };
    runs.iter().map(told).collect::<Vec<_>>().join("; ")
}

/// Names that are told before the rest is only counted.
const NAMES_MAX: usize = 16;

pub(crate) fn no_gradient(names: &[String], hint: &str) -> String {
    let shown: Vec<_> = names.iter().take(NAMES_MAX).map(|name| format!("`{name}`")).collect();
    let more = match names.len().saturating_sub(NAMES_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("no rank has a gradient for {}{more}, so no optimizer changes them. {hint}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_are_counted() {
        let names: Vec<String> = (0..18).map(|i| i.to_string()).collect();
        assert!(no_gradient(&names, "why").ends_with("`15` and 2 more, so no optimizer changes them. why"));
        assert_eq!(
            no_gradient(&names[..1], "why"),
            "no rank has a gradient for `0`, so no optimizer changes them. why"
        );
    }

    #[test]
    fn ranks_that_say_the_same_stand_together() {
        let shares = ["a", "a", "a", "b", "c", "c"].map(String::from);
        assert_eq!(by_rank(&shares), "ranks 0 to 2: a each; rank 3: b; ranks 4 to 5: c each");
    }
}
