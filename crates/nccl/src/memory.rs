//! A piece of memory that streams use, of a device or of the host for a device.

use crate::queue::{Event, Queue};
use crate::sys::cuda::RawPointer;
use phalanx_core::Result;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A piece of memory, and the last use of it.
///
/// Each use waits for the one before, on the device, whichever streams the two are on. So nobody reads what is not there yet, or overwrites what
/// is still read, and memory whose owner is gone lives until its last use is over.
pub(crate) struct Memory {
    address: RawPointer,
    last_use: Mutex<Event>,
    /// Whether it is unknown if its last use will ever be over.
    is_lost: AtomicBool,
}

impl Memory {
    pub(crate) fn new(address: RawPointer, last_use: Event) -> Self {
        Self { address, last_use: Mutex::new(last_use), is_lost: AtomicBool::new(false) }
    }

    /// As the device sees it.
    pub(crate) fn address(&self) -> RawPointer {
        self.address
    }

    /// The number of its device.
    pub(crate) fn ordinal(&self) -> usize {
        self.last_use().context.ordinal
    }

    /// Marks it as never to be freed: whether something will still write it can't be known.
    pub(crate) fn lose(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    pub(crate) fn is_unused(&self) -> bool {
        !self.is_lost() && self.last_use().is_over().unwrap_or(false)
    }

    /// Waits for the last use; `false` when that took longer.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<bool> {
        self.last_use().wait(timeout)
    }

    /// Later work there waits for the last use.
    pub(crate) fn order(&self, queue: &Queue) -> Result<()> {
        queue.wait_for(&self.last_use())
    }

    pub(crate) fn last_use(&self) -> MutexGuard<'_, Event> {
        self.last_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
