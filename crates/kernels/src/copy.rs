//! Plain copies, by the vectors of the kernels.
//!
//! The C library's copy of such lengths is `rep movsb` on some processors, which does as it likes: with it a broadcast of 1 MiB
//! between two ranks of an EPYC took 2.5 times as long.

use crate::Kernel;
use phalanx_core::{DType, ReduceOp};

/// The bytes from which vectors copy faster: the C library's short copies are as good as any.
const VECTORS_FROM: usize = 1 << 10;
/// Stores that begin here cross no cache line.
const LINE: usize = 64;
/// The C library may copy by `rep movsb` from here on.
const REPEATED_FROM: usize = 2 << 10;
const PAGE: usize = 4 << 10;

/// Copies `from`, as [`copy_own`] does: `into.copy_from_slice(from)`, for slices that may be long.
///
/// # Panics
/// If the lengths differ.
///
/// # Examples
/// ```
/// let mut into = [0; 3];
/// phalanx_kernels::copy_slice(&mut into, &[1, 2, 3]);
/// assert_eq!(into, [1, 2, 3]);
/// ```
#[track_caller]
pub fn copy_slice(into: &mut [u8], from: &[u8]) {
    assert_eq!(into.len(), from.len(), "slices of one length are copied");
    // SAFETY: both are good for their length as slices are, and nobody else has the exclusive one.
    unsafe { copy_own(from.as_ptr(), into.as_mut_ptr(), from.len()) }
}

/// As [`copy`], for memory that no other core has touched: by the C library's copy, except where that is slow.
///
/// An EPYC ("Milan") takes 15 to 28 times as long for `rep movsb` where the destination begins a little later in its page than the source does: 5.4 in place of 0.2 µs for
/// 16 KiB. It did for 1, 8 and 16 bytes, and not for 32 or 48; here all that is less than a line counts. Long blocks of the C library's heap begin 16 bytes after a page, so such
/// copies are not rare.
///
/// # Safety
/// As for [`copy`].
pub unsafe fn copy_own(from: *const u8, to: *mut u8, len: usize) {
    let later_in_its_page = to.addr().wrapping_sub(from.addr()) % PAGE;
    if len >= REPEATED_FROM && (1..LINE).contains(&later_in_its_page) {
        // SAFETY: what the caller promised.
        unsafe { copy(from, to, len) }
    } else {
        // SAFETY: what the caller promised.
        unsafe { std::ptr::copy(from, to, len) }
    }
}

/// Copies `len` bytes.
///
/// # Safety
/// - `from` is valid for reads, `to` for writes, of `len` bytes. They may overlap.
/// - Nobody else writes to the source, or touches the destination, until this returns. (The memory may be shared with other
///   processes: no reference to it is ever made.)
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    let overlap = to.addr().abs_diff(from.addr()) < len;
    let kernel = if len < VECTORS_FROM || overlap { None } else { Kernel::new(ReduceOp::BitOr, DType::U8) };
    let Some(kernel) = kernel else {
        // SAFETY: what the caller promised.
        return unsafe { std::ptr::copy(from, to, len) };
    };
    let head = to.addr().next_multiple_of(LINE) - to.addr();
    // SAFETY: the first bytes of both, which are at least a line long.
    unsafe { std::ptr::copy_nonoverlapping(from, to, head) };
    // SAFETY: inside of it.
    let from = unsafe { from.add(head) };
    // SAFETY: inside of it.
    let to = unsafe { to.add(head) };
    // SAFETY: the rest of both; they do not overlap. What is combined with nothing stays what it is.
    unsafe { kernel.reduce(&[to], &[from], len - head, 1) }
}

