//! 512-bit vectors.

use crate::isa::kernels;
use crate::isa::parts::*;
use std::arch::x86_64::*;

/// The CPU has AVX-512 F, BW, DQ and VL.
#[derive(Debug, Clone, Copy)]
struct Avx512(());

impl Isa for Avx512 {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn widen_f16(self, from: *const u16, to: *mut f32) {
        // SAFETY: valid for as many numbers as the vector has, says the caller; needs no alignment.
        let narrow = unsafe { _mm256_loadu_si256(from.cast()) };
        // SAFETY: the token says that the CPU can.
        // Not `_mm512_cvtph_ps`: that one suppresses exceptions, for which the instruction can't read memory and takes a step more.
        let wide = unsafe { _mm512_cvt_roundph_ps::<_MM_FROUND_CUR_DIRECTION>(narrow) };
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(to, wide) };
    }

    #[inline(always)]
    unsafe fn narrow_f16(self, from: *const f32, to: *mut u16) {
        // SAFETY: valid for as many numbers as the vector has, says the caller; needs no alignment.
        let wide = unsafe { _mm512_loadu_ps(from) };
        // SAFETY: the token says that the CPU can.
        let narrow = unsafe { _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide) };
        // SAFETY: as above.
        unsafe { _mm256_storeu_si256(to.cast(), narrow) };
    }

    // By name: the compiler takes a permutation of three steps for it.
    #[inline(always)]
    fn upper_halves<const N: usize>(self, lower: [u32; N], upper: [u32; N]) -> [u32; N] {
        const { assert!(N.is_multiple_of(16)) };
        let mut words = [0; N];
        for i in (0..N).step_by(16) {
            // SAFETY: sixteen words begin at `i`, as `N` is a multiple of sixteen; needs no alignment.
            let l = unsafe { _mm512_loadu_si512(lower[i..].as_ptr().cast()) };
            // SAFETY: as above.
            let u = unsafe { _mm512_loadu_si512(upper[i..].as_ptr().cast()) };
            // SAFETY: the token says that the CPU can.
            let l = unsafe { _mm512_srli_epi32::<16>(l) };
            // SAFETY: the token says that the CPU can.
            let mask = unsafe { _mm512_set1_epi32(-0x1_0000) };
            // SAFETY: the token says that the CPU can. (The function is `l | u & mask`.)
            let both = unsafe { _mm512_ternarylogic_epi32::<{ 0xf0 | 0xcc & 0xaa }>(l, u, mask) };
            // SAFETY: as above.
            unsafe { _mm512_storeu_si512(words[i..].as_mut_ptr().cast(), both) };
        }
        words
    }
}

/// # Safety
/// As [`Reduce`], on a CPU that has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
unsafe fn entry<B: Body<Avx512>>(into: &[*mut u8], sources: &[*const u8], len: usize, divide_by: usize) {
    // SAFETY: what the caller promised; the features of the token are enabled here.
    unsafe { B::run(Avx512(()), into, sources, len, divide_by) }
}

// Eight vectors are what the compiler stores without calling memcpy.
kernels!(Avx512, bytes: 512, half_bytes: 256, entry);
