//! How much of the global batch a rank has worked on.

use crate::Result;
use phalanx::error::OpKind;
use phalanx::{Error, ProcessGroup};
use std::ops::Mul;

/// This rank's part of the global batch, by which its gradients are weighed.
///
/// The gradient of a mean over the global batch is the sum over the ranks of (gradient of the local mean) × (local samples /
/// global samples). With shares that add up to the whole, the outcome is that of one process with all samples, no matter
/// how unevenly they were dealt.
///
/// Each step compares the shares of all ranks. Those that do not add up to the whole are an error on all of them,
/// [`ShareMismatch`](crate::Error::ShareMismatch), and no gradients are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Share(Option<(usize, usize)>);

impl Share {
    /// An equal share: one of `world_size` equal parts.
    pub const EQUAL: Self = Self(None);

    /// `samples` of the `global` samples that all ranks have together. With no samples the gradients count for
    /// nothing, but the rank still takes part. If it does not know then how many the others have, `Share::new(0, 0)` says so.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::Share;
    ///
    /// assert_eq!(Share::new(3, 10).samples(), Some((3, 10)));
    /// ```
    pub fn new(samples: usize, global: usize) -> Self {
        Self(Some((samples, global)))
    }

    /// `loss`, a mean over this share's samples, as this rank's part of what all ranks together minimise, so that an average of the
    /// gradients over the ranks is right. A step with this share weighs gradients instead, which comes to the same but for layers that pass
    /// gradients from rank to rank, as a batch normalisation over all ranks does: with these, weigh the loss and make steps with
    /// [equal](Self::EQUAL) shares.
    ///
    /// A rank without any samples has no loss; it has no gradients for the step, with an equal share, for they are zero.
    ///
    /// No rank hears of the shares that others weigh with: whether they add up to the whole is up to the program.
    ///
    /// This is for libraries whose operators return a `Result`. Otherwise multiply by the weight of the [`part`](Self::part), times the number of ranks.
    ///
    /// # Errors
    /// Those of the library, and [`phalanx::Error::Misuse`] for a share of more than the whole.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::Share;
    ///
    /// /// A loss of a library whose operators return a `Result`.
    /// #[derive(Clone)]
    /// struct Loss(f64);
    ///
    /// impl std::ops::Mul<f64> for &Loss {
    ///     type Output = Result<Loss, std::fmt::Error>;
    ///
    ///     fn mul(self, by: f64) -> Self::Output {
    ///         Ok(Loss(self.0 * by))
    ///     }
    /// }
    ///
    /// let losses = phalanx::on_threads(2, |group| {
    ///     let share = Share::new([3, 1][group.rank()], 4);
    ///     Ok(share.weigh(&Loss(1.0), &group).unwrap().0)
    /// })?;
    /// assert_eq!(losses, [1.5, 0.5]); // their average is that over four samples
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn weigh<'l, L, E>(self, loss: &'l L, group: &ProcessGroup) -> Result<L>
    where
        L: Clone,
        &'l L: Mul<f64, Output = std::result::Result<L, E>>,
        E: std::error::Error + Send + Sync + 'static,
    {
        match self.part()? {
            Part::Weighted(weight) => {
                let weighed = loss * (weight * group.world_size() as f64);
                weighed.map_err(|error| crate::Error::Tensors(error.into()))
            }
            _ => Ok(loss.clone()),
        }
    }

    /// How many samples of how many, unless it is an [equal](Self::EQUAL) share.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::Share;
    ///
    /// assert_eq!(Share::new(3, 10).samples(), Some((3, 10)));
    /// assert_eq!(Share::EQUAL.samples(), None);
    /// ```
    pub fn samples(self) -> Option<(usize, usize)> {
        self.0
    }

    /// The part that a rank with this share takes in a step.
    ///
    /// # Errors
    /// [`Misuse`](phalanx::Error::Misuse) for a share of more than the whole.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::{Part, Share};
    ///
    /// assert_eq!(Share::new(3, 4).part()?, Part::Weighted(0.75));
    /// assert_eq!(Share::EQUAL.part()?, Part::Equal);
    /// assert!(Share::new(5, 4).part().is_err());
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn part(self) -> phalanx::Result<Part> {
        match self.0 {
            None => Ok(Part::Equal),
            Some((0, _)) => Ok(Part::Weighted(0.0)),
            Some((samples, global)) if samples <= global => {
                Ok(Part::Weighted(samples as f64 / global as f64))
            }
            Some((samples, global)) => {
                let what = format!("a share of {samples} samples is more than the global batch of {global}");
                Err(Error::misuse(OpKind::AllReduce, what))
            }
        }
    }
}

/// The part that a rank takes in a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Part {
    /// Its gradients count as much as every other rank's.
    Equal,
    /// Its gradients are multiplied by this weight.
    Weighted(f64),
    /// The rank has no more batches, and only answers the others.
    Done,
}

impl Part {
    /// Whether this rank's gradients are asked for at all.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::Part;
    ///
    /// assert!(Part::Weighted(0.75).counts());
    /// assert!(!Part::Weighted(0.0).counts()); // no samples
    /// assert!(!Part::Done.counts());
    /// ```
    pub fn counts(self) -> bool {
        !matches!(self, Self::Done | Self::Weighted(0.0))
    }
}
