//! States of a thread's floats in which libraries leave it.

use std::arch::asm;

/// What the register holds, but for the exceptions that have happened.
pub type State = u64;

/// What Rust takes for granted.
#[cfg(target_arch = "x86_64")]
pub const DEFAULT: State = 0x1f80;
#[cfg(target_arch = "aarch64")]
pub const DEFAULT: State = 0;

/// Subnormals are off, as `-ffast-math` has it: results (FTZ) and operands (DAZ).
#[cfg(target_arch = "x86_64")]
pub const FAST_MATH: State = DEFAULT | 0x8040;
#[cfg(target_arch = "aarch64")]
pub const FAST_MATH: State = 1 << 24 | 1 << 19;

/// `fesetround(FE_UPWARD)`.
#[cfg(target_arch = "x86_64")]
pub const UPWARD: State = DEFAULT | 0x4000;
#[cfg(target_arch = "aarch64")]
pub const UPWARD: State = 1 << 22;

/// Division by zero, overflow and what is invalid end the process, as `feenableexcept` has it. (A CPU of aarch64 may ignore it.)
#[cfg(target_arch = "x86_64")]
pub const TRAPPING: State = DEFAULT & !0x0680;
#[cfg(target_arch = "aarch64")]
pub const TRAPPING: State = 0x0700;

/// Flush to zero alone, denormals are zero alone, the other roundings, every exception a trap, all at once.
#[cfg(target_arch = "x86_64")]
const MORE: [State; 6] = [0x9f80, 0x1fc0, 0x3f80, 0x7f80, 0x0000, 0xe040];
/// Each half of "flush to zero", the other roundings, the other NaN, the other half precision.
#[cfg(target_arch = "aarch64")]
const MORE: [State; 6] = [1 << 24, 1 << 19, 2 << 22, 3 << 22, 1 << 25, 1 << 26];

/// All that are tried.
pub fn states() -> impl Iterator<Item = State> {
    [FAST_MATH, UPWARD, TRAPPING].into_iter().chain(MORE)
}

/// The state of this thread.
pub fn state() -> State {
    #[cfg(target_arch = "x86_64")]
    {
        let mut word = 0u32;
        // SAFETY: writes the four bytes of `word`.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) };
        State::from(word & !0x3f)
    }
    #[cfg(target_arch = "aarch64")]
    {
        let word: State;
        // SAFETY: reads a register that user code may read.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nomem, nostack, preserves_flags)) };
        word
    }
}

/// Puts this thread into a state, as a library in another language would.
///
/// # Safety
/// The tests compute no float of their own until they are back in the default one.
pub unsafe fn set(state: State) {
    #[cfg(target_arch = "x86_64")]
    {
        let word = state as u32;
        // SAFETY: reads the four bytes of `word`, in which no reserved bit is set.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack)) };
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: writes a register that user code may write.
    unsafe {
        asm!("msr fpcr, {}", in(reg) state, options(nostack));
    };
}

/// What `work` returns, and the state that it left, when it is called in a state. Whatever it left, the default one comes next.
pub fn in_state<R>(odd: State, work: impl FnOnce() -> R) -> (R, State) {
    // SAFETY: `work` calls kernels, and moves bytes.
    unsafe { set(odd) };
    let result = work();
    let left = state();
    // SAFETY: it is the state that Rust takes for granted.
    unsafe { set(DEFAULT) };
    (result, left)
}
