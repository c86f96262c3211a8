//! A device on which a kernel went wrong: it says so to every call from then on, whatever that is about.

use crate::cuda::{CudaResult, ILLEGAL_ADDRESS};
use std::sync::atomic::{AtomicBool, Ordering};

static HAS_FAILED: AtomicBool = AtomicBool::new(false);

pub(crate) fn fail() {
    HAS_FAILED.store(true, Ordering::SeqCst);
}

pub(crate) fn has_failed() -> bool {
    HAS_FAILED.load(Ordering::SeqCst)
}

/// What a call says that reaches the device.
pub(crate) fn check() -> Result<(), CudaResult> {
    if has_failed() { Err(ILLEGAL_ADDRESS) } else { Ok(()) }
}
