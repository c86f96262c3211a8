//! A copy out of lines that this core will write next.
//!
//! A line that is read is shared with the core that wrote it, and must be taken from that one before it can be written. A line that is claimed, which
//! is asked for with the right to write, comes once for both.

use crate::copy::copy;

/// Lines that lie so far ahead are claimed: more than come from another core while as many bytes are copied.
const AHEAD: usize = 512;

/// Copies `len` bytes, as [`copy()`] does, by the C library's copy; and makes this core the owner of the source's lines, where the processor can be
/// asked for that. Their bytes stay as they are.
///
/// # Safety
/// As for [`copy()`].
pub unsafe fn copy_claimed(from: *const u8, to: *mut u8, len: usize) {
    if to.addr().abs_diff(from.addr()) < len {
        // SAFETY: what the caller promised; they overlap, so nothing may be copied by parts.
        return unsafe { copy(from, to, len) };
    }
    claim(from, len.min(AHEAD));
    for at in (0..len).step_by(AHEAD) {
        let part = AHEAD.min(len - at);
        let next = at + part;
        claim(from.wrapping_add(next), AHEAD.min(len - next));
        // SAFETY: a part of both, which do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.wrapping_add(at), to.wrapping_add(at), part) };
    }
}

/// Asks for the lines of so many bytes with the right to write them, where the processor can be asked for that: a hint, which changes no byte.
#[inline]
pub fn claim(from: *const u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in (0..len).step_by(64) {
        let line = from.wrapping_add(line);
        // SAFETY: a hint, which no address can make fault and which changes no byte; processors that don't know it ignore it.
        unsafe { std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags)) };
    }
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    let _ = (from, len);
}
