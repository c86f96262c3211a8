//! Element types: what a buffer is made of.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// The type of one element, as it travels in headers and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the variants are the names of the types")]
pub enum DType {
    F32,
    F64,
    F16,
    BF16,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
}

impl DType {
    /// Every element type, in declaration order.
    pub const ALL: [Self; 12] = [
        Self::F32,
        Self::F64,
        Self::F16,
        Self::BF16,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::U8,
        Self::U16,
        Self::U32,
        Self::U64,
    ];

    /// Bytes one element takes.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(phalanx_core::DType::BF16.size(), 2);
    /// ```
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::BF16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// Whether this is one of the four floating-point types.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::DType;
    ///
    /// assert!(DType::BF16.is_float());
    /// assert!(!DType::I8.is_float());
    /// ```
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64 | Self::F16 | Self::BF16)
    }

    /// The Rust name of the type: `f32`, `bf16`, `u8`, …
    ///
    /// # Examples
    /// ```
    /// assert_eq!(phalanx_core::DType::BF16.name(), "bf16");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A type that collectives can move and reduce.
///
/// Sealed: the set is what every backend can carry. It implies [`bytemuck::Pod`], so a slice of elements can be
/// viewed as bytes and back without `unsafe`.
pub trait Element:
    sealed::Sealed + bytemuck::Pod + PartialEq + std::fmt::Debug + Send + Sync + 'static
{
    /// The run-time name of this type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($t:ty => $d:ident),* $(,)?) => { $(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$d;
        }
    )* };
}

elements!(
    f32 => F32, f64 => F64, f16 => F16, bf16 => BF16,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_match_the_types() {
        fn same<T: Element>() {
            assert_eq!(T::DTYPE.size(), size_of::<T>(), "{}", T::DTYPE);
            assert!(std::any::type_name::<T>().ends_with(T::DTYPE.name()));
        }
        same::<f32>();
        same::<f64>();
        same::<f16>();
        same::<bf16>();
        same::<i8>();
        same::<i16>();
        same::<i32>();
        same::<i64>();
        same::<u8>();
        same::<u16>();
        same::<u32>();
        same::<u64>();
    }
}