/// As [`copy`], past the caches, where the processor has stores that do that: for a destination that another core read last, and will
/// read next, and whose lines are slow to take from it; or for one that is longer than the caches. What it wrote is visible to who sees a later store of this thread.
///
/// # Safety
/// As for [`copy`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub unsafe fn copy_past_caches(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    let overlap = to.addr().abs_diff(from.addr()) < len;
    let head = if len < VECTORS_FROM || overlap { len } else { to.addr().next_multiple_of(LINE) - to.addr() };
    // SAFETY: the first bytes of both, or all.
    unsafe { std::ptr::copy(from, to, head) };
    let lines = (len - head) / LINE * LINE;
    for at in (head..head + lines).step_by(LINE) {
        // Whole lines, so that none goes to memory in parts.
        for part in (at..at + LINE).step_by(16) {
            // SAFETY: inside of the source; needs no alignment.
            let bytes = unsafe { _mm_loadu_si128(from.wrapping_add(part).cast()) };
            // SAFETY: inside of the destination, and aligned: `head` ends at a line.
            unsafe { _mm_stream_si128(to.wrapping_add(part).cast(), bytes) };
        }
    }
    // SAFETY: every processor of this architecture has it. Such stores are ordered by nothing else.
    unsafe { _mm_sfence() };
    let done = head + lines;
    // SAFETY: the last bytes of both, fewer than a line.
    unsafe { std::ptr::copy(from.wrapping_add(done), to.wrapping_add(done), len - done) };
}

/// As [`copy`]: no such stores are known here, nor to Miri.
///
/// # Safety
/// As for [`copy`].
#[cfg(any(miri, not(target_arch = "x86_64")))]
pub unsafe fn copy_past_caches(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: what the caller promised.
    unsafe { copy(from, to, len) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{copy_by_pages, copy_claimed};

    #[test]
    fn bytes_arrive_whatever_the_alignment_and_nothing_around_them_changes() {
        let source: Vec<u8> = (0..78_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for len in
            [0, 1, 63, 64, 1023, 1024, 1025, 4096, 5555, 8191, 8192, 8300, 20_000, 32_767, 32_900, 77_777]
        {
            for (a, b) in [(0, 0), (0, 16), (1, 0), (7, 9), (64, 63), (33, 1)] {
                for way in [copy, copy_own, copy_past_caches, copy_by_pages, copy_claimed] {
                    let mut target = vec![0xee; 78_000];
                    // SAFETY: both vectors are longer than offset and length together.
                    unsafe { way(source[a..].as_ptr(), target[b..].as_mut_ptr(), len) };
                    assert_eq!(target[b..b + len], source[a..a + len], "{len} bytes from {a} to {b}");
                    assert!(target[..b].iter().chain(&target[b + len..]).all(|&byte| byte == 0xee));
                }
            }
        }
    }

    #[test]
    fn bytes_arrive_wherever_in_its_page_the_destination_begins() {
        let source: Vec<u8> = (0..2 * PAGE + SOME).map(|i| (i % 251) as u8).collect();
        let mut target = vec![0; 2 * PAGE + SOME];
        let from = source.as_ptr().align_offset(PAGE);
        for later in [0, 1, 16, 63, 64, PAGE - 1] {
            let to = target.as_ptr().align_offset(PAGE) + later;
            target.fill(0xee);
            copy_slice(&mut target[to..to + SOME], &source[from..from + SOME]);
            assert_eq!(target[to..to + SOME], source[from..from + SOME], "{later} bytes later");
            assert!(target[..to].iter().chain(&target[to + SOME..]).all(|&byte| byte == 0xee));
        }
    }

    /// Three pages.
    const SOME: usize = 12 << 10;

    #[test]
    fn overlapping_bytes_are_moved() {
        let ways: [unsafe fn(*const u8, *mut u8, usize); 5] =
            [copy, copy_own, copy_past_caches, copy_by_pages, copy_claimed];
        for (shift, way) in [1, 64, 500, 2000].into_iter().flat_map(|shift| ways.map(|way| (shift, way))) {
            let bytes: Vec<u8> = (0..SOME).map(|i| (i % 251) as u8).collect();
            let (mut up, mut down) = (bytes.clone(), bytes.clone());
            let (low, len) = (up.as_mut_ptr(), SOME - shift);
            let high = low.wrapping_add(shift);
            // SAFETY: both ends are inside of the vector.
            unsafe { way(low, high, len) };
            let low = down.as_mut_ptr();
            let high = low.wrapping_add(shift);
            // SAFETY: as above.
            unsafe { way(high, low, len) };
            assert_eq!(up[shift..], bytes[..SOME - shift]);
            assert_eq!(down[..SOME - shift], bytes[shift..]);
        }
    }
}
