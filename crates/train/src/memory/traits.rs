//! The trait `Memory`: what a step asks of the memory in which gradients are reduced.

use crate::Result;
use phalanx::{ProcessGroup, ReduceOp};
use phalanx_compress::CommHook;

/// When buckets are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sending {
    /// Buckets are sent one after the other, once: nothing is kept for a next step.
    Once,
    /// Buckets are sent one after the other, when all gradients are there.
    After,
    /// Each bucket is sent as soon as it is complete, so several are under way at once.
    During,
}

/// The memory in which the gradients of a [`Plan`](crate::Plan) are reduced.
///
/// In each step each parameter's gradient is [laid](Self::lay) or [skipped](Self::skip). A bucket is [launched](Self::launch) then, unless nobody
/// has a gradient for it; it [lands](Self::land), and its gradients are [lifted](Self::lift), those that any rank had. Buckets are
/// launched in their order. With [`Sending::During`] all may be under way at once; else each is lifted before the next is launched. A
/// step may end anywhere in between, if it fails.
///
/// [`on_host`](super::on_host) makes one for memory that the host can see. A library with other memory gives its own, by [`Tensor::memory`](crate::Tensor::memory).
pub trait Memory<T>: Send {
    /// Takes this rank's gradient of a parameter, in the type in which it travels, until it is lifted. It counts `scale` times.
    ///
    /// # Errors
    /// The library's, and those of operations that failed before.
    fn lay(&mut self, parameter: usize, grad: T, scale: Option<f64>) -> Result<()>;

    /// This rank has no gradient of a parameter: it counts as zeros.
    ///
    /// # Errors
    /// As of [`lay`](Self::lay).
    fn skip(&mut self, parameter: usize) -> Result<()>;

    /// Reduces a bucket, or begins to: the same one on all ranks.
    ///
    /// # Errors
    /// Those of the operation.
    fn launch(&mut self, bucket: usize, reduction: Reduction<'_>) -> Result<()>;

    /// Waits until a bucket that was launched is reduced.
    ///
    /// # Errors
    /// Those of the operation.
    fn land(&mut self, bucket: usize) -> Result<()>;

    /// Gives the reduced gradient of a parameter whose bucket has landed: the tensor that was laid, or a new one if none was.
    ///
    /// # Errors
    /// The library's.
    fn lift(&mut self, parameter: usize) -> Result<T>;
}

/// How a bucket is reduced.
pub struct Reduction<'a> {
    /// The ranks. Where there are other ways between them, these are which ranks they are, and where the program made the call.
    pub group: &'a ProcessGroup,
    /// The operator that combines the ranks' gradients.
    pub op: ReduceOp,
    /// A hook that adds up gradients of f32 instead. There is none with [`Sending::During`].
    pub hook: Option<&'a mut dyn CommHook>,
}

impl std::fmt::Debug for Reduction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reduction")
            .field("op", &self.op)
            .field("hooked", &self.hook.is_some())
            .finish_non_exhaustive()
    }
}
