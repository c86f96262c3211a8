//! The oracle: what collectives must compute, the slow and obvious way, with one loop over the ranks, in rank order.
//!
//! Each function is given the buffers of all ranks. Values come from [`Sample`]: all that is added or multiplied is
//! exact in its type, so that no order of operations changes a bit.

use half::{bf16, f16};
use phalanx_core::{DType, Element, ReduceOp};

/// A stream of numbers without pattern, fixed by its seed (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The stream of `seed`.
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::oracle::Random;
    ///
    /// assert_eq!(Random::new(7).bits(), Random::new(7).bits());
    /// ```
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::oracle::Random;
    ///
    /// let mut random = Random::new(7);
    /// assert_ne!(random.bits(), random.bits());
    /// ```
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// The next number below `n`.
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::oracle::Random;
    ///
    /// assert!(Random::new(7).below(10) < 10);
    /// ```
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// `len` values with any bits whatever: for operations that only move them.
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::oracle::Random;
    ///
    /// let floats: Vec<f32> = Random::new(7).any(1000);
    /// assert_eq!(floats.len(), 1000); // infinities and NaN may be among them
    /// ```
    pub fn any<T: Element>(&mut self, len: usize) -> Vec<T> {
        let mut values = vec![T::zeroed(); len];
        for part in bytemuck::cast_slice_mut::<T, u8>(&mut values).chunks_mut(8) {
            part.copy_from_slice(&self.bits().to_le_bytes()[..part.len()]);
        }
        values
    }

    /// `len` values that a group of up to eight ranks can combine by `op` without rounding.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_testkit::oracle::Random;
    ///
    /// let [a, b, c]: [f32; 3] = Random::new(7).exact(3, ReduceOp::Sum).try_into().unwrap();
    /// assert_eq!((a + b) + c, a + (b + c)); // whatever the order
    /// ```
    pub fn exact<T: Sample>(&mut self, len: usize, op: ReduceOp) -> Vec<T> {
        (0..len).map(|_| T::exact(self.bits(), op)).collect()
    }

    /// `len` values whose combination is rounded; of integers, any.
    ///
    /// # Examples
    /// ```
    /// use phalanx_testkit::oracle::Random;
    ///
    /// let floats: Vec<f32> = Random::new(7).rough(1000);
    /// assert!(floats.iter().all(|x| x.is_finite()));
    /// ```
    pub fn rough<T: Sample>(&mut self, len: usize) -> Vec<T> {
        (0..len).map(|_| T::rough(self.bits())).collect()
    }
}

/// An element type whose reductions can be foretold.
pub trait Sample: Element {
    /// One of the values described at [`Random::exact`].
    fn exact(bits: u64, op: ReduceOp) -> Self;

    /// One of the values described at [`Random::rough`].
    fn rough(bits: u64) -> Self;

    /// The values of all ranks, combined.
    fn combine(op: ReduceOp, values: &[Self]) -> Self;
}

macro_rules! integers {
    ($($t:ty),*) => { $(
        impl Sample for $t {
            fn exact(bits: u64, _op: ReduceOp) -> Self {
                bits as Self
            }

            fn rough(bits: u64) -> Self {
                bits as Self
            }

            /// Wrapping 128-bit numbers cut to their low bits are the wrapping numbers of the type.
            fn combine(op: ReduceOp, values: &[Self]) -> Self {
                let wide = values.iter().map(|&v| v as i128);
                let sum = |wide: &mut dyn Iterator<Item = i128>| wide.fold(0, i128::wrapping_add) as Self;
                let value = match op {
                    ReduceOp::Sum => return sum(&mut { wide }),
                    ReduceOp::Avg => return (i128::from(sum(&mut { wide })) / values.len() as i128) as Self,
                    ReduceOp::Prod => wide.reduce(i128::wrapping_mul),
                    ReduceOp::Min => wide.min(),
                    ReduceOp::Max => wide.max(),
                    ReduceOp::BitAnd => wide.reduce(|a, b| a & b),
                    ReduceOp::BitOr => wide.reduce(|a, b| a | b),
                    ReduceOp::BitXor => wide.reduce(|a, b| a ^ b),
                    other => panic!("the oracle does not know {other}"),
                };
                value.expect("a group has ranks") as Self
            }
        }
    )* };
}

