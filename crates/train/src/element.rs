//! Work on elements whose type is known at run time, for adapters whose tensors the host sees.

use half::{bf16, f16};
use phalanx::backend::copy_slice;
use phalanx::error::OpKind;
use phalanx::{DType, Element, Error, ProcessGroup, ReduceOp};
use std::ops::{Add, Div, Mul, Sub};

/// Evaluates `$body` with `$T` as the Rust type of `$dtype`, or `$otherwise` for a type of later versions.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr, $other:pat => $otherwise:expr $(,)?) => {
        $crate::element::with_element!(@ $dtype, $T, $body, $other, $otherwise,
            F32 f32, F64 f64, F16 half::f16, BF16 half::bf16,
            I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64)
    };
    (@ $dtype:expr, $T:ident, $body:expr, $other:pat, $otherwise:expr, $($name:ident $type:ty),*) => {
        match $dtype {
            $(phalanx::DType::$name => {
                type $T = $type;
                $body
            })*
            $other => $otherwise,
        }
    };
}
pub(crate) use with_element;

/// As [`with_element`], of the types that gradients can have.
macro_rules! with_float {
    ($dtype:expr, $T:ident => $body:expr, $other:pat => $otherwise:expr $(,)?) => {
        $crate::element::with_element!(@ $dtype, $T, $body, $other, $otherwise,
            F32 f32, F64 f64, F16 half::f16, BF16 half::bf16)
    };
}
pub(crate) use with_float;

/// A number that gradients are made of.
pub(crate) trait Float:
    Element + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    fn to_f64(self) -> f64;
    /// Rounds to the nearest.
    fn from_f64(wide: f64) -> Self;
    /// The next number towards zero, of one that is not zero.
    fn smaller(self) -> Self;
    /// The square root, rounded to the nearest.
    fn root(self) -> Self;

    fn towards_zero(wide: f64) -> Self {
        let nearest = Self::from_f64(wide);
        if nearest.to_f64().abs() > wide.abs() { nearest.smaller() } else { nearest }
    }
}

impl Float for f32 {
    fn to_f64(self) -> f64 {
        self.into()
    }

    fn from_f64(wide: f64) -> Self {
        wide as Self
    }

    fn smaller(self) -> Self {
        Self::from_bits(self.to_bits() - 1)
    }

    fn root(self) -> Self {
        self.sqrt()
    }
}

impl Float for f64 {
    fn to_f64(self) -> f64 {
        self
    }

    fn from_f64(wide: f64) -> Self {
        wide
    }

    fn smaller(self) -> Self {
        Self::from_bits(self.to_bits() - 1)
    }

    fn root(self) -> Self {
        self.sqrt()
    }
}

impl Float for f16 {
    fn to_f64(self) -> f64 {
        self.into()
    }

    fn from_f64(wide: f64) -> Self {
        Self::from_f64(wide)
    }

    fn smaller(self) -> Self {
        Self::from_bits(self.to_bits() - 1)
    }

    fn root(self) -> Self {
        Self::from_f32(self.to_f32().sqrt())
    }
}

impl Float for bf16 {
    fn to_f64(self) -> f64 {
        self.into()
    }

    fn from_f64(wide: f64) -> Self {
        Self::from_f64(wide)
    }

    fn smaller(self) -> Self {
        Self::from_bits(self.to_bits() - 1)
    }

    fn root(self) -> Self {
        Self::from_f32(self.to_f32().sqrt())
    }
}

/// [`ProcessGroup::all_reduce`] of elements that are known at run time.
///
/// # Errors
/// Those of the group.
///
/// # Panics
/// If `bytes` are not aligned as such elements are, or are no whole number of them.
#[track_caller]
pub fn all_reduce(group: &ProcessGroup, dtype: DType, bytes: &mut [u8], op: ReduceOp) -> phalanx::Result<()> {
    with_element!(dtype,
        T => group.all_reduce::<T>(bytemuck::cast_slice_mut(bytes), op),
        _ => Err(unsupported(group, OpKind::AllReduce, dtype)),
    )
}

