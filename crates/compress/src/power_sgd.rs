//! Gradients as the product of two thin matrices.

use crate::feedback::{Feedback, finite};
use crate::{Bucket, CommHook, Traffic};
use phalanx::{Error, ProcessGroup, ReduceOp, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::Range;

/// PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS 2019): of each gradient of a matrix only its share in a few directions is sent.
///
/// One step of power iteration each time, which begins with the directions of the last (*warm start*): so they come to be the
/// most important ones. What lies in others is fed back. Tensors whose two thin matrices would not have at most half of their elements, vectors
/// among them, are sent as they are.
#[derive(Debug)]
pub struct PowerSgd {
    rank: usize,
    left: Feedback,
    /// For each bucket the right-hand matrices, one after the other: the same on all ranks.
    right: BTreeMap<usize, Vec<f32>>,
    traffic: Traffic,
}

impl PowerSgd {
    /// Sends the share in `rank` directions; 1 to 4 are usual.
    ///
    /// # Errors
    /// [`Config`](Error::Config) for none.
    pub fn new(rank: usize) -> Result<Self> {
        if rank == 0 {
            return Err(Error::config("PowerSGD needs a rank of at least 1"));
        }
        Ok(Self { rank, left: Feedback::default(), right: BTreeMap::new(), traffic: Traffic::default() })
    }
}

impl CommHook for PowerSgd {
    fn reduce(&mut self, bucket: Bucket<'_>, group: &ProcessGroup) -> Result<()> {
        let Bucket { index, gradients, shapes } = bucket;
        let matrices = matrices(shapes, gradients.len(), self.rank)?;
        self.traffic.expect(gradients.len(), group);
        // What is sent as it is, is not kept: there nothing is left.
        self.left.add_to(index, gradients);

        let right = self.right.entry(index).or_default();
        right.resize(matrices.iter().map(|matrix| matrix.columns * self.rank).sum(), 0.0);
        let rank = self.rank;
        let parts = |sides: &mut dyn Iterator<Item = usize>| ranges(&mut sides.map(|side| side * rank));
        let rights = parts(&mut matrices.iter().map(|matrix| matrix.columns));
        let lefts = parts(&mut matrices.iter().map(|matrix| matrix.rows));

        // The left-hand sides travel with everything that is sent as it is.
        let mut sent = vec![0.0; lefts.last().map_or(0, |range| range.end)];
        for ((matrix, at), (l, r)) in matrices.iter().zip(0..).zip(lefts.iter().zip(&rights)) {
            replace_missing(&mut right[r.clone()], matrix.columns, rank, (index, at));
            multiply(
                &gradients[matrix.elements.clone()],
                &right[r.clone()],
                &mut sent[l.clone()],
                matrix,
                rank,
            );
        }
        let thin = sent.len();
        let plain = rest(&matrices, gradients.len());
        plain.iter().for_each(|range| sent.extend_from_slice(&gradients[range.clone()]));
        self.traffic.all_reduce(4 * (sent.len() + right.len()), group);
        group.all_reduce(&mut sent, ReduceOp::Sum)?;
        let mut from = thin;
        for range in &plain {
            gradients[range.clone()].copy_from_slice(&sent[from..from + range.len()]);
            from += range.len();
        }

        right.fill(0.0);
        for (matrix, (l, r)) in matrices.iter().zip(lefts.iter().zip(&rights)) {
            orthonormalise(&mut sent[l.clone()], matrix.rows, rank);
            let elements = &gradients[matrix.elements.clone()];
            multiply_transposed(elements, &sent[l.clone()], &mut right[r.clone()], matrix, rank);
        }
        let left = self.left.of(index, gradients.len());
        left.fill(0.0);
        for (matrix, (l, r)) in matrices.iter().zip(lefts.iter().zip(&rights)) {
            let (own, all) = (&sent[l.clone()], &right[r.clone()]);
            let elements = matrix.elements.clone();
            for ((left, gradient), product) in left[elements.clone()]
                .iter_mut()
                .zip(&gradients[elements])
                .zip(product(own, all, matrix, rank))
            {
                *left = finite(gradient - product);
            }
        }
        group.all_reduce(right, ReduceOp::Sum)?;
        for (matrix, (l, r)) in matrices.iter().zip(lefts.iter().zip(&rights)) {
            let products = product(&sent[l.clone()], &right[r.clone()], matrix, rank);
            gradients[matrix.elements.clone()].iter_mut().zip(products).for_each(|(g, product)| *g = product);
        }
        Ok(())
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }
}

/// A tensor of the bucket that is worth it, its first dimension against all others.
#[derive(Debug)]
struct Matrix {
    elements: Range<usize>,
    rows: usize,
    columns: usize,
}

fn matrices(shapes: &[&[usize]], len: usize, rank: usize) -> Result<Vec<Matrix>> {
    let (mut matrices, mut start) = (Vec::new(), 0usize);
    for shape in shapes {
        let end = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).and_then(|n| start.checked_add(n));
        let Some(end) = end.filter(|&end| end <= len) else {
            return Err(Error::config(format!(
                "tensors of the shapes {shapes:?} don't fit into a bucket of {len}"
            )));
        };
        let rows = shape.first().copied().unwrap_or(1);
        let columns = (end - start).checked_div(rows).unwrap_or(0);
        if end > start && rank.saturating_mul(2 * (rows + columns)) <= end - start {
            matrices.push(Matrix { elements: start..end, rows, columns });
        }
        start = end;
    }
    Ok(matrices)
}

/// What lies between and behind the matrices.
fn rest(matrices: &[Matrix], len: usize) -> Vec<Range<usize>> {
    let starts = std::iter::once(0).chain(matrices.iter().map(|matrix| matrix.elements.end));
    let ends = matrices.iter().map(|matrix| matrix.elements.start).chain(std::iter::once(len));
    starts.zip(ends).map(|(start, end)| start..end).filter(|range| !range.is_empty()).collect()
}

