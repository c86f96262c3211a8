//! What every CPU of the target has. `f16` is converted one number at a time.

use super::kernels;
use super::parts::*;
use half::f16;

#[derive(Debug, Clone, Copy)]
struct Baseline;

impl Isa for Baseline {
    #[inline(always)]
    fn widen_f16<const N: usize>(self, bits: [u16; N]) -> [f32; N] {
        bits.map(|bits| f16::from_bits(bits).to_f32())
    }

    #[inline(always)]
    fn narrow_f16<const N: usize>(self, values: [f32; N]) -> [u16; N] {
        values.map(|value| f16::from_f32(value).to_bits())
    }
}

/// # Safety
/// As [`Reduce`], for any CPU.
unsafe fn entry<F: Format<Baseline>, O: Op<<F::Acc as Lanes>::Item>>(
    into: &[*mut u8],
    sources: &[*const u8],
    len: usize,
    divide_by: usize,
) {
    // SAFETY: what the caller promised.
    unsafe { generic::reduce::<Baseline, F, O>(Baseline, into, sources, len, divide_by) }
}

// Short enough to be unrolled into SSE2 vectors; half types fare better as loops.
kernels!(Baseline, bytes: 128, half_bytes: 256, entry);
