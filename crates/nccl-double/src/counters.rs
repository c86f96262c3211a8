//! What the double counts, for tests.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicI64, Ordering};

/// What there is of a kind now, or has been of it so far.
pub(crate) struct Counter {
    name: &'static str,
    n: AtomicI64,
}

impl Counter {
    const fn new(name: &'static str) -> Self {
        Self { name, n: AtomicI64::new(0) }
    }

    pub(crate) fn add(&self, n: i64) {
        self.n.fetch_add(n, Ordering::SeqCst);
    }

    pub(crate) fn now(&self) -> i64 {
        self.n.load(Ordering::SeqCst)
    }
}

pub(crate) static COMMUNICATORS: Counter = Counter::new("communicators");
pub(crate) static STREAMS: Counter = Counter::new("streams");
pub(crate) static EVENTS: Counter = Counter::new("events");
pub(crate) static CONTEXTS: Counter = Counter::new("contexts");
/// Pieces of device memory, and bytes of it.
pub(crate) static ALLOCATIONS: Counter = Counter::new("allocations");
pub(crate) static BYTES: Counter = Counter::new("bytes");
/// Pieces of pinned host memory.
pub(crate) static PINNED: Counter = Counter::new("pinned");
/// Bytes of it.
pub(crate) static PINNED_BYTES: Counter = Counter::new("pinned_bytes");
/// Times that a pool was told not to reuse memory by making streams wait for each other.
pub(crate) static POOLS_APART: Counter = Counter::new("pools_apart");
/// Operators that were made by `ncclRedOpCreatePreMulSum`.
pub(crate) static OPERATORS: Counter = Counter::new("operators");
/// Calls so far.
pub(crate) static COPIES_TO_HOST: Counter = Counter::new("copies_to_host");
pub(crate) static LAUNCHES: Counter = Counter::new("launches");
/// Communicators that ended in order, and others.
pub(crate) static FINALIZED: Counter = Counter::new("finalized");
pub(crate) static ABORTED: Counter = Counter::new("aborted");

static ALL: [&Counter; 14] = [
    &COMMUNICATORS,
    &STREAMS,
    &EVENTS,
    &CONTEXTS,
    &ALLOCATIONS,
    &BYTES,
    &PINNED,
    &PINNED_BYTES,
    &POOLS_APART,
    &OPERATORS,
    &COPIES_TO_HOST,
    &LAUNCHES,
    &FINALIZED,
    &ABORTED,
];

/// The counter of this name; -1 if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanxDoubleCount(name: *const c_char) -> i64 {
    // SAFETY: tests pass a text that ends with NUL.
    let name = unsafe { CStr::from_ptr(name) };
    let found = ALL.iter().find(|counter| counter.name.as_bytes() == name.to_bytes());
    found.map_or(-1, |counter| counter.now())
}
