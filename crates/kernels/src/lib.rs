//! Element-wise reduction: what happens where the contributions of several ranks meet.
//!
//! A [`Kernel`] is chosen once per operation from the operator and the element type. It combines two buffers
//! ([`Kernel::combine`]) or any number of them in one pass over memory ([`Kernel::reduce`]). This crate doesn't know who
//! calls it, has no threads, and allocates nothing. Beside it stands a plain [`copy()`] that does not hang on the C library.
//!
//! # One source, several instances
//!
//! `generic.rs` holds the one loop: read a block of each source into an accumulator, write the accumulator to each
//! destination. It works on arrays, which the compiler turns into vectors, so that an *instance* for an instruction set
//! ([`Instance`]) is the same source compiled with other target features; only the conversion of `f16` needs instructions
//! by name. The instance is chosen once, from what the CPU offers. `reference.rs` is the truth: one element at a time, without
//! any trick, and every instance must equal it bit for bit.
//!
//! # What the bits are
//!
//! - Sources are combined in the order given, so the result is the same for the same order, on every machine.
//! - `f16` and `bf16` are widened to `f32`, combined over *all* sources, and rounded once, to nearest even.
//! - Integers wrap. An average divides once at the end, integers toward zero.
//! - Minimum and maximum of floats: NaN wins, and -0.0 is less than 0.0.
//! - A float result that is NaN is *the* NaN (`f32::NAN` and its like): which of two NaNs survives an addition differs
//!   between compilers and machines, and ranks must agree to the bit.
//! - Rounding is to nearest even and subnormals are kept, also on a thread where a library has turned them off, as those
//!   built with `-ffast-math` do, or has set another rounding: a kernel computes in the default state, and restores the
//!   thread's own (`float_state.rs`; on x86-64 and aarch64).
//!
//! # Examples
//!
//! ```
//! use phalanx_core::{DType, ReduceOp};
//! use phalanx_kernels::Kernel;
//!
//! let sum = Kernel::new(ReduceOp::Sum, DType::U8).expect("u8 can be summed");
//! let mut into = [1, 2, 3];
//! sum.combine(&mut into, &[10, 20, 30]);
//! assert_eq!(into, [11, 22, 33]);
//!
//! // Three contributions, averaged in one pass; the result goes to two places.
//! let average = Kernel::new(ReduceOp::Avg, DType::U8).expect("u8 can be averaged");
//! let (a, b, c) = ([3u8, 6], [6u8, 6], [9u8, 0]);
//! let (mut here, mut there) = ([0u8; 2], [0u8; 2]);
//! // SAFETY: each pointer is good for 2 bytes, and no destination overlaps anything else.
//! unsafe {
//!     average.reduce(
//!         &[here.as_mut_ptr(), there.as_mut_ptr()],
//!         &[a.as_ptr(), b.as_ptr(), c.as_ptr()],
//!         2,
//!         3,
//!     );
//! }
//! assert_eq!((here, there), ([6, 4], [6, 4]));
//! ```
//!
//! # Measuring
//!
//! `cargo bench -p phalanx-kernels --bench rates` prints a table: every kernel beside a copy that moves as many bytes and beside the sum of
//! `f32`, from the first cache to memory. `--bench throughput` has more sources and destinations, and calls with almost nothing to do.
//! `cargo bench -p phalanx-kernels --bench instructions` counts instructions under valgrind, which a noisy machine can
//! repeat, and compares them with `benches/instructions.txt` (`-- --bless` writes that table anew).

mod claimed_copy;
mod convert;
mod copy;
mod factor;
mod float_state;
mod generic;
mod half_blocks;
mod instance;
mod isa;
mod kernel;
mod ops;
mod paged_copy;
mod quotient;
mod reference;
mod unrounded_half_sum;

pub use claimed_copy::{claim, copy_claimed};
pub use convert::Conversion;
pub use copy::{copy, copy_own, copy_past_caches, copy_slice};
pub use factor::Factor;
pub use instance::Instance;
pub use kernel::Kernel;
pub use paged_copy::copy_by_pages;
pub use unrounded_half_sum::HalfSum;
