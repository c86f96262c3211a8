//! The instances: for each instruction set its conversions of `f16`, its block sizes, and its copy of every kernel.
//!
//! A token (`Avx2` and its like) stands for "the CPU has these instructions". It is only made inside the functions that
//! require them, so that whoever holds one may use them.

pub(crate) mod baseline;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{avx2, avx512};

/// The table of kernels of one instance.
///
/// `bytes` and `half_bytes` are its block sizes: half types are computed with in twice the room. `entry` is a generic
/// `unsafe fn` of type `Reduce`, over a body, that enables the target features.
macro_rules! kernels {
    ($token:ty, bytes: $bytes:literal, half_bytes: $half_bytes:literal, $entry:ident) => {
        pub(crate) fn kernel(op: ReduceOp, dtype: DType) -> Option<Reduce> {
            match dtype {
                DType::F32 => float::<Direct<f32, { $bytes / 4 }>>(op),
                DType::F64 => float::<Direct<f64, { $bytes / 8 }>>(op),
                DType::F16 => half::<F16Block<{ $half_bytes / 2 }>, F16>(op),
                DType::BF16 => half::<Bf16Block<{ $half_bytes / 4 }>, Bf16>(op),
                DType::I8 => integer::<Direct<i8, { $bytes }>>(op),
                DType::I16 => integer::<Direct<i16, { $bytes / 2 }>>(op),
                DType::I32 => integer::<Direct<i32, { $bytes / 4 }>>(op),
                DType::I64 => integer::<Direct<i64, { $bytes / 8 }>>(op),
                DType::U8 => integer::<Direct<u8, { $bytes }>>(op),
                DType::U16 => integer::<Direct<u16, { $bytes / 2 }>>(op),
                DType::U32 => integer::<Direct<u32, { $bytes / 4 }>>(op),
                DType::U64 => integer::<Direct<u64, { $bytes / 8 }>>(op),
                _ => None,
            }
        }

        /// The conversions to `f32` and back.
        pub(crate) fn conversions(dtype: DType) -> Option<(Reduce, Reduce)> {
            match dtype {
                DType::F16 => Some(both_ways::<F16Block<{ $half_bytes / 2 }>>()),
                DType::BF16 => Some(both_ways::<Bf16Block<{ $half_bytes / 4 }>>()),
                _ => None,
            }
        }

        /// Sums of half types as `f32`: begun, gone on with, ended.
        pub(crate) fn half_sums(op: ReduceOp, dtype: DType) -> Option<[Reduce; 3]> {
            match dtype {
                DType::F16 => mixed::<F16Block<{ $half_bytes / 2 }>>(op),
                DType::BF16 => mixed::<Bf16Block<{ $half_bytes / 4 }>>(op),
                _ => None,
            }
        }

        fn mixed<F: Widening<$token>>(op: ReduceOp) -> Option<[Reduce; 3]> {
            Some(match op {
                ReduceOp::Sum => three::<F, Sum>(),
                ReduceOp::Avg => three::<F, Avg>(),
                ReduceOp::Prod => three::<F, Prod>(),
                _ => return None,
            })
        }

        fn three<F: Widening<$token>, O: Op<f32>>() -> [Reduce; 3] {
            [
                $entry::<Mixed<F, O, false, false>>,
                $entry::<Mixed<F, O, true, false>>,
                $entry::<Mixed<F, O, true, true>>,
            ]
        }

        fn both_ways<F: Widening<$token>>() -> (Reduce, Reduce) {
            ($entry::<Widen<F>>, $entry::<Narrow<F>>)
        }

        fn half<F: Format<$token, Acc: Lanes<Item = f32>>, H: Half>(op: ReduceOp) -> Option<Reduce> {
            Some(match op {
                ReduceOp::Sum => $entry::<Reduction<F, Sum>>,
                ReduceOp::Avg => $entry::<Reduction<F, Avg>>,
                ReduceOp::Prod => $entry::<Reduction<F, Prod>>,
                ReduceOp::Min => $entry::<Reduction<Ordered<H, true, { $bytes / 2 }>, Min>>,
                ReduceOp::Max => $entry::<Reduction<Ordered<H, false, { $bytes / 2 }>, Max>>,
                _ => return None,
            })
        }

        fn float<F: Format<$token>>(op: ReduceOp) -> Option<Reduce> {
            Some(match op {
                ReduceOp::Sum => $entry::<Reduction<F, Sum>>,
                ReduceOp::Avg => $entry::<Reduction<F, Avg>>,
                ReduceOp::Prod => $entry::<Reduction<F, Prod>>,
                ReduceOp::Min => $entry::<Reduction<F, Min>>,
                ReduceOp::Max => $entry::<Reduction<F, Max>>,
                _ => return None,
            })
        }

        fn integer<F: Format<$token, Acc: Lanes<Item: Bits>>>(op: ReduceOp) -> Option<Reduce> {
            Some(match op {
                ReduceOp::BitAnd => $entry::<Reduction<F, BitAnd>>,
                ReduceOp::BitOr => $entry::<Reduction<F, BitOr>>,
                ReduceOp::BitXor => $entry::<Reduction<F, BitXor>>,
                _ => return float::<F>(op),
            })
        }
    };
}
use kernels;

/// The parts of a table of kernels.
mod parts {
    pub(super) use crate::generic::{
        Body, Direct, Format, Lanes, Mixed, Narrow, Reduce, Reduction, Widen, Widening,
    };
    pub(super) use crate::half_blocks::{Bf16, Bf16Block, F16, F16Block, Half, Isa, Ordered};
    pub(super) use crate::ops::{Avg, BitAnd, BitOr, BitXor, Bits, Max, Min, Op, Prod, Sum};
    pub(super) use phalanx_core::{DType, ReduceOp};
}
