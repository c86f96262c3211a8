//! 128-bit vectors of aarch64. Its tests have passed in an emulator; it was never measured.

use super::kernels;
use super::parts::*;
use std::arch::aarch64::{float32x4_t, uint16x4_t, vld1_u16, vld1q_f32, vst1_u16, vst1q_f32};
use std::arch::asm;

/// The CPU has NEON.
#[derive(Debug, Clone, Copy)]
struct Neon(());

impl Isa for Neon {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn widen_f16(self, from: *const u16, to: *mut f32) {
        // SAFETY: valid for as many numbers as the vector has, says the caller; the token says that the CPU can.
        let narrow: uint16x4_t = unsafe { vld1_u16(from) };
        let wide: float32x4_t;
        // The intrinsic needs a newer compiler than ours.
        // SAFETY: touches nothing but the two registers named; the token says that the CPU can.
        unsafe {
            asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) narrow, options(pure, nomem, nostack));
        }
        // SAFETY: valid for as many numbers as the vector has, says the caller; the token says that the CPU can.
        unsafe { vst1q_f32(to, wide) };
    }

    #[inline(always)]
    unsafe fn narrow_f16(self, from: *const f32, to: *mut u16) {
        // SAFETY: valid for as many numbers as the vector has, says the caller; the token says that the CPU can.
        let wide: float32x4_t = unsafe { vld1q_f32(from) };
        let narrow: uint16x4_t;
        // SAFETY: touches nothing but the two registers named; the token says that the CPU can.
        unsafe {
            asm!("fcvtn {0:v}.4h, {1:v}.4s", out(vreg) narrow, in(vreg) wide, options(pure, nomem, nostack));
        }
        // SAFETY: valid for as many numbers as the vector has, says the caller; the token says that the CPU can.
        unsafe { vst1_u16(to, narrow) };
    }
}

/// # Safety
/// As [`Reduce`], on a CPU that has the features.
#[target_feature(enable = "neon")]
unsafe fn entry<B: Body<Neon>>(into: &[*mut u8], sources: &[*const u8], len: usize, divide_by: usize) {
    // SAFETY: what the caller promised; the features of the token are enabled here.
    unsafe { B::run(Neon(()), into, sources, len, divide_by) }
}

// Sixteen vectors are what the compiler stores without calling memcpy.
kernels!(Neon, bytes: 256, half_bytes: 256, entry);
