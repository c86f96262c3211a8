//! This rank's connection to the others: NCCL's, and the group on the host that knows what has become of it.

use crate::comm::{ABORT_TIME, Communicator};
use crate::joint_health::JointHealth;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// NCCL's communicator, and the group on the host that knows what has become of it.
pub(crate) struct Connection {
    pub(super) health: JointHealth,
    pub(super) comm: Communicator,
    is_aborted: AtomicBool,
    /// Since when NCCL knows of trouble of which the group does not.
    pub(super) trouble: Mutex<Option<Instant>>,
}

impl Connection {
    pub(super) fn new(health: JointHealth, comm: Communicator) -> Self {
        Self { health, comm, is_aborted: AtomicBool::new(false), trouble: Mutex::default() }
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::SeqCst)
    }

    /// Stops the communicator, which may take a while; once.
    pub(super) fn abort(&self) {
        if self.is_aborted.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Err(error) = self.comm.abort(ABORT_TIME) {
            tracing::error!(%error, "NCCL does not stop; end this process soon");
        }
    }
}
