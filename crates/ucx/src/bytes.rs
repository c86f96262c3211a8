//! The bytes of a message that has arrived: copied, or where UCX has put them.

use std::ffi::c_void;
use std::ptr::NonNull;

pub(crate) enum Bytes {
    Copied(Vec<u8>),
    /// Still UCX's: [`Worker::release`](crate::worker::Worker::release) gives them back.
    Kept(Kept),
}

/// Bytes that UCX keeps for us. It leaks them, if they are not given back.
pub(crate) struct Kept {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: nobody writes the bytes until they are given back, which takes `self`, and then on whichever thread has the worker.
unsafe impl Send for Kept {}

impl Kept {
    /// # Safety
    /// There are `len` bytes, which nobody writes or frees before they are given back to UCX.
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len }
    }

    /// By what UCX knows them.
    pub(crate) fn start(&self) -> *mut c_void {
        self.start.as_ptr().cast()
    }
}

impl Bytes {
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            // SAFETY: whoever made it has promised that they stay until they are given back, which takes `self`.
            Self::Kept(kept) => unsafe { std::slice::from_raw_parts(kept.start.as_ptr(), kept.len) },
        }
    }
}
