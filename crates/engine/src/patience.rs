//! How long a call of the transport may wait for a peer, in the name of the operation that is polled.

use phalanx_control::failure_latch::FailureLatch;
use phalanx_transport::Patience;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// As long as the group has not failed, and the time of the operation that is polled is not over.
#[derive(Debug)]
pub(crate) struct OperationPatience {
    latch: Arc<FailureLatch>,
    /// Whole seconds that the operation had left when its clock was looked at last.
    left_s: AtomicU64,
}

impl OperationPatience {
    pub(crate) fn new(latch: Arc<FailureLatch>) -> Self {
        Self { latch, left_s: AtomicU64::new(0) }
    }

    /// An operation is polled which has so much time left.
    pub(crate) fn is_of(&self, left: Duration) {
        self.left_s.store(left.as_secs(), Ordering::Relaxed);
    }
}

impl Patience for OperationPatience {
    fn is_over(&self, waited: Duration) -> bool {
        self.latch.cause().is_some() || waited.as_secs() >= self.left_s.load(Ordering::Relaxed)
    }
}
