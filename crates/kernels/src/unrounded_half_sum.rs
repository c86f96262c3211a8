//! Sums of half types that are kept as `f32` until their end.

use crate::generic::Reduce;
use crate::{Instance, float_state, isa, reference};
use phalanx_core::{DType, ReduceOp};

/// How contributions of a half type are combined one after the other without being rounded in between: [`begin`](Self::begin) with two,
/// [`add`](Self::add) more, [`end`](Self::end) with the last.
///
/// # Determinism
/// As for a [`Kernel`](crate::Kernel) that combines all of them in one pass, in the same order: the same bits.
///
/// # Examples
/// ```
/// use phalanx_core::{DType, ReduceOp};
/// use phalanx_kernels::HalfSum;
///
/// let sum = HalfSum::new(ReduceOp::Sum, DType::BF16).expect("a half type");
/// let (one, small) = ([0x80, 0x3f], [0x80, 0x3b]); // 1 and 1/256, of which bf16 has no sum
/// let (mut partial, mut result) = ([0; 4], [0; 2]);
/// sum.begin(&one, &small, &mut partial);
/// assert_eq!(f32::from_le_bytes(partial), 1.0 + 1.0 / 256.0);
/// sum.end(&partial, &small, &mut result, 3);
/// assert_eq!(result, [0x81, 0x3f]); // 1 + 2/256
/// ```
#[derive(Debug, Clone, Copy)]
pub struct HalfSum {
    begin: Reduce,
    add: Reduce,
    end: Reduce,
}

impl HalfSum {
    /// The fastest of this machine; `None` unless `dtype` is `f16` or `bf16` and `op` sum, average or product.
    pub fn new(op: ReduceOp, dtype: DType) -> Option<Self> {
        Self::of(Instance::best(), op, dtype)
    }

    /// The sum of a given instance, for tests; `None` also where this machine can't run it.
    pub fn with(instance: Instance, op: ReduceOp, dtype: DType) -> Option<Self> {
        if instance.is_available() { Self::of(instance, op, dtype) } else { None }
    }

    /// `instance` must be available: the methods rely on it.
    fn of(instance: Instance, op: ReduceOp, dtype: DType) -> Option<Self> {
        let [begin, add, end] = match instance {
            Instance::Plain => reference::half_sums(op, dtype),
            Instance::Baseline => isa::baseline::half_sums(op, dtype),
            #[cfg(target_arch = "x86_64")]
            Instance::Avx2 => isa::avx2::half_sums(op, dtype),
            #[cfg(target_arch = "x86_64")]
            Instance::Avx512 => isa::avx512::half_sums(op, dtype),
            #[cfg(target_arch = "aarch64")]
            Instance::Neon => isa::neon::half_sums(op, dtype),
            _ => None,
        }?;
        Some(Self { begin, add, end })
    }

    /// `partial[i] = one[i] ∘ other[i]`.
    ///
    /// # Shape
    /// `one` and `other`: whole numbers of 2 bytes. `partial`: 4 bytes for each. No address needs an alignment.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn begin(&self, one: &[u8], other: &[u8], partial: &mut [u8]) {
        assert_eq!(one.len(), other.len(), "as many of one as of the other");
        fits(other, partial);
        let sources = [one.as_ptr(), other.as_ptr()];
        // SAFETY: the sources are good for their length, and the destination, which is exclusive, for twice as much; the instance is available
        // (see `of`).
        unsafe { float_state::call(self.begin, &[partial.as_mut_ptr()], &sources, other.len(), 1) }
    }

    /// `partial[i] = partial[i] ∘ other[i]`.
    ///
    /// # Panics
    /// If the lengths do not fit: see [`begin`](Self::begin).
    pub fn add(&self, partial: &mut [u8], other: &[u8]) {
        fits(other, partial);
        let partial = partial.as_mut_ptr();
        // SAFETY: as in `begin`; each block of the exclusive destination is read, as a source, before it is written.
        unsafe { float_state::call(self.add, &[partial], &[partial, other.as_ptr()], other.len(), 1) }
    }

    /// `result[i] = partial[i] ∘ last[i]`, rounded once to the half type; an average is divided by `contributions` before.
    ///
    /// # Panics
    /// If the lengths do not fit (see [`begin`](Self::begin)), or `contributions` is 0.
    pub fn end(&self, partial: &[u8], last: &[u8], result: &mut [u8], contributions: usize) {
        fits(last, partial);
        assert_eq!(last.len(), result.len(), "a result for each");
        assert!(contributions > 0, "an average is divided by 0");
        let sources = [partial.as_ptr(), last.as_ptr()];
        // SAFETY: the first source is good for twice the length, the second and the exclusive destination for the length itself; the instance is
        // available (see `of`).
        unsafe {
            float_state::call(self.end, &[result.as_mut_ptr()], &sources, last.len(), contributions);
        }
    }
}

fn fits(halves: &[u8], partial: &[u8]) {
    assert!(halves.len().is_multiple_of(2) && partial.len() == 2 * halves.len(), "4 bytes for each 2");
}