integers!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! floats {
    ($($t:ty: $to_f64:expr, $from_f64:expr;)*) => { $(
        impl Sample for $t {
            /// Products of powers of two, and sums of small integers, are exact in `bf16` too. Zeros have either sign.
            fn exact(bits: u64, op: ReduceOp) -> Self {
                let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
                let size = match op {
                    ReduceOp::Prod => [0.5, 1.0, 1.0, 2.0][(bits >> 1) as usize % 4],
                    _ => ((bits >> 1) % 17) as f64,
                };
                $from_f64(sign * size)
            }

            fn rough(bits: u64) -> Self {
                let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
                $from_f64(sign * ((bits >> 11) as f64 / (1u64 << 53) as f64) * 8.0)
            }

            /// In `f64`, which is exact for [`exact`](Self::exact) values; a quotient is rounded correctly through it.
            fn combine(op: ReduceOp, values: &[Self]) -> Self {
                let wide = values.iter().map(|&v| $to_f64(v));
                let value = match op {
                    ReduceOp::Sum => wide.reduce(|a, b| a + b),
                    ReduceOp::Avg => wide.reduce(|a, b| a + b).map(|sum| sum / values.len() as f64),
                    ReduceOp::Prod => wide.reduce(|a, b| a * b),
                    ReduceOp::Min => wide.min_by(f64::total_cmp),
                    ReduceOp::Max => wide.max_by(f64::total_cmp),
                    other => panic!("{other} is not for floats"),
                };
                $from_f64(value.expect("a group has ranks"))
            }
        }
    )* };
}

floats! {
    f32: f64::from, |v: f64| v as Self;
    f64: f64::from, |v: f64| v;
    f16: Self::to_f64, Self::from_f64;
    bf16: Self::to_f64, Self::from_f64;
}

/// Reduce operators that `dtype` has.
///
/// # Examples
/// ```
/// use phalanx_core::{DType, ReduceOp};
/// use phalanx_testkit::oracle::operators;
///
/// assert!(operators(DType::U8).any(|op| op == ReduceOp::BitAnd));
/// assert!(operators(DType::F32).all(|op| op != ReduceOp::BitAnd));
/// ```
pub fn operators(dtype: DType) -> impl Iterator<Item = ReduceOp> {
    ReduceOp::ALL.into_iter().filter(move |op| op.supports(dtype))
}

/// The result of all_reduce on every rank, of reduce on the root, and of reduce_scatter in [`blocks`].
///
/// # Examples
/// ```
/// use phalanx_core::ReduceOp;
/// use phalanx_testkit::oracle::reduce;
///
/// assert_eq!(reduce(&[vec![1, 2], vec![10, 20]], ReduceOp::Sum), [11, 22]);
/// ```
pub fn reduce<T: Sample>(inputs: &[Vec<T>], op: ReduceOp) -> Vec<T> {
    let mut values = Vec::new();
    let mut at = |i: usize| {
        values.clear();
        values.extend(inputs.iter().map(|input| input[i]));
        T::combine(op, &values)
    };
    (0..inputs[0].len()).map(&mut at).collect()
}

/// The result of all_gather on every rank, and of gather on the root.
///
/// # Examples
/// ```
/// use phalanx_testkit::oracle::gather;
///
/// assert_eq!(gather(&[vec![1, 2], vec![3, 4]]), [1, 2, 3, 4]);
/// ```
pub fn gather<T: Element>(inputs: &[Vec<T>]) -> Vec<T> {
    inputs.concat()
}

/// `buffer` cut into blocks of `counts` elements: what scatter deals out.
///
/// # Examples
/// ```
/// use phalanx_testkit::oracle::blocks;
///
/// assert_eq!(blocks(&[1, 2, 3], &[2, 1]), [vec![1, 2], vec![3]]);
/// ```
pub fn blocks<T: Element>(buffer: &[T], counts: &[usize]) -> Vec<Vec<T>> {
    let mut rest = buffer;
    let mut cut = |n: &usize| {
        let (block, others) = rest.split_at(*n);
        rest = others;
        block.to_vec()
    };
    counts.iter().map(&mut cut).collect()
}

