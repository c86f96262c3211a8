//! Element-wise reduction: what happens where the contributions of two ranks meet.
//!
//! [`Kernel`] is a pair of functions over bytes, chosen once per operation from the element type and the operator.
//! The loops are plain Rust that the compiler vectorises; half-precision types are widened to `f32`, combined, and rounded
//! once. This crate is the place for hand-written SIMD, which must equal these loops (`plain.rs`) bit for bit.

mod plain;

use phalanx_core::{DType, ReduceOp};

/// How two buffers of one element type are combined.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    combine: fn(&mut [u8], &[u8]),
    /// Divides by the world size, for averages.
    divide: Option<fn(&mut [u8], usize)>,
}

impl Kernel {
    /// The kernel for an operator on an element type; `None` where the operator is not defined.
    pub fn new(op: ReduceOp, dtype: DType) -> Option<Self> {
        plain::kernel(op, dtype)
    }

    /// `into[i] = into[i] ∘ from[i]`.
    ///
    /// # Panics
    /// If the lengths differ, or a buffer is not a whole number of aligned elements.
    pub fn combine(&self, into: &mut [u8], from: &[u8]) {
        assert_eq!(into.len(), from.len(), "buffers of one length are combined");
        (self.combine)(into, from);
    }

    /// Ends a reduction over `world_size` contributions: divides, for averages.
    ///
    /// # Panics
    /// If the buffer is not a whole number of aligned elements.
    pub fn finish(&self, buffer: &mut [u8], world_size: usize) {
        if let Some(divide) = self.divide {
            divide(buffer, world_size);
        }
    }
}
