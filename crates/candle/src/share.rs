//! How much of the global batch a rank has worked on.

use crate::Result;
use phalanx::{Error, OpKind};

/// This rank's part of the global batch, by which its gradients are weighed.
///
/// The gradient of a mean over the global batch is the sum over the ranks of (gradient of the local mean) × (local samples /
/// global samples). With shares that add up to the whole, the outcome is that of one process with all samples, no matter
/// how unevenly they were dealt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Share(Option<(usize, usize)>);

impl Share {
    /// One part of `world_size` equal ones.
    pub const EQUAL: Self = Self(None);

    /// `samples` of the `global` samples that all ranks have together. With no samples the gradients count for
    /// nothing, but the rank still takes part.
    pub fn new(samples: usize, global: usize) -> Self {
        Self(Some((samples, global)))
    }

    /// The factor for this rank's gradients.
    pub(crate) fn weight(self, world_size: usize) -> Result<f64> {
        match self.0 {
            None => Ok(1.0 / world_size as f64),
            Some((0, _)) => Ok(0.0),
            Some((samples, global)) if samples <= global => Ok(samples as f64 / global as f64),
            Some((samples, global)) => {
                let what = format!("a share of {samples} samples is more than the global batch of {global}");
                Err(Error::misuse(OpKind::AllReduce, what).into())
            }
        }
    }
}
