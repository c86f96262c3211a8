//! Memory that operations need besides the caller's, kept from call to call: touching fresh pages costs more than
//! copying into them.

use std::cell::Cell;

thread_local! {
    /// An operation takes two at most.
    static KEPT: Cell<[Vec<u64>; 2]> = const { Cell::new([Vec::new(), Vec::new()]) };
}

/// More than this is not kept.
const KEPT_BYTES_MAX: usize = 256 << 20;

/// At least `bytes` bytes, aligned for every element type; the contents are left over from earlier.
pub(crate) fn take(bytes: usize) -> Vec<u64> {
    let [mut scratch, mut other] = KEPT.try_with(Cell::take).unwrap_or_default();
    // The shortest that is long enough; if none is, the shortest makes room.
    let is_better =
        |a: &Vec<u64>, b: &Vec<u64>| (a.len() * 8 < bytes, a.len()) < (b.len() * 8 < bytes, b.len());
    if is_better(&other, &scratch) {
        std::mem::swap(&mut scratch, &mut other);
    }
    let _ = KEPT.try_with(|kept| kept.set([other, Vec::new()]));
    if scratch.len() * 8 < bytes {
        scratch = vec![0; bytes.div_ceil(8)];
    }
    scratch
}

/// Keeps it for the next operation of this thread.
pub(crate) fn keep(scratch: Vec<u64>) {
    if scratch.len() * 8 <= KEPT_BYTES_MAX {
        let _ = KEPT.try_with(|kept| {
            let [one, other] = kept.take();
            // The smaller of the two goes.
            kept.set([scratch, if one.len() > other.len() { one } else { other }]);
        });
    }
}
