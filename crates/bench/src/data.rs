//! The data of a case: what the ranks contribute, and what must come out.
//!
//! Contributions are small whole numbers, chosen so that every element type holds each partial result exactly:
//! whatever order an algorithm combines them in, a right result equals the expected one bit by bit.

use crate::op::Op;
use half::{bf16, f16};
use phalanx::{Element, ReduceOp};

/// Contributions repeat after so many elements: a prime, so that no two blocks of a buffer look alike.
const PERIOD: usize = 1021;
/// The largest whole number that every element type has.
const LARGEST: usize = 127;
/// Ranks whose factors in a product are not all 1: 2⁶ is below [`LARGEST`].
const FACTORS: usize = 6;

/// An element type that holds small whole numbers.
pub(crate) trait Value: Element {
    /// The number as an element.
    fn of(small: u8) -> Self;
}

macro_rules! values {
    ($($t:ty: $of:expr),*) => { $(
        impl Value for $t {
            fn of(small: u8) -> Self {
                $of(small)
            }
        }
    )* };
}

values!(
    f32: f32::from, f64: f64::from, f16: f16::from, bf16: bf16::from,
    u8: u8::from, u16: u16::from, u32: u32::from, u64: u64::from,
    i8: |small| small as i8, i16: i16::from, i32: i32::from, i64: i64::from
);

/// The data of one operation among all ranks.
pub(crate) struct Data<T> {
    /// For each rank, the first [`PERIOD`] elements that it contributes.
    contributions: Vec<Vec<T>>,
    /// The first [`PERIOD`] elements of all contributions combined; empty where nothing is combined.
    combined: Vec<T>,
}

impl<T: Value> Data<T> {
    /// Overwrites what an operation is to write with something that is no result: what it leaves out would else be right from before.
    pub(crate) fn spoil(into: &mut [T]) {
        into.fill(T::of(u8::MAX));
    }

    pub(crate) fn new(op: Op, reduce: ReduceOp, world_size: usize) -> Self {
        let reduce = op.reduces().then_some(reduce);
        let small = |rank, i| contribution(reduce, world_size, rank, i);
        let contributions =
            (0..world_size).map(|rank| (0..PERIOD).map(|i| T::of(small(rank, i) as u8)).collect()).collect();
        let all = |i| combine(reduce?, (0..world_size).map(|rank| small(rank, i)));
        let combined = (0..PERIOD).map_while(|i| all(i).map(|value| T::of(value as u8))).collect();
        Self { contributions, combined }
    }

    /// Writes what `rank` contributes, at the speed of memory.
    pub(crate) fn write(&self, rank: usize, into: &mut [T]) {
        let pattern = &self.contributions[rank];
        for chunk in into.chunks_mut(PERIOD) {
            chunk.copy_from_slice(&pattern[..chunk.len()]);
        }
    }

    /// How many elements of `got` differ from those that `rank` contributes from `start` on.
    pub(crate) fn wrong(&self, rank: usize, start: usize, got: &[T]) -> u64 {
        differing(&self.contributions[rank], start, got)
    }

    /// How many elements of `got` differ from the combination of all ranks' contributions from `start` on.
    pub(crate) fn wrong_combined(&self, start: usize, got: &[T]) -> u64 {
        differing(&self.combined, start, got)
    }
}

fn differing<T: PartialEq>(pattern: &[T], start: usize, got: &[T]) -> u64 {
    let expected = pattern.iter().cycle().skip(start % PERIOD);
    got.iter().zip(expected).filter(|(got, expected)| got != expected).count() as u64
}

/// The contribution of `rank` at element `i`.
fn contribution(reduce: Option<ReduceOp>, world_size: usize, rank: usize, i: usize) -> usize {
    match reduce {
        // No partial sum is larger than LARGEST: among many ranks only some have anything to add at one place, each in its turn.
        Some(ReduceOp::Sum) => {
            let turns = world_size.div_ceil(LARGEST);
            let has_turn = (rank + i).is_multiple_of(turns);
            if has_turn { scatter(rank, i) % (LARGEST / world_size.div_ceil(turns) + 1) } else { 0 }
        }
        // The average is a whole number: what one rank has too much, its neighbour has too little.
        Some(ReduceOp::Avg) => {
            let average = 1 + scatter(0, i) % (LARGEST / world_size).max(1);
            match rank {
                last if last ^ 1 >= world_size => average,
                even if even.is_multiple_of(2) => average + 1,
                _ => average - 1,
            }
        }
        Some(ReduceOp::Prod) if rank >= FACTORS => 1,
        Some(ReduceOp::Prod) => 1 + scatter(rank, i) % 2,
        _ => scatter(rank, i) % (LARGEST + 1),
    }
}

