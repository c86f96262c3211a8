//! 256-bit vectors; `f16` by F16C.

use crate::isa::kernels;
use crate::isa::parts::*;
use std::arch::x86_64::*;

/// The CPU has AVX2 and F16C.
#[derive(Debug, Clone, Copy)]
struct Avx2(());

/// Numbers in a vector of `f32`.
const LANES: usize = 8;

impl Isa for Avx2 {
    #[inline(always)]
    fn widen_f16<const N: usize>(self, bits: [u16; N]) -> [f32; N] {
        const { assert!(N.is_multiple_of(LANES)) };
        let mut values = [0.0; N];
        for (from, to) in bits.as_chunks::<LANES>().0.iter().zip(values.as_chunks_mut::<LANES>().0) {
            // SAFETY: `from` is as long as the vector; needs no alignment.
            let narrow = unsafe { _mm_loadu_si128(from.as_ptr().cast()) };
            // SAFETY: the token says that the CPU can.
            let wide = unsafe { _mm256_cvtph_ps(narrow) };
            // SAFETY: `to` is as long as the vector; needs no alignment.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), wide) };
        }
        values
    }

    #[inline(always)]
    fn narrow_f16<const N: usize>(self, values: [f32; N]) -> [u16; N] {
        const { assert!(N.is_multiple_of(LANES)) };
        let mut bits = [0; N];
        for (from, to) in values.as_chunks::<LANES>().0.iter().zip(bits.as_chunks_mut::<LANES>().0) {
            // SAFETY: `from` is as long as the vector; needs no alignment.
            let wide = unsafe { _mm256_loadu_ps(from.as_ptr()) };
            // SAFETY: the token says that the CPU can.
            let narrow = unsafe { _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide) };
            // SAFETY: `to` is as long as the vector; needs no alignment.
            unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), narrow) };
        }
        bits
    }
}

/// # Safety
/// As [`Reduce`], on a CPU that has the features.
#[target_feature(enable = "avx2,f16c")]
unsafe fn entry<F: Format<Avx2>, O: Op<<F::Acc as Lanes>::Item>>(
    into: &[*mut u8],
    sources: &[*const u8],
    len: usize,
    divide_by: usize,
) {
    // SAFETY: what the caller promised; the features of the token are enabled here.
    unsafe { generic::reduce::<Avx2, F, O>(Avx2(()), into, sources, len, divide_by) }
}

// Eight vectors are what the compiler stores without calling memcpy.
kernels!(Avx2, bytes: 256, half_bytes: 256, entry);
