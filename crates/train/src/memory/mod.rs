//! The memory in which gradients are reduced.

mod alone;
mod bytes;
mod seam;
mod together;

pub use seam::{Memory, Reduction, Sending};

use crate::{Plan, Result, Tensor};
use phalanx::ProcessGroup;
use std::sync::Arc;

/// Gradients in the host's memory. Collective, but for [`Sending::Once`].
///
/// Sent one after the other they travel in one small buffer, and one that has a bucket for itself is reduced where it lies. Sent together, each
/// bucket has memory of its own. Both are [allocated](ProcessGroup::alloc) once.
///
/// # Errors
/// Those of [`alloc`](ProcessGroup::alloc).
#[track_caller]
pub fn on_host<T: Tensor>(
    plan: Arc<Plan<T::Device>>,
    sending: Sending,
    group: &ProcessGroup,
) -> Result<Box<dyn Memory<T>>> {
    let words = || {
        let shared = plan.buckets().iter().filter(|bucket| bucket.members.len() > 1);
        shared.map(crate::Bucket::bytes).max().unwrap_or(0).div_ceil(size_of::<u64>())
    };
    Ok(match sending {
        Sending::Once => Box::new(alone::Alone::new(vec![0; words()], plan)),
        Sending::After => Box::new(alone::Alone::new(group.alloc(words())?, plan)),
        Sending::During => Box::new(together::Together::new(plan, group)?),
    })
}
