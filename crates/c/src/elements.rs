//! Element types and operators, as the numbers that C programs give.

use phalanx::{DType, ReduceOp};
use std::ffi::c_int;

/// The type of the elements of a buffer. Functions take the number, and look whether it is one of these.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants are the names of the types")]
pub enum Dtype {
    F32 = 0,
    F64 = 1,
    /// IEEE 754 binary16.
    F16 = 2,
    /// The upper half of an `F32`.
    Bf16 = 3,
    I8 = 4,
    I16 = 5,
    I32 = 6,
    I64 = 7,
    U8 = 8,
    U16 = 9,
    U32 = 10,
    U64 = 11,
}

const DTYPES: [(Dtype, DType); 12] = [
    (Dtype::F32, DType::F32),
    (Dtype::F64, DType::F64),
    (Dtype::F16, DType::F16),
    (Dtype::Bf16, DType::BF16),
    (Dtype::I8, DType::I8),
    (Dtype::I16, DType::I16),
    (Dtype::I32, DType::I32),
    (Dtype::I64, DType::I64),
    (Dtype::U8, DType::U8),
    (Dtype::U16, DType::U16),
    (Dtype::U32, DType::U32),
    (Dtype::U64, DType::U64),
];

/// How a reduction combines the values of the ranks. Functions take the number, and look whether it is one of these.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// The sum.
    Sum = 0,
    /// The sum divided by the number of ranks; of integers, what is whole of it.
    Avg = 1,
    /// The product.
    Prod = 2,
    /// The smallest.
    Min = 3,
    /// The largest.
    Max = 4,
    /// Bitwise and; integers only.
    BitAnd = 5,
    /// Bitwise or; integers only.
    BitOr = 6,
    /// Bitwise exclusive or; integers only.
    BitXor = 7,
}

const OPS: [(Op, ReduceOp); 8] = [
    (Op::Sum, ReduceOp::Sum),
    (Op::Avg, ReduceOp::Avg),
    (Op::Prod, ReduceOp::Prod),
    (Op::Min, ReduceOp::Min),
    (Op::Max, ReduceOp::Max),
    (Op::BitAnd, ReduceOp::BitAnd),
    (Op::BitOr, ReduceOp::BitOr),
    (Op::BitXor, ReduceOp::BitXor),
];

/// The element type of this number.
///
/// # Errors
/// What is wrong, in words.
pub(crate) fn dtype(number: c_int) -> Result<DType, String> {
    let known = DTYPES.iter().find(|(known, _)| *known as c_int == number);
    known
        .map(|(_, dtype)| *dtype)
        .ok_or_else(|| format!("there is no element type {number}: pass one of phalanx_dtype"))
}

/// The operator of this number.
///
/// # Errors
/// What is wrong, in words.
pub(crate) fn op(number: c_int) -> Result<ReduceOp, String> {
    let known = OPS.iter().find(|(known, _)| *known as c_int == number);
    known.map(|(_, op)| *op).ok_or_else(|| format!("there is no operator {number}: pass one of phalanx_op"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_and_operator_has_its_number() {
        let dtypes: Vec<DType> = (0..12).map(|number| dtype(number).unwrap()).collect();
        assert_eq!(dtypes, DType::ALL);
        let ops: Vec<ReduceOp> = (0..8).map(|number| op(number).unwrap()).collect();
        assert_eq!(ops, ReduceOp::ALL);
    }

    #[test]
    fn other_numbers_are_refused() {
        for number in [-1, 12, c_int::MIN, c_int::MAX] {
            assert!(dtype(number).unwrap_err().contains(&number.to_string()));
            assert!(op(number).unwrap_err().contains(&number.to_string()));
        }
    }
}
