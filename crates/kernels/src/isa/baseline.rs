//! The instructions that every CPU of the target has. `f16` is converted one number at a time.

use super::kernels;
use super::parts::*;
use half::f16;

#[derive(Debug, Clone, Copy)]
struct Baseline;

impl Isa for Baseline {
    const LANES: usize = 1;

    #[inline(always)]
    unsafe fn widen_f16(self, from: *const u16, to: *mut f32) {
        // SAFETY: valid for a number, says the caller.
        let bits = unsafe { from.read_unaligned() };
        // SAFETY: as above.
        unsafe { to.write_unaligned(f16::from_bits(bits).to_f32()) };
    }

    #[inline(always)]
    unsafe fn narrow_f16(self, from: *const f32, to: *mut u16) {
        // SAFETY: valid for a number, says the caller.
        let value = unsafe { from.read_unaligned() };
        // SAFETY: as above.
        unsafe { to.write_unaligned(f16::from_f32(value).to_bits()) };
    }
}

/// # Safety
/// As [`Reduce`], for any CPU.
unsafe fn entry<B: Body<Baseline>>(into: &[*mut u8], sources: &[*const u8], len: usize, divide_by: usize) {
    // SAFETY: what the caller promised.
    unsafe { B::run(Baseline, into, sources, len, divide_by) }
}

// Short enough to be unrolled into SSE2 vectors; half types fare better as loops.
kernels!(Baseline, bytes: 128, half_bytes: 256, entry);