/// The result of an all_to_all on each rank, in which rank `r` sends `counts[r][s]` elements to rank `s`.
///
/// # Examples
/// ```
/// use phalanx_testkit::oracle::all_to_all;
///
/// let inputs = [vec![1, 2, 3], vec![4]];
/// let counts = [vec![1, 2], vec![1, 0]]; // rank 0 sends one element to itself and two to rank 1
/// assert_eq!(all_to_all(&inputs, &counts), [vec![1, 4], vec![2, 3]]);
/// ```
pub fn all_to_all<T: Element>(inputs: &[Vec<T>], counts: &[Vec<usize>]) -> Vec<Vec<T>> {
    let sent: Vec<_> = inputs.iter().zip(counts).map(|(input, counts)| blocks(input, counts)).collect();
    let received = |to: usize| sent.iter().map(|from| &from[to][..]).collect::<Vec<_>>().concat();
    (0..inputs.len()).map(received).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reductions_by_hand() {
        assert_eq!(i8::combine(ReduceOp::Sum, &[100, 100]), -56);
        assert_eq!(i8::combine(ReduceOp::Avg, &[100, 100]), -28);
        assert_eq!(i8::combine(ReduceOp::Avg, &[-3, -4]), -3, "toward zero");
        assert_eq!(u64::combine(ReduceOp::Prod, &[u64::MAX, u64::MAX, 3]), 3);
        assert_eq!(u64::combine(ReduceOp::Max, &[u64::MAX, 1]), u64::MAX);
        assert_eq!(u8::combine(ReduceOp::BitXor, &[0b1100, 0b1010, 0b0001]), 0b0111);
        assert_eq!(f32::combine(ReduceOp::Avg, &[1.0, 1.0, 0.0]), 2.0 / 3.0);
        assert_eq!(f32::combine(ReduceOp::Min, &[0.0, -0.0]).to_bits(), (-0.0f32).to_bits());
        assert_eq!(bf16::combine(ReduceOp::Prod, &[bf16::from_f32(-2.0); 3]).to_f32(), -8.0);
    }

    #[test]
    fn movements_by_hand() {
        let inputs = [vec![1u8, 2, 3], vec![4, 5, 6]];
        assert_eq!(gather(&inputs), [1, 2, 3, 4, 5, 6]);
        assert_eq!(blocks(&inputs[0], &[0, 2, 1]), [vec![], vec![1, 2], vec![3]]);
        assert_eq!(all_to_all(&inputs, &[vec![2, 1], vec![0, 3]]), [vec![1, 2], vec![3, 4, 5, 6]]);
    }

    #[test]
    fn exact_values_are_exact_in_any_order() {
        fn check<T: Sample>() {
            let mut random = Random::new(7);
            for op in operators(T::DTYPE) {
                for _ in 0..200 {
                    let mut values = random.exact::<T>(8, op);
                    // Step by step in the type itself, from both ends.
                    let stepwise = |values: &[T]| match op {
                        ReduceOp::Avg => T::combine(op, values),
                        _ => values
                            .iter()
                            .copied()
                            .reduce(|a, b| T::combine(op, &[a, b]))
                            .expect("eight values"),
                    };
                    let (whole, forward) = (T::combine(op, &values), stepwise(&values));
                    values.reverse();
                    let backward = stepwise(&values);
                    assert_eq!(bytemuck::bytes_of(&whole), bytemuck::bytes_of(&forward), "{op} {values:?}");
                    assert_eq!(bytemuck::bytes_of(&whole), bytemuck::bytes_of(&backward), "{op} {values:?}");
                }
            }
        }
        check::<f16>();
        check::<bf16>();
        check::<f32>();
        check::<f64>();
        check::<i8>();
        check::<u64>();
    }
}
