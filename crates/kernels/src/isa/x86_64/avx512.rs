//! 512-bit vectors.

use crate::isa::kernels;
use crate::isa::parts::*;
use std::arch::x86_64::*;

/// The CPU has AVX-512 F, BW, DQ and VL.
#[derive(Debug, Clone, Copy)]
struct Avx512(());

/// Numbers in a vector of `f32`.
const LANES: usize = 16;

impl Isa for Avx512 {
    #[inline(always)]
    fn widen_f16<const N: usize>(self, bits: [u16; N]) -> [f32; N] {
        const { assert!(N.is_multiple_of(LANES)) };
        let mut values = [0.0; N];
        for (from, to) in bits.as_chunks::<LANES>().0.iter().zip(values.as_chunks_mut::<LANES>().0) {
            // SAFETY: `from` is as long as the vector; needs no alignment.
            let narrow = unsafe { _mm256_loadu_si256(from.as_ptr().cast()) };
            // SAFETY: the token says that the CPU can.
            let wide = unsafe { _mm512_cvtph_ps(narrow) };
            // SAFETY: `to` is as long as the vector; needs no alignment.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), wide) };
        }
        values
    }

    #[inline(always)]
    fn narrow_f16<const N: usize>(self, values: [f32; N]) -> [u16; N] {
        const { assert!(N.is_multiple_of(LANES)) };
        let mut bits = [0; N];
        for (from, to) in values.as_chunks::<LANES>().0.iter().zip(bits.as_chunks_mut::<LANES>().0) {
            // SAFETY: `from` is as long as the vector; needs no alignment.
            let wide = unsafe { _mm512_loadu_ps(from.as_ptr()) };
            // SAFETY: the token says that the CPU can.
            let narrow = unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide) };
            // SAFETY: `to` is as long as the vector; needs no alignment.
            unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), narrow) };
        }
        bits
    }
}

/// # Safety
/// As [`Reduce`], on a CPU that has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
unsafe fn entry<F: Format<Avx512>, O: Op<<F::Acc as Lanes>::Item>>(
    into: &[*mut u8],
    sources: &[*const u8],
    len: usize,
    divide_by: usize,
) {
    // SAFETY: what the caller promised; the features of the token are enabled here.
    unsafe { generic::reduce::<Avx512, F, O>(Avx512(()), into, sources, len, divide_by) }
}

// Eight vectors are what the compiler stores without calling memcpy.
kernels!(Avx512, bytes: 512, half_bytes: 256, entry);