/// [`ProcessGroup::broadcast`] of elements that are known at run time.
#[track_caller]
pub(crate) fn broadcast(
    group: &ProcessGroup,
    dtype: DType,
    bytes: &mut [u8],
    root: usize,
) -> phalanx::Result<()> {
    with_element!(dtype,
        T => group.broadcast::<T>(bytemuck::cast_slice_mut(bytes), root),
        _ => Err(unsupported(group, OpKind::Broadcast, dtype)),
    )
}

/// The error for a type that can't be sent, or not by this operation.
pub(crate) fn unsupported(group: &ProcessGroup, op: OpKind, dtype: DType) -> Error {
    let hint = format!("elements of type {dtype} cannot be sent; convert them");
    Error::Unsupported { op, backend: group.backend_name(), hint }
}

/// Copies floats of one type as those of another, rounded to the nearest. False where one of the types is no float: nothing is copied then.
///
/// # Panics
/// As [`all_reduce`].
pub(crate) fn convert(from: DType, bytes: &[u8], to: DType, into: &mut [u8]) -> bool {
    if from == to {
        copy_slice(into, bytes);
        return true;
    }
    with_float!(from,
        F => with_float!(to,
            T => {
                let (from, to): (&[F], &mut [T]) = (bytemuck::cast_slice(bytes), bytemuck::cast_slice_mut(into));
                to.iter_mut().zip(from).for_each(|(to, &from)| *to = T::from_f64(from.to_f64()));
                true
            },
            _ => false,
        ),
        _ => false,
    )
}

/// Multiplies elements, and rounds once. Integers, which no gradient is made of, stay.
///
/// # Panics
/// As [`all_reduce`].
pub fn multiply(dtype: DType, bytes: &mut [u8], by: f64) {
    with_float!(dtype,
        T => for x in bytemuck::cast_slice_mut::<u8, T>(bytes) {
            *x = T::from_f64(x.to_f64() * by);
        },
        _ => {}
    );
}

/// Adds elements to those of another run of the same length, each sum rounded once. Integers, which no gradient is made of, stay.
///
/// # Panics
/// As [`all_reduce`].
pub fn add(dtype: DType, sums: &mut [u8], bytes: &[u8]) {
    with_float!(dtype,
        T => for (sum, &x) in bytemuck::cast_slice_mut::<u8, T>(sums).iter_mut().zip(bytemuck::cast_slice::<u8, T>(bytes)) {
            *sum += x;
        },
        _ => {}
    );
}

/// Multiplies elements by a number from 0 to 1, and rounds towards zero: none is larger than its product, which is formed in f64. Integers, which
/// no gradient is made of, stay.
///
/// # Panics
/// As [`all_reduce`].
pub fn shrink(dtype: DType, bytes: &mut [u8], by: f64) {
    with_float!(dtype,
        T => for x in bytemuck::cast_slice_mut::<u8, T>(bytes) {
            *x = T::towards_zero(x.to_f64() * by);
        },
        _ => {}
    );
}

/// The sum of the squares of all elements, in f64, in which no square of an f32 overflows. Integers, which no gradient is made of, count as zero.
///
/// # Panics
/// As [`all_reduce`].
pub fn sum_of_squares(dtype: DType, bytes: &[u8]) -> f64 {
    with_float!(dtype,
        T => squares(bytemuck::cast_slice::<u8, T>(bytes)),
        _ => 0.0,
    )
}

/// Half by half: so the sum of a billion is as exact as that of a thousand.
fn squares<T: Float>(elements: &[T]) -> f64 {
    if elements.len() <= 1024 {
        // Side by side: sums in a row would wait for each other.
        let mut lanes = [0f64; 16];
        let parts = elements.chunks_exact(lanes.len());
        let rest = parts.remainder();
        for part in parts {
            lanes.iter_mut().zip(part).for_each(|(sum, x)| *sum += x.to_f64() * x.to_f64());
        }
        return lanes.into_iter().chain(rest.iter().map(|x| x.to_f64() * x.to_f64())).sum();
    }
    let (left, right) = elements.split_at(elements.len() / 2);
    squares(left) + squares(right)
}

/// Whether all are numbers, and no infinities.
///
/// # Panics
/// As [`all_reduce`].
pub fn is_finite(dtype: DType, bytes: &[u8]) -> bool {
    with_float!(dtype,
        T => bytemuck::cast_slice::<u8, T>(bytes).iter().all(|x| x.to_f64().is_finite()),
        _ => true,
    )
}
