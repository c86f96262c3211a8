//! Reduce operators: how two elements become one.

use crate::DType;
use serde::{Deserialize, Serialize};

/// How a reduction combines the values of the ranks.
///
/// Integers wrap on overflow (as in MPI implementations and NCCL), and their [`Avg`](Self::Avg) truncates toward zero.
/// Sums, averages and products of `f16` and `bf16` are computed in `f32` over all ranks, and rounded once, at the end: a sum may pass beyond the
/// type's range on its way, and small contributions count (NCCL, where it reduces, rounds after each addition). `Min` and `Max` of floats return NaN
/// as soon as one rank has one, and take `-0.0` for less than `0.0`, so that no result depends on the order of ranks.
///
/// A result that is NaN is the one NaN of its type (`f32::NAN` and its like), whatever bits the ranks' NaN have. A group of one rank combines
/// nothing: there a NaN keeps its bits. NCCL, where it reduces, has rules of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ReduceOp {
    /// Sum over the ranks.
    Sum,
    /// Sum divided by the number of ranks.
    Avg,
    /// Product over the ranks.
    Prod,
    /// Smallest value.
    Min,
    /// Largest value.
    Max,
    /// Bitwise and; integers only.
    BitAnd,
    /// Bitwise or; integers only.
    BitOr,
    /// Bitwise exclusive or; integers only.
    BitXor,
}

impl ReduceOp {
    /// Every operator, in declaration order.
    pub const ALL: [Self; 8] =
        [Self::Sum, Self::Avg, Self::Prod, Self::Min, Self::Max, Self::BitAnd, Self::BitOr, Self::BitXor];

    /// Whether the operator is defined for `dtype`: bit operators are for integers.
    pub const fn supports(self, dtype: DType) -> bool {
        !(dtype.is_float() && matches!(self, Self::BitAnd | Self::BitOr | Self::BitXor))
    }

    /// Lower-case name: `sum`, `avg`, `bit_and`, …
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Avg => "avg",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::BitAnd => "bit_and",
            Self::BitOr => "bit_or",
            Self::BitXor => "bit_xor",
        }
    }
}

impl std::fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
