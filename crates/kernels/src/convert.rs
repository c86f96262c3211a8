//! Half types as `f32` in memory, and back: for sums that are not rounded before their end.

use crate::generic::Reduce;
use crate::{Instance, float_state, isa, reference};
use phalanx_core::DType;

/// The conversions between a half type and `f32`.
///
/// # Determinism
/// Every half number is an `f32`, so widening is exact. Narrowing rounds to nearest even, keeps subnormals, and makes every NaN the one NaN,
/// whatever state the thread's floats are in.
///
/// # Examples
/// ```
/// use phalanx_core::DType;
/// use phalanx_kernels::Conversion;
///
/// let bf16 = Conversion::new(DType::BF16).expect("a half type");
/// let (mut wide, mut back) = ([0; 8], [0; 4]);
/// bf16.widen(&[0x80, 0x3f, 0x00, 0x40], &mut wide);
/// assert_eq!(wide, [1f32.to_le_bytes(), 2f32.to_le_bytes()].concat()[..]);
/// bf16.narrow(&wide, &mut back);
/// assert_eq!(back, [0x80, 0x3f, 0x00, 0x40]);
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Conversion {
    widen: Reduce,
    narrow: Reduce,
}

impl Conversion {
    /// The fastest of this machine; `None` unless `dtype` is `f16` or `bf16`.
    pub fn new(dtype: DType) -> Option<Self> {
        Self::of(Instance::best(), dtype)
    }

    /// The conversions of a given instance, for tests; `None` also where this machine can't run it.
    pub fn with(instance: Instance, dtype: DType) -> Option<Self> {
        if instance.is_available() { Self::of(instance, dtype) } else { None }
    }

    /// `instance` must be available: the methods rely on it.
    fn of(instance: Instance, dtype: DType) -> Option<Self> {
        let (widen, narrow) = match instance {
            Instance::Plain => reference::conversions(dtype),
            Instance::Baseline => isa::baseline::conversions(dtype),
            #[cfg(target_arch = "x86_64")]
            Instance::Avx2 => isa::avx2::conversions(dtype),
            #[cfg(target_arch = "x86_64")]
            Instance::Avx512 => isa::avx512::conversions(dtype),
            #[cfg(target_arch = "aarch64")]
            Instance::Neon => isa::neon::conversions(dtype),
            _ => None,
        }?;
        Some(Self { widen, narrow })
    }

    /// Writes half numbers as `f32`.
    ///
    /// # Shape
    /// `halves`: whole numbers of 2 bytes. `wide`: 4 bytes for each. No address needs an alignment.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn widen(&self, halves: &[u8], wide: &mut [u8]) {
        assert!(halves.len().is_multiple_of(2) && wide.len() == 2 * halves.len(), "4 bytes for each 2");
        // SAFETY: the source is good for its length, and the destination, which is exclusive, for twice as much; the instance is available
        // (see `of`).
        unsafe { float_state::call(self.widen, &[wide.as_mut_ptr()], &[halves.as_ptr()], halves.len(), 1) }
    }

    /// Rounds `f32` to half numbers.
    ///
    /// # Shape
    /// `wide`: whole numbers of 4 bytes. `halves`: 2 bytes for each. No address needs an alignment.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn narrow(&self, wide: &[u8], halves: &mut [u8]) {
        assert!(wide.len().is_multiple_of(4) && wide.len() == 2 * halves.len(), "2 bytes for each 4");
        // SAFETY: the source is good for its length, and the destination, which is exclusive, for half as much; the instance is available
        // (see `of`).
        unsafe { float_state::call(self.narrow, &[halves.as_mut_ptr()], &[wide.as_ptr()], wide.len(), 1) }
    }
}
