//! The truth: one loop an operator, over any element type.

use crate::Kernel;
use half::{bf16, f16};
use phalanx_core::{DType, Element, ReduceOp};

/// What an element type must be able to do. Half types compute in `f32`.
trait Number: Element {
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn divide(self, by: usize) -> Self;
}

trait Bits: Number {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($t:ty),*) => { $(
        impl Number for $t {
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn min(self, other: Self) -> Self { Ord::min(self, other) }
            fn max(self, other: Self) -> Self { Ord::max(self, other) }
            // Through i128: a world size may exceed an i8.
            fn divide(self, by: usize) -> Self { (self as i128 / by as i128) as Self }
        }
        impl Bits for $t {
            fn and(self, other: Self) -> Self { self & other }
            fn or(self, other: Self) -> Self { self | other }
            fn xor(self, other: Self) -> Self { self ^ other }
        }
    )* };
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! floats {
    ($($t:ty),*) => { $(
        impl Number for $t {
            fn add(self, other: Self) -> Self { self + other }
            fn mul(self, other: Self) -> Self { self * other }
            // NaN wins, and -0.0 is less than 0.0: the same result in whatever order ranks meet.
            fn min(self, other: Self) -> Self {
                if self.is_nan() || other.is_nan() {
                    Self::NAN
                } else if self < other || (self == other && self.is_sign_negative()) {
                    self
                } else {
                    other
                }
            }
            fn max(self, other: Self) -> Self {
                if self.is_nan() || other.is_nan() {
                    Self::NAN
                } else if self > other || (self == other && self.is_sign_positive()) {
                    self
                } else {
                    other
                }
            }
            fn divide(self, by: usize) -> Self { self / by as Self }
        }
    )* };
}

floats!(f32, f64);

macro_rules! halves {
    ($($t:ty),*) => { $(
        impl Number for $t {
            fn add(self, other: Self) -> Self { Self::from_f32(self.to_f32() + other.to_f32()) }
            fn mul(self, other: Self) -> Self { Self::from_f32(self.to_f32() * other.to_f32()) }
            fn min(self, other: Self) -> Self { Self::from_f32(Number::min(self.to_f32(), other.to_f32())) }
            fn max(self, other: Self) -> Self { Self::from_f32(Number::max(self.to_f32(), other.to_f32())) }
            fn divide(self, by: usize) -> Self { Self::from_f32(self.to_f32() / by as f32) }
        }
    )* };
}

halves!(f16, bf16);

fn combine<T: Number>(into: &mut [u8], from: &[u8], f: impl Fn(T, T) -> T) {
    let from: &[T] = bytemuck::cast_slice(from);
    for (a, b) in bytemuck::cast_slice_mut::<u8, T>(into).iter_mut().zip(from) {
        *a = f(*a, *b);
    }
}

fn divide<T: Number>(buffer: &mut [u8], by: usize) {
    for a in bytemuck::cast_slice_mut::<u8, T>(buffer) {
        *a = a.divide(by);
    }
}

fn arithmetic<T: Number>(op: ReduceOp) -> Option<Kernel> {
    let combine: fn(&mut [u8], &[u8]) = match op {
        ReduceOp::Sum | ReduceOp::Avg => |a, b| combine::<T>(a, b, T::add),
        ReduceOp::Prod => |a, b| combine::<T>(a, b, T::mul),
        ReduceOp::Min => |a, b| combine::<T>(a, b, T::min),
        ReduceOp::Max => |a, b| combine::<T>(a, b, T::max),
        _ => return None,
    };
    Some(Kernel { combine, divide: (op == ReduceOp::Avg).then_some(divide::<T>) })
}

fn integer<T: Bits>(op: ReduceOp) -> Option<Kernel> {
    let combine: fn(&mut [u8], &[u8]) = match op {
        ReduceOp::BitAnd => |a, b| combine::<T>(a, b, T::and),
        ReduceOp::BitOr => |a, b| combine::<T>(a, b, T::or),
        ReduceOp::BitXor => |a, b| combine::<T>(a, b, T::xor),
        _ => return arithmetic::<T>(op),
    };
    Some(Kernel { combine, divide: None })
}