/// `None` for an operator of which this file knows nothing.
fn combine(reduce: ReduceOp, values: impl ExactSizeIterator<Item = usize>) -> Option<usize> {
    let len = values.len();
    let combined = match reduce {
        ReduceOp::Sum => values.sum(),
        ReduceOp::Avg => values.sum::<usize>() / len,
        ReduceOp::Prod => values.product(),
        ReduceOp::Min => values.min()?,
        ReduceOp::Max => values.max()?,
        ReduceOp::BitAnd => values.reduce(|a, b| a & b)?,
        ReduceOp::BitOr => values.reduce(|a, b| a | b)?,
        ReduceOp::BitXor => values.reduce(|a, b| a ^ b)?,
        _ => return None,
    };
    Some(combined)
}

/// A number that looks random, the same everywhere.
fn scatter(rank: usize, i: usize) -> usize {
    let mixed = (i as u32 + 1).wrapping_mul(0x9e37_79b1) ^ (rank as u32 + 1).wrapping_mul(0x85eb_ca6b);
    (mixed.wrapping_mul(0xc2b2_ae35) >> 16) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_partial_result_fits_every_type() {
        for reduce in ReduceOp::ALL {
            for world_size in 1..=LARGEST {
                for i in 0..PERIOD {
                    let values = (0..world_size).map(|rank| contribution(Some(reduce), world_size, rank, i));
                    // A sum is the largest of all; that of averages is one more on the way.
                    let largest = match reduce {
                        ReduceOp::Sum | ReduceOp::Avg => values.sum(),
                        ReduceOp::Prod => values.product(),
                        _ => values.max().unwrap(),
                    };
                    assert!(largest <= LARGEST, "{reduce} of {world_size} ranks: {largest}");
                }
            }
        }
    }

    #[test]
    fn sums_of_many_ranks_fit_too_and_miss_each_rank_that_is_left_out() {
        let of = |world_size, rank, i| contribution(Some(ReduceOp::Sum), world_size, rank, i);
        for world_size in [LARGEST, LARGEST + 1, 2 * LARGEST, 300, 1024] {
            for i in 0..PERIOD {
                let sum: usize = (0..world_size).map(|rank| of(world_size, rank, i)).sum();
                assert!(sum <= LARGEST, "{world_size} ranks: {sum}");
            }
            for rank in 0..world_size {
                assert!(
                    (0..PERIOD).any(|i| of(world_size, rank, i) > 0),
                    "rank {rank} of {world_size} adds nothing"
                );
            }
        }
    }

    #[test]
    fn averages_are_whole() {
        for world_size in 1..20 {
            let values = (0..world_size).map(|rank| contribution(Some(ReduceOp::Avg), world_size, rank, 7));
            assert_eq!(values.sum::<usize>() % world_size, 0);
        }
    }

    #[test]
    fn a_wrong_element_is_counted() {
        let data = Data::<i8>::new(Op::AllReduce, ReduceOp::Sum, 3);
        let mut buffer = vec![0; 5000];
        data.write(1, &mut buffer);
        assert_eq!((data.wrong(1, 0, &buffer), data.wrong(1, 4000, &buffer[4000..])), (0, 0));
        assert!(data.wrong(2, 0, &buffer) > 1000 && data.wrong_combined(0, &buffer) > 1000);
        buffer[4999] ^= 1;
        assert_eq!(data.wrong(1, 4000, &buffer[4000..]), 1);
        Data::spoil(&mut buffer);
        assert_eq!((data.wrong(1, 0, &buffer), data.wrong_combined(0, &buffer)), (5000, 5000));
    }
}
