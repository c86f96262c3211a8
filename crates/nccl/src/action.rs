//! What is done with raw device memory: a collective of the group, or a message.

use crate::sys::cuda::RawPointer;
use phalanx_group::Request;

/// What is done with raw device memory.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// By all ranks.
    Collective(Request<RawPointer, RawPointer>),
    /// A message to a rank.
    Send { from: RawPointer, dst: usize },
    /// A message from a rank.
    Recv { to: RawPointer, src: usize },
}
