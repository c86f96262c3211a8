//! Memory that operations need besides the caller's, kept from call to call: touching fresh pages costs more than
//! copying into them.

use std::cell::Cell;

thread_local! {
    static KEPT: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };
}

/// More than this is not kept.
const KEPT_BYTES_MAX: usize = 256 << 20;

/// At least `bytes` bytes, aligned for every element type; the contents are left over from earlier.
pub(crate) fn take(bytes: usize) -> Vec<u64> {
    let mut scratch = KEPT.try_with(Cell::take).unwrap_or_default();
    if scratch.len() * 8 < bytes {
        scratch = vec![0; bytes.div_ceil(8)];
    }
    scratch
}

/// Keeps it for the next operation of this thread.
pub(crate) fn keep(scratch: Vec<u64>) {
    if scratch.len() * 8 <= KEPT_BYTES_MAX {
        let _ = KEPT.try_with(|kept| kept.set(scratch));
    }
}
