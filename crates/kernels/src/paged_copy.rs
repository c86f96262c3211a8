//! A copy that reads several pages at once.
//!
//! Processors fetch ahead within a page. What another core has just written comes over a long way, line by line; read from several pages in
//! turn, it comes in several streams. On a Xeon 128 KiB took 5.0 µs instead of 7.4.
//!
//! Lines at the same place of their pages share a set of the first cache, which holds eight of them or twelve. So each page is begun at another place: eight pages
//! read and eight written at one place do not fit. On an EPYC ("Milan") a broadcast of 1 MiB between buffers that began at pages took 99 µs so, and takes 52.

use crate::{Instance, copy};

const PAGE: usize = 4 << 10;
const LINE: usize = 64;

/// Copies `len` bytes, as [`copy()`] does: for what another core has written last. From 8 KiB on it reads two, four or eight pages in turn.
///
/// # Safety
/// As for [`copy()`].
pub unsafe fn copy_by_pages(from: *const u8, to: *mut u8, len: usize) {
    let overlap = to.addr().abs_diff(from.addr()) < len;
    let head = if len < 2 * PAGE || overlap { len } else { to.addr().next_multiple_of(LINE) - to.addr() };
    // SAFETY: the first bytes of both, or all.
    unsafe { copy(from, to, head) };
    let (from, to, len) = (from.wrapping_add(head), to.wrapping_add(head), len - head);
    let in_turn = match len / PAGE {
        0..2 => in_turn::<1>,
        2..4 => in_turn::<2>,
        4..8 => in_turn::<4>,
        _ => in_turn::<8>,
    };
    // SAFETY: the rest of both; where it is not empty, they do not overlap.
    let copied = unsafe { in_turn(from, to, len) };
    // SAFETY: the last bytes of both.
    unsafe { copy(from.wrapping_add(copied), to.wrapping_add(copied), len - copied) }
}

/// Copies as many whole groups of `PAGES` pages as there are in `len` bytes, and returns how many bytes that were.
///
/// # Safety
/// As for [`copy()`], and the two must not overlap.
unsafe fn in_turn<const PAGES: usize>(from: *const u8, to: *mut u8, len: usize) -> usize {
    match Instance::best() {
        // SAFETY: what the caller promised; the instance is available.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Instance::Avx512 => unsafe { x86_64::avx512::<PAGES>(from, to, len) },
        // SAFETY: as above.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Instance::Avx2 => unsafe { x86_64::avx2::<PAGES>(from, to, len) },
        // SAFETY: what the caller promised.
        _ => unsafe { groups::<PAGES>(from, to, len) },
    }
}

/// # Safety
/// As for [`in_turn`].
#[inline(always)]
unsafe fn groups<const PAGES: usize>(from: *const u8, to: *mut u8, len: usize) -> usize {
    const { assert!(PAGE.is_multiple_of(PAGES * LINE), "each page begins at a line") };
    let whole = len / (PAGES * PAGE) * (PAGES * PAGE);
    for group in (0..whole).step_by(PAGES * PAGE) {
        for line in (0..PAGE).step_by(LINE) {
            for page in 0..PAGES {
                let at = group + page * PAGE + (line + page * (PAGE / PAGES)) % PAGE;
                let (from, to) = (from.wrapping_add(at), to.wrapping_add(at));
                // SAFETY: a line of this page, which ends at or before `whole`, so inside of both.
                unsafe { std::ptr::copy_nonoverlapping(from, to, LINE) };
            }
        }
    }
    whole
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64 {
    /// # Safety
    /// As for [`in_turn`](super::in_turn); the instance must be available.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn avx512<const PAGES: usize>(from: *const u8, to: *mut u8, len: usize) -> usize {
        // SAFETY: what the caller promised.
        unsafe { super::groups::<PAGES>(from, to, len) }
    }

    /// # Safety
    /// As for [`in_turn`](super::in_turn); the instance must be available.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn avx2<const PAGES: usize>(from: *const u8, to: *mut u8, len: usize) -> usize {
        // SAFETY: what the caller promised.
        unsafe { super::groups::<PAGES>(from, to, len) }
    }
}
