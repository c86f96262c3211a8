//! Reduce operators: how two elements become one.

use crate::DType;
use serde::{Deserialize, Serialize};
use std::hash::{Hash, Hasher};

/// How a reduction combines the values of the ranks.
///
/// Integers wrap on overflow (as in MPI implementations and NCCL), and their [`Avg`](Self::Avg) truncates toward zero.
/// Sums, averages and products of `f16` and `bf16` are computed in `f32` over all ranks, and rounded once, at the end: a sum may pass beyond the
/// type's range on its way, and small contributions count (NCCL, where it reduces, rounds after each addition). `Min` and `Max` of floats return NaN
/// as soon as one rank has one, and take `-0.0` for less than `0.0`, so that no result depends on the order of ranks.
///
/// A result that is NaN is the one NaN of its type (`f32::NAN` and its like), whatever bits the ranks' NaN have. A group of one rank combines
/// nothing: there a NaN keeps its bits. NCCL, where it reduces, has rules of its own.
///
/// # Examples
/// A weighted average of two ranks; a factor is this rank's alone, and ranks may give different ones:
/// ```
/// use phalanx_core::ReduceOp;
///
/// let (rank, weights) = (1, [0.75, 0.25]);
/// let op = ReduceOp::PreMulSum(weights[rank]);
/// assert!(op.matches(ReduceOp::PreMulSum(weights[0])) && !op.matches(ReduceOp::Sum));
/// ```
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
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
    /// Sum of the ranks' values, each multiplied by the factor that its own rank gives; floats only.
    ///
    /// Ranks may give different factors. The factor is rounded to the element type, and so is each product, before products are added. Of half types
    /// both are `f32`, and so is all that travels: the sum is rounded once, at the end.
    PreMulSum(f64),
}

/// Operators are equal if they do the same on one rank: factors have the same bits.
impl PartialEq for ReduceOp {
    fn eq(&self, other: &Self) -> bool {
        self.matches(*other) && self.factor().map(f64::to_bits) == other.factor().map(f64::to_bits)
    }
}

impl Eq for ReduceOp {}

impl Hash for ReduceOp {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.number(), self.factor().map(f64::to_bits)).hash(state);
    }
}

impl ReduceOp {
    /// Every operator that has no factor, in declaration order.
    pub const ALL: [Self; 8] =
        [Self::Sum, Self::Avg, Self::Prod, Self::Min, Self::Max, Self::BitAnd, Self::BitOr, Self::BitXor];

    /// Whether the operator is defined for `dtype`: bit operators are for integers, a pre-multiplied sum is for floats.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::{DType, ReduceOp};
    ///
    /// assert!(ReduceOp::BitOr.supports(DType::U8));
    /// assert!(!ReduceOp::BitOr.supports(DType::F32));
    /// ```
    pub const fn supports(self, dtype: DType) -> bool {
        match self {
            Self::Sum | Self::Avg | Self::Prod | Self::Min | Self::Max => true,
            Self::BitAnd | Self::BitOr | Self::BitXor => !dtype.is_float(),
            Self::PreMulSum(_) => dtype.is_float(),
        }
    }

    /// Refuses a type for which the operator is not [defined](Self::supports).
    ///
    /// # Errors
    /// The words for it: `bit_and is for integers, not for f32`.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::{DType, ReduceOp};
    ///
    /// assert_eq!(ReduceOp::BitAnd.check(DType::F32).unwrap_err(), "bit_and is for integers, not for f32");
    /// assert!(ReduceOp::Sum.check(DType::F32).is_ok());
    /// ```
    pub fn check(self, dtype: DType) -> Result<(), String> {
        if self.supports(dtype) {
            return Ok(());
        }
        let types = if dtype.is_float() { "integers" } else { "floats" };
        Err(format!("{self} is for {types}, not for {dtype}"))
    }

    /// Whether two ranks mean the same operator. A factor is each rank's own.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp::{PreMulSum, Sum};
    ///
    /// assert!(PreMulSum(0.5).matches(PreMulSum(2.0)) && !PreMulSum(1.0).matches(Sum));
    /// ```
    pub const fn matches(self, other: Self) -> bool {
        self.number() == other.number()
    }

    /// What this rank's values are multiplied by before they are added, if they are.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    ///
    /// assert_eq!((ReduceOp::PreMulSum(0.5).factor(), ReduceOp::Sum.factor()), (Some(0.5), None));
    /// ```
    pub const fn factor(self) -> Option<f64> {
        match self {
            Self::PreMulSum(factor) => Some(factor),
            Self::Sum
            | Self::Avg
            | Self::Prod
            | Self::Min
            | Self::Max
            | Self::BitAnd
            | Self::BitOr
            | Self::BitXor => None,
        }
    }

    /// The place in the order of declaration.
    pub(crate) const fn number(self) -> u64 {
        match self {
            Self::Sum => 0,
            Self::Avg => 1,
            Self::Prod => 2,
            Self::Min => 3,
            Self::Max => 4,
            Self::BitAnd => 5,
            Self::BitOr => 6,
            Self::BitXor => 7,
            Self::PreMulSum(_) => 8,
        }
    }

    /// Lower-case name: `sum`, `avg`, `bit_and`, …
    ///
    /// # Examples
    /// ```
    /// assert_eq!(phalanx_core::ReduceOp::BitOr.name(), "bit_or");
    /// ```
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
            Self::PreMulSum(_) => "pre_mul_sum",
        }
    }
}

impl std::fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_is_a_ranks_own_and_no_part_of_the_operator() {
        let (half, third) = (ReduceOp::PreMulSum(0.5), ReduceOp::PreMulSum(1.0 / 3.0));
        assert!(half.matches(third) && half != third && half == ReduceOp::PreMulSum(0.5));
        let nan = ReduceOp::PreMulSum(f64::NAN);
        assert_eq!(nan, nan);
        for op in ReduceOp::ALL {
            assert!(!op.matches(half) && op != half && op.factor().is_none(), "{op}");
        }
    }

    #[test]
    fn what_is_not_defined_for_a_type_is_said() {
        for dtype in DType::ALL {
            let [bits, product] = [ReduceOp::BitXor, ReduceOp::PreMulSum(2.0)].map(|op| op.check(dtype));
            assert_ne!(bits.is_ok(), product.is_ok(), "{dtype}");
            assert_eq!(product.is_ok(), dtype.is_float(), "{dtype}");
        }
        let refused = ReduceOp::PreMulSum(0.5).check(DType::I32).unwrap_err();
        assert_eq!(refused, "pre_mul_sum is for floats, not for i32");
    }
}
