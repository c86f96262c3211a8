//! What the handles on a group keep alive.

use crate::group::backend::Backend;
use crate::group::owner_process::{QuickOwnerProcess, refusal};
use phalanx_core::{Cause, Loss, OpKind, Result};
use std::sync::Arc;

/// What all handles of a program on a group share. Operations in flight are no handles: a rank whose thread panics with its
/// last handle has panicked, whoever still waits for an operation.
#[derive(Debug)]
pub(crate) struct Handles {
    backend: Arc<dyn Backend>,
    owner_process: QuickOwnerProcess,
}

impl Handles {
    pub(crate) fn new(backend: Arc<dyn Backend>, owner_process: QuickOwnerProcess) -> Self {
        Self { backend, owner_process }
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        if std::thread::panicking() && self.owner_process.is_here() {
            let peer = self.backend.peer(self.backend.rank());
            self.backend.fail(Cause::Lost { peer, how: Loss::Panicked });
        }
    }
}

/// What lasts as long as any handle on a group, or any of its operations in flight.
pub(crate) trait KeptAlive: Send + Sync + std::fmt::Debug {}

/// What an operation in flight needs of its group: the group lasts at least as long.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) _generation: Option<Arc<dyn KeptAlive>>,
    pub(crate) owner_process: QuickOwnerProcess,
    pub(crate) op: OpKind,
}

impl InFlight {
    /// Refuses in a process that was forked from the one that began the operation: nobody performs it there.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.owner_process.is_here() {
            return Ok(());
        }
        Err(refusal(self.op, self.backend.rank(), self.owner_process))
    }
}