/// Consecutive ranges of these lengths.
fn ranges(lens: &mut dyn Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut start = 0;
    lens.map(|len| {
        let range = start..start + len;
        start = range.end;
        range
    })
    .collect()
}

/// `out = matrix × right`; thin matrices are stored by rows, of `rank` numbers.
fn multiply(elements: &[f32], right: &[f32], out: &mut [f32], matrix: &Matrix, rank: usize) {
    for (row, out) in elements.chunks_exact(matrix.columns).zip(out.chunks_exact_mut(rank)) {
        out.fill(0.0);
        for (element, right) in row.iter().zip(right.chunks_exact(rank)) {
            out.iter_mut().zip(right).for_each(|(out, right)| *out += element * right);
        }
    }
}

/// `out += matrixᵀ × left`.
fn multiply_transposed(elements: &[f32], left: &[f32], out: &mut [f32], matrix: &Matrix, rank: usize) {
    for (row, left) in elements.chunks_exact(matrix.columns).zip(left.chunks_exact(rank)) {
        for (element, out) in row.iter().zip(out.chunks_exact_mut(rank)) {
            out.iter_mut().zip(left).for_each(|(out, left)| *out += element * left);
        }
    }
}

/// The elements of `left × rightᵀ`, row by row.
fn product<'a>(
    left: &'a [f32],
    right: &'a [f32],
    matrix: &Matrix,
    rank: usize,
) -> impl Iterator<Item = f32> + use<'a> {
    debug_assert_eq!(right.len(), matrix.columns * rank);
    left.chunks_exact(rank).flat_map(move |left| {
        right.chunks_exact(rank).map(move |right| left.iter().zip(right).map(|(l, r)| l * r).sum())
    })
}

/// Makes the columns orthogonal, and one long (Gram–Schmidt); those that the others span become zero.
fn orthonormalise(thin: &mut [f32], rows: usize, rank: usize) {
    let dot = |thin: &[f32], a: usize, b: usize| -> f32 {
        (0..rows).map(|row| thin[row * rank + a] * thin[row * rank + b]).sum()
    };
    for column in 0..rank {
        let before = dot(thin, column, column);
        for other in 0..column {
            let shared = dot(thin, column, other);
            (0..rows).for_each(|row| thin[row * rank + column] -= shared * thin[row * rank + other]);
        }
        let after = dot(thin, column, column);
        // What is left is rounding, not a direction. A NaN goes on as one.
        let scale = if after <= before * 1e-10 { 0.0 } else { 1.0 / after.sqrt() };
        (0..rows).for_each(|row| thin[row * rank + column] *= scale);
    }
}

/// Gives columns that are zero, as all are at first, or no numbers, a random direction: the same on all ranks, as the others are.
fn replace_missing(right: &mut [f32], columns: usize, rank: usize, (bucket, at): (usize, usize)) {
    for column in 0..rank {
        let size: f32 = (0..columns).map(|row| right[row * rank + column].abs()).sum();
        if size > 0.0 && size.is_finite() {
            continue;
        }
        let seed = [bucket as u64, at as u64, column as u64, 0].map(u64::to_le_bytes).concat();
        let mut random = ChaCha8Rng::from_seed(seed.try_into().expect("four words are 32 bytes"));
        let mut next = || random.next_u32() as f32 / u32::MAX as f32 - 0.5;
        (0..columns).for_each(|row| right[row * rank + column] = next());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_worth_it_is_a_matrix() {
        let shapes: [&[usize]; 5] = [&[7], &[10, 20], &[], &[4, 5, 6], &[2, 2]];
        let found = matrices(&shapes, 400, 2).unwrap();
        let found: Vec<_> = found.iter().map(|m| (m.elements.clone(), m.rows, m.columns)).collect();
        assert_eq!(found, [(7..207, 10, 20)], "4 x 30 has 120 elements, and its thin matrices 68");
        let found = matrices(&shapes, 400, 1).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(rest(&found, 400), [0..7, 207..208, 328..400]);
        assert!(matrices(&[&[3, 3]], 8, 1).is_err());
        assert!(matrices(&[&[usize::MAX, 3]], 8, 1).is_err());
        assert!(matrices(&[&[0, 3], &[3, 0]], 0, 1).unwrap().is_empty());
    }

    #[test]
    fn directions_that_are_none_are_replaced_and_others_stay() {
        for bad in [0.0, f32::NAN, f32::INFINITY] {
            // Two columns, by rows.
            let mut right = [bad, 3.0, 0.0, 4.0];
            replace_missing(&mut right, 2, 2, (0, 0));
            assert!(right.iter().all(|x| x.is_finite()) && right[0] != 0.0 && right[2] != 0.0, "{right:?}");
            assert_eq!((right[1], right[3]), (3.0, 4.0));
        }
    }

    #[test]
    fn columns_become_orthonormal_and_copies_vanish() {
        let (rows, rank) = (50, 3);
        let mut thin: Vec<f32> = (0..rows * rank).map(|i| (i as f32 * 0.7).sin()).collect();
        (0..rows).for_each(|row| thin[row * rank + 2] = 2.0 * thin[row * rank] - thin[row * rank + 1]);
        orthonormalise(&mut thin, rows, rank);
        for a in 0..rank {
            for b in 0..rank {
                let dot: f32 = (0..rows).map(|row| thin[row * rank + a] * thin[row * rank + b]).sum();
                let expected = f32::from(u8::from(a == b && a < 2));
                assert!((dot - expected).abs() < 1e-4, "{a}, {b}: {dot}");
            }
        }
    }
}
