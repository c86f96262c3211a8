//! The memory in which gradients are reduced.

mod bytes;
mod overlapped;
mod sequential;
mod traits;

pub use traits::{Memory, Reduction, Sending};

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
///
/// # Examples
/// ```
/// use phalanx::ReduceOp;
/// use phalanx_train::memory::{Reduction, Sending, on_host};
/// use phalanx_train::{Array, Parameter, Plan};
///
/// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
/// let parameters = [Parameter::of("weight", &Array::from(vec![0f32; 2]))];
/// let plan = Plan::new(&parameters.into(), &[0], 4 << 20);
/// let mut memory = on_host::<Array>(plan.into(), Sending::After, group)?;
/// memory.lay(0, Array::from(vec![1f32, group.rank() as f32]), None)?;
/// memory.launch(0, Reduction { group, op: ReduceOp::Sum, hook: None })?;
/// memory.land(0)?;
/// assert_eq!(memory.lift(0)?, Array::from(vec![2f32, 1.0]));
/// # Ok(()) }
/// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
/// ```
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
        Sending::Once => Box::new(sequential::Sequential::new(vec![0; words()], plan)),
        Sending::After => Box::new(sequential::Sequential::new(group.alloc(words())?, plan)),
        Sending::During => Box::new(overlapped::Overlapped::new(plan, group)?),
    })
}
