//! Operators on one lane, without a branch, so that a loop of them becomes vectors.

use crate::quotient::{By8, By16, By32, By64, Divides};

/// A number on which operators work: one lane of a vector.
pub(crate) trait Lane: Copy {
    const ZERO: Self;
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    /// What [`divide`](Self::divide) needs to know of a divisor that is at least 2.
    type Divisor: Copy;
    fn divisor(by: usize) -> Self::Divisor;
    /// The quotient, of integers toward zero.
    fn divide(self, by: Self::Divisor) -> Self;
    /// 1/`by`, if multiplying with it is dividing by `by`.
    fn reciprocal(by: usize) -> Option<Self>;
    /// The one NaN for any NaN; everything else as it is.
    fn canonical(self) -> Self;
}

/// The integers.
pub(crate) trait Bits: Lane {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($t:ty: $divisor:ty),*) => { $(
        impl Lane for $t {
            const ZERO: Self = 0;
            type Divisor = $divisor;
            #[inline(always)]
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline(always)]
            fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline(always)]
            fn min(self, other: Self) -> Self { Ord::min(self, other) }
            #[inline(always)]
            fn max(self, other: Self) -> Self { Ord::max(self, other) }
            #[inline(always)]
            fn divisor(by: usize) -> $divisor { <$divisor>::new(by) }
            #[inline(always)]
            fn divide(self, by: $divisor) -> Self { by.quotient(self) }
            #[inline(always)]
            fn reciprocal(_: usize) -> Option<Self> { None }
            #[inline(always)]
            fn canonical(self) -> Self { self }
        }
        impl Bits for $t {
            #[inline(always)]
            fn and(self, other: Self) -> Self { self & other }
            #[inline(always)]
            fn or(self, other: Self) -> Self { self | other }
            #[inline(always)]
            fn xor(self, other: Self) -> Self { self ^ other }
        }
    )* };
}

integers!(i8: By8, i16: By16, i32: By32, i64: By64, u8: By8, u16: By16, u32: By32, u64: By64);

macro_rules! floats {
    ($($t:ty),*) => { $(
        impl Lane for $t {
            const ZERO: Self = 0.0;
            #[inline(always)]
            fn add(self, other: Self) -> Self { self + other }
            #[inline(always)]
            fn mul(self, other: Self) -> Self { self * other }
            // Each of the two selections is one instruction. They differ where neither value is less: two zeros, whose
            // signs are then merged; or a NaN, which merged with anything is a NaN.
            #[inline(always)]
            fn min(self, other: Self) -> Self {
                let a = if self < other { self } else { other };
                let b = if other < self { other } else { self };
                Self::from_bits(a.to_bits() | b.to_bits())
            }
            // As `min`, but what `&` leaves of a NaN may be a number.
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                let a = if self > other { self } else { other };
                let b = if other > self { other } else { self };
                let nan = if self.is_nan() | other.is_nan() { Self::NAN.to_bits() } else { 0 };
                Self::from_bits(a.to_bits() & b.to_bits() | nan)
            }
            type Divisor = Self;
            #[inline(always)]
            fn divisor(by: usize) -> Self { by as Self }
            #[inline(always)]
            fn divide(self, by: Self) -> Self { self / by }
            #[inline(always)]
            fn reciprocal(by: usize) -> Option<Self> { by.is_power_of_two().then(|| 1.0 / by as Self) }
            #[inline(always)]
            fn canonical(self) -> Self { if self.is_nan() { Self::NAN } else { self } }
        }
    )* };
}

floats!(f32, f64);

/// An operator, chosen when the kernel is compiled.
pub(crate) trait Op<T> {
    const AVERAGES: bool = false;
    fn apply(a: T, b: T) -> T;
}

macro_rules! ops {
    ($($op:ident: $bound:ident :: $method:ident $(, $averages:literal)?;)*) => { $(
        #[derive(Debug)]
        pub(crate) struct $op;
        impl<T: $bound> Op<T> for $op {
            $(const AVERAGES: bool = $averages;)?
            #[inline(always)]
            fn apply(a: T, b: T) -> T { a.$method(b) }
        }
    )* };
}

ops! {
    Sum: Lane::add;
    Avg: Lane::add, true;
    Prod: Lane::mul;
    Min: Lane::min;
    Max: Lane::max;
    BitAnd: Bits::and;
    BitOr: Bits::or;
    BitXor: Bits::xor;
}