pub(crate) fn kernel(op: ReduceOp, dtype: DType) -> Option<Kernel> {
    match dtype {
        DType::F32 => arithmetic::<f32>(op),
        DType::F64 => arithmetic::<f64>(op),
        DType::F16 => arithmetic::<f16>(op),
        DType::BF16 => arithmetic::<bf16>(op),
        DType::I8 => integer::<i8>(op),
        DType::I16 => integer::<i16>(op),
        DType::I32 => integer::<i32>(op),
        DType::I64 => integer::<i64>(op),
        DType::U8 => integer::<u8>(op),
        DType::U16 => integer::<u16>(op),
        DType::U32 => integer::<u32>(op),
        DType::U64 => integer::<u64>(op),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn combined<T: Element>(op: ReduceOp, a: &[T], b: &[T]) -> Vec<T> {
        let mut into = a.to_vec();
        Kernel::new(op, T::DTYPE)
            .unwrap()
            .combine(bytemuck::cast_slice_mut(&mut into), bytemuck::cast_slice(b));
        into
    }

    #[test]
    fn defined_exactly_where_the_vocabulary_says() {
        for dtype in DType::ALL {
            for op in ReduceOp::ALL {
                assert_eq!(Kernel::new(op, dtype).is_some(), op.supports(dtype), "{op} of {dtype}");
            }
        }
    }

    #[test]
    fn operators() {
        assert_eq!(combined(ReduceOp::Sum, &[1.5f32, -2.0], &[0.25, 7.0]), [1.75, 5.0]);
        assert_eq!(combined(ReduceOp::Prod, &[3i16, -4], &[5, 6]), [15, -24]);
        assert_eq!(combined(ReduceOp::Min, &[3u8, 9], &[5, 6]), [3, 6]);
        assert_eq!(combined(ReduceOp::Max, &[3u64, 9], &[5, 6]), [5, 9]);
        assert_eq!(combined(ReduceOp::BitAnd, &[0b1100u32], &[0b1010]), [0b1000]);
        assert_eq!(combined(ReduceOp::BitOr, &[0b1100i64], &[0b1010]), [0b1110]);
        assert_eq!(combined(ReduceOp::BitXor, &[0b1100i8], &[0b1010]), [0b0110]);
        assert_eq!(combined(ReduceOp::Sum, &[250u8], &[10]), [4], "integers wrap");
    }

    #[test]
    fn averages_divide_once_at_the_end() {
        let mut sum = combined(ReduceOp::Avg, &[7i8, -7], &[0, 0]);
        let kernel = Kernel::new(ReduceOp::Avg, DType::I8).unwrap();
        kernel.finish(bytemuck::cast_slice_mut(&mut sum), 2);
        assert_eq!(sum, [3, -3], "toward zero");
        kernel.finish(bytemuck::cast_slice_mut(&mut sum), 1000);
        assert_eq!(sum, [0, 0], "a world larger than the type");
        let mut same = [7.0f32];
        Kernel::new(ReduceOp::Sum, DType::F32).unwrap().finish(bytemuck::cast_slice_mut(&mut same), 2);
        assert_eq!(same, [7.0]);
    }

    #[test]
    fn extremes_do_not_depend_on_the_order() {
        for values in [[0.0f32, -0.0], [f32::NAN, 1.0], [f32::INFINITY, f32::NAN], [f32::NEG_INFINITY, 3.0]] {
            for op in [ReduceOp::Min, ReduceOp::Max] {
                let bits = |a: f32, b: f32| combined(op, &[a], &[b])[0].to_bits();
                assert_eq!(bits(values[0], values[1]), bits(values[1], values[0]), "{op} of {values:?}");
            }
        }
        assert!(combined(ReduceOp::Min, &[0.0f32], &[-0.0])[0].is_sign_negative());
        assert!(combined(ReduceOp::Max, &[-0.0f64], &[0.0])[0].is_sign_positive());
    }

    #[test]
    fn halves_round_once_from_f32() {
        let (a, b) = (bf16::from_f32(1.0), bf16::from_f32(1.0 / 256.0));
        assert_eq!(combined(ReduceOp::Sum, &[a], &[b])[0], bf16::from_f32(1.0 + 1.0 / 256.0));
        assert_eq!(
            combined(ReduceOp::Sum, &[f16::from_f32(65504.0)], &[f16::from_f32(65504.0)])[0],
            f16::INFINITY
        );
    }
}
