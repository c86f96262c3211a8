//! The last words of NCCL, of which there is one text for the whole process, whatever it was about and however long ago.

use crate::fault;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_SAID: AtomicBool = AtomicBool::new(false);

/// A call was refused.
pub(crate) fn say() {
    IS_SAID.store(true, Ordering::SeqCst);
}

pub(crate) fn now() -> &'static CStr {
    if IS_SAID.load(Ordering::SeqCst) {
        c"from the double"
    } else if fault::has("stale") {
        c"of something long ago"
    } else {
        c""
    }
}
