//! The state in which kernels compute floats: round to nearest even, subnormals kept, nothing trapped.
//!
//! A thread has a control register for its floats (MXCSR on x86-64, FPCR on aarch64). Libraries built with `-ffast-math`
//! turn subnormals off in it when they are loaded, programs set another rounding (`fesetround`) or traps
//! (`feenableexcept`), and a new thread begins with what its maker had. A rank that computed so would end a reduction
//! with other bits than its peers. So each call of a kernel takes the register as it is, computes in the default state,
//! and puts back what was there.
//!
//! The default state is also the only one in which Rust's floats are defined: the compiler takes it for granted, and may
//! move float operations to where another state holds. That is why all arithmetic is behind [`call`].
//!
//! Elsewhere than on x86-64 and aarch64, and under Miri, the thread's state is left alone.

use crate::generic::Reduce;
use std::hint::black_box;

/// Calls `reduce` in the default state. The thread's own state is restored afterwards, whether it returns or panics.
///
/// # Cost
/// The register is read, and written twice where it is not in the default state: 6 ns a call on an AMD EPYC (family 26) either
/// way, beside the 8 ns that a sum of four bytes takes.
///
/// # Safety
/// As [`Reduce`]; the CPU has the instructions of that instance.
// Never inlined, and the function hidden from the optimizer: what it loads and computes can't be taken out of the call.
#[inline(never)]
pub(crate) unsafe fn call(
    reduce: Reduce,
    into: &[*mut u8],
    sources: &[*const u8],
    len: usize,
    divide_by: usize,
) {
    let _default = DefaultState::enter();
    // SAFETY: what the caller promised.
    unsafe { black_box(reduce)(into, sources, len, divide_by) }
}

/// While it lives, the thread is in the default state; then in the one that it was in.
struct DefaultState {
    /// The state to put back, if it differs.
    before: Option<register::Word>,
}

impl DefaultState {
    fn enter() -> Self {
        let word = register::read();
        if register::is_default(word) {
            return Self { before: None };
        }
        // SAFETY: it is the state that Rust takes for granted.
        unsafe { register::write(register::DEFAULT) };
        Self { before: Some(word) }
    }
}

impl Drop for DefaultState {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: the thread came with this state, so the code to which it goes back has run in it; nothing of ours
            // computes a float between here and there: all that does is inside the call (see `call`).
            unsafe { register::write(before) };
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod register {
    use std::arch::asm;

    /// MXCSR.
    pub(super) type Word = u32;

    /// The default state: all exceptions masked; round to nearest; neither "flush to zero" nor "denormals are zero".
    pub(super) const DEFAULT: Word = 0x1f80;

    /// The exceptions that have happened: no part of the state, they change nothing.
    const HAPPENED: Word = 0x3f;

    pub(super) fn is_default(word: Word) -> bool {
        word & !HAPPENED == DEFAULT
    }

    pub(super) fn read() -> Word {
        let mut word: Word = 0;
        // SAFETY: writes the four bytes of `word`, nothing else. Every x86-64 CPU has the instruction.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) };
        word
    }

    /// # Safety
    /// `word` was read, or is the default. Unless it is the default, no float is computed by Rust until that is there again:
    /// the compiler takes the default for granted. (By inline assembly, as the documentation of `_mm_setcsr` asks:
    /// the intrinsic itself is undefined behaviour for any other word, even if no float is computed in between.)
    pub(super) unsafe fn write(word: Word) {
        // SAFETY: reads the four bytes of `word`. No reserved bit is set in what was read or in the default, so it
        // does not fault; what the state means for Rust is the caller's to answer. Memory counts as touched, so that no
        // load or store of a kernel is moved across.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack)) };
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod register {
    use std::arch::asm;

    /// FPCR.
    pub(super) type Word = u64;

    /// Nothing trapped; round to nearest; no FZ, FZ16, FIZ, AH; NaN as IEEE 754 has it; IEEE's half precision.
    pub(super) const DEFAULT: Word = 0;

    /// The exceptions that have happened are in a register of their own.
    pub(super) fn is_default(word: Word) -> bool {
        word == DEFAULT
    }

    pub(super) fn read() -> Word {
        let word: Word;
        // SAFETY: reads a register that user code may read, on every aarch64 with floats.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nomem, nostack, preserves_flags)) };
        word
    }

    /// # Safety
    /// `word` was read, or is the default. Unless it is the default, no float is computed by Rust until that is there again:
    /// the compiler takes the default for granted.
    pub(super) unsafe fn write(word: Word) {
        // SAFETY: writes a register that user code may write; what the state means for Rust is the caller's to answer.
        // Memory counts as touched, so that no load or store of a kernel is moved across.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nostack)) };
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod register {
    /// No such state is known here.
    pub(super) type Word = ();

    pub(super) const DEFAULT: Word = ();

    pub(super) fn is_default((): Word) -> bool {
        true
    }

    pub(super) fn read() -> Word {}

    /// # Safety
    /// None: it does nothing.
    pub(super) unsafe fn write((): Word) {}
}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod tests {
    use super::{DefaultState, register};
    use std::panic::catch_unwind;

    #[cfg(target_arch = "x86_64")]
    const TOWARD_ZERO: register::Word = 0x7f80;
    #[cfg(target_arch = "aarch64")]
    const TOWARD_ZERO: register::Word = 3 << 22;

    #[test]
    fn a_panic_leaves_the_thread_as_it_was() {
        let before = register::read();
        // SAFETY: no float is computed before the last line has put the state back.
        unsafe { register::write(TOWARD_ZERO) };
        let inside = catch_unwind(|| {
            let _default = DefaultState::enter();
            std::panic::panic_any(register::is_default(register::read()));
        });
        let after = register::read();
        // SAFETY: what was read.
        unsafe { register::write(before) };
        assert_eq!(inside.unwrap_err().downcast_ref(), Some(&true), "not the default inside");
        assert_eq!(after, TOWARD_ZERO, "the thread has lost its own");
    }
}
