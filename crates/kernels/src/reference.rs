//! The truth: one element at a time, as one would write it down. Every instance is tested against this.

use crate::generic::Reduce;
use half::{bf16, f16};
use phalanx_core::{DType, Element, ReduceOp};

/// The arithmetic of an element type. Half types compute in `f32`.
trait Number: Element {
    /// The type of the result until the last source is in.
    type Acc: Copy;
    fn widen(self) -> Self::Acc;
    fn narrow(acc: Self::Acc) -> Self;
    fn add(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn mul(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn min(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn max(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn divide(a: Self::Acc, by: usize) -> Self::Acc;
}

macro_rules! integers {
    ($($t:ty),*) => { $(
        impl Number for $t {
            type Acc = Self;
            fn widen(self) -> Self { self }
            fn narrow(acc: Self) -> Self { acc }
            fn add(a: Self, b: Self) -> Self { a.wrapping_add(b) }
            fn mul(a: Self, b: Self) -> Self { a.wrapping_mul(b) }
            fn min(a: Self, b: Self) -> Self { Ord::min(a, b) }
            fn max(a: Self, b: Self) -> Self { Ord::max(a, b) }
            // Through i128: a world size may exceed an i8.
            fn divide(a: Self, by: usize) -> Self { (a as i128 / by as i128) as Self }
        }
    )* };
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! floats {
    ($($t:ty, $acc:ident: $widen:expr, $narrow:expr;)*) => { $(
        impl Number for $t {
            type Acc = $acc;
            fn widen(self) -> $acc { $widen(self) }
            // One NaN for all: which of two survives an addition differs between compilers and machines.
            fn narrow(acc: $acc) -> Self { if acc.is_nan() { Self::NAN } else { $narrow(acc) } }
            fn add(a: $acc, b: $acc) -> $acc { a + b }
            fn mul(a: $acc, b: $acc) -> $acc { a * b }
            // NaN wins, and -0.0 is less than 0.0: the same result in whatever order ranks meet.
            fn min(a: $acc, b: $acc) -> $acc {
                if a.is_nan() || b.is_nan() {
                    $acc::NAN
                } else if a < b || (a == b && a.is_sign_negative()) {
                    a
                } else {
                    b
                }
            }
            fn max(a: $acc, b: $acc) -> $acc {
                if a.is_nan() || b.is_nan() {
                    $acc::NAN
                } else if a > b || (a == b && a.is_sign_positive()) {
                    a
                } else {
                    b
                }
            }
            fn divide(a: $acc, by: usize) -> $acc { a / by as $acc }
        }
    )* };
}

floats! {
    f32, f32: std::convert::identity, std::convert::identity;
    f64, f64: std::convert::identity, std::convert::identity;
    f16, f32: f16::to_f32, f16::from_f32;
    bf16, f32: bf16::to_f32, bf16::from_f32;
}

/// An operator over `T`.
trait Op<T: Number> {
    const AVERAGES: bool = false;
    fn apply(a: T::Acc, b: T::Acc) -> T::Acc;
}

macro_rules! ops {
    ($($op:ident: |$a:ident, $b:ident| $apply:expr $(, averages: $averages:literal)?;)*) => { $(
        struct $op;
        impl<T: Number> Op<T> for $op {
            $(const AVERAGES: bool = $averages;)?
            fn apply($a: T::Acc, $b: T::Acc) -> T::Acc { $apply }
        }
    )* };
}

ops! {
    Sum: |a, b| T::add(a, b);
    Avg: |a, b| T::add(a, b), averages: true;
    Prod: |a, b| T::mul(a, b);
    Min: |a, b| T::min(a, b);
    Max: |a, b| T::max(a, b);
}

macro_rules! bit_ops {
    ($($op:ident: $operator:tt;)*) => { $(
        struct $op;
        impl<T: Number<Acc: std::ops::$op<Output = T::Acc>>> Op<T> for $op {
            fn apply(a: T::Acc, b: T::Acc) -> T::Acc { a $operator b }
        }
    )* };
}

bit_ops! {
    BitAnd: &;
    BitOr: |;
    BitXor: ^;
}

/// # Safety
/// As [`Reduce`], for any CPU.
unsafe fn reduce<T: Number, O: Op<T>>(into: &[*mut u8], sources: &[*const u8], len: usize, divide_by: usize) {
    for at in (0..len).step_by(size_of::<T>()) {
        let read = |source: &*const u8| {
            // SAFETY: `at` is less than `len`, for which the caller says the source is valid.
            let from = unsafe { source.add(at) };
            // SAFETY: a whole element lies before `len`; any bits are an element, and no alignment is asked for.
            unsafe { from.cast::<T>().read_unaligned() }.widen()
        };
        let mut acc = read(&sources[0]);
        for source in &sources[1..] {
            acc = O::apply(acc, read(source));
        }
        let result = T::narrow(if O::AVERAGES { T::divide(acc, divide_by) } else { acc });
        for destination in into {
            // SAFETY: `at` is less than `len`, for which the caller says the destination is valid.
            let to = unsafe { destination.add(at) };
            // SAFETY: a whole element lies before `len`; no alignment is asked for.
            unsafe { to.cast::<T>().write_unaligned(result) }
        }
    }
}

fn arithmetic<T: Number>(op: ReduceOp) -> Option<Reduce> {
    Some(match op {
        ReduceOp::Sum => reduce::<T, Sum>,
        ReduceOp::Avg => reduce::<T, Avg>,
        ReduceOp::Prod => reduce::<T, Prod>,
        ReduceOp::Min => reduce::<T, Min>,
        ReduceOp::Max => reduce::<T, Max>,
        _ => return None,
    })
}

macro_rules! integer {
    ($t:ty, $op:expr) => {
        match $op {
            ReduceOp::BitAnd => Some(reduce::<$t, BitAnd> as Reduce),
            ReduceOp::BitOr => Some(reduce::<$t, BitOr> as Reduce),
            ReduceOp::BitXor => Some(reduce::<$t, BitXor> as Reduce),
            op => arithmetic::<$t>(op),
        }
    };
}

pub(crate) fn kernel(op: ReduceOp, dtype: DType) -> Option<Reduce> {
    match dtype {
        DType::F32 => arithmetic::<f32>(op),
        DType::F64 => arithmetic::<f64>(op),
        DType::F16 => arithmetic::<f16>(op),
        DType::BF16 => arithmetic::<bf16>(op),
        DType::I8 => integer!(i8, op),
        DType::I16 => integer!(i16, op),
        DType::I32 => integer!(i32, op),
        DType::I64 => integer!(i64, op),
        DType::U8 => integer!(u8, op),
        DType::U16 => integer!(u16, op),
        DType::U32 => integer!(u32, op),
        DType::U64 => integer!(u64, op),
        _ => None,
    }
}

/// # Safety
/// As [`Reduce`], for any CPU; the destination is twice as long as the source.
unsafe fn widen<T: Number<Acc = f32>>(into: &[*mut u8], sources: &[*const u8], len: usize, _: usize) {
    for number in 0..len / size_of::<T>() {
        let (from, to) = (sources[0].cast::<T>().wrapping_add(number), into[0].cast::<f32>());
        // SAFETY: before the end of the source, for which the caller answers; any bits are an element, of any alignment.
        let value = unsafe { from.read_unaligned() }.widen();
        // SAFETY: before the end of the destination; no alignment is asked for.
        unsafe { to.wrapping_add(number).write_unaligned(value) };
    }
}

/// # Safety
/// As [`Reduce`], for any CPU; the destination is half as long as the source.
unsafe fn narrow<T: Number<Acc = f32>>(into: &[*mut u8], sources: &[*const u8], len: usize, _: usize) {
    for number in 0..len / size_of::<f32>() {
        let (from, to) = (sources[0].cast::<f32>().wrapping_add(number), into[0].cast::<T>());
        // SAFETY: before the end of the source, for which the caller answers; any bits are an element, of any alignment.
        let value = unsafe { from.read_unaligned() };
        // SAFETY: before the end of the destination; no alignment is asked for.
        unsafe { to.wrapping_add(number).write_unaligned(T::narrow(value)) };
    }
}

/// The conversions to `f32` and back.
pub(crate) fn conversions(dtype: DType) -> Option<(Reduce, Reduce)> {
    match dtype {
        DType::F16 => Some((widen::<f16>, narrow::<f16>)),
        DType::BF16 => Some((widen::<bf16>, narrow::<bf16>)),
        _ => None,
    }
}

/// # Safety
/// As [`Reduce`], for any CPU; if `WIDE`, the first source is twice as long as the second, and unless `LAST`, so is the destination.
unsafe fn mixed<T: Number<Acc = f32>, O: Op<T>, const WIDE: bool, const LAST: bool>(
    into: &[*mut u8],
    sources: &[*const u8],
    len: usize,
    divide_by: usize,
) {
    for number in 0..len / size_of::<T>() {
        let half = |source: *const u8| {
            let from = source.cast::<T>().wrapping_add(number);
            // SAFETY: before the end of the source, for which the caller answers; any bits are an element, of any alignment.
            unsafe { from.read_unaligned() }.widen()
        };
        let first = if WIDE {
            let from = sources[0].cast::<f32>().wrapping_add(number);
            // SAFETY: before the end of the source, for which the caller answers; any bits are an element, of any alignment.
            unsafe { from.read_unaligned() }
        } else {
            half(sources[0])
        };
        let acc = O::apply(first, half(sources[1]));
        if LAST {
            let result = T::narrow(if O::AVERAGES { T::divide(acc, divide_by) } else { acc });
            // SAFETY: before the end of the destination; no alignment is asked for.
            unsafe { into[0].cast::<T>().wrapping_add(number).write_unaligned(result) };
        } else {
            // SAFETY: before the end of the destination; no alignment is asked for.
            unsafe { into[0].cast::<f32>().wrapping_add(number).write_unaligned(acc) };
        }
    }
}

fn three<T: Number<Acc = f32>>(op: ReduceOp) -> Option<[Reduce; 3]> {
    Some(match op {
        ReduceOp::Sum => {
            [mixed::<T, Sum, false, false>, mixed::<T, Sum, true, false>, mixed::<T, Sum, true, true>]
        }
        ReduceOp::Avg => {
            [mixed::<T, Avg, false, false>, mixed::<T, Avg, true, false>, mixed::<T, Avg, true, true>]
        }
        ReduceOp::Prod => {
            [mixed::<T, Prod, false, false>, mixed::<T, Prod, true, false>, mixed::<T, Prod, true, true>]
        }
        _ => return None,
    })
}

/// Sums of half types as `f32`: begun, gone on with, ended.
pub(crate) fn half_sums(op: ReduceOp, dtype: DType) -> Option<[Reduce; 3]> {
    match dtype {
        DType::F16 => three::<f16>(op),
        DType::BF16 => three::<bf16>(op),
        _ => None,
    }
}
