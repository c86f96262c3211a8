//! Gradients as the product of two thin matrices.

use crate::feedback::{Feedback, finite, load_buckets, save_buckets};
use crate::{Bucket, CommHook, Traffic};
use phalanx::{Error, ProcessGroup, ReduceOp, Result};
use phalanx_checkpoint::{self as checkpoint, Checkpoint, State};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::collections::BTreeMap;
use std::ops::Range;

/// PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS 2019): of each gradient of a matrix only its share in a few directions is sent.
///
/// One step of power iteration each time, which begins with the directions of the last (*warm start*): so they come to be the
/// most important ones. What lies in others is fed back. Tensors whose two thin matrices would not have at most half of their elements, vectors
/// among them, are sent as they are.
///
/// The size of gradients does not matter: those that are a power of two times as large come to a power of two times as much, to the last bit. That
/// holds as long as the sum over all ranks of a row's or a column's sizes, times two, is a number of f32, and gradients are not so small that f32 has
/// fewer digits for them (10⁻³⁰).
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
    ///
    /// # Examples
    /// ```
    /// use phalanx_compress::{Bucket, CommHook, PowerSgd};
    ///
    /// let matrices = phalanx::on_threads(2, |group| {
    ///     let mut gradients = vec![1.0 + group.rank() as f32; 64 * 64]; // a matrix of rank 1
    ///     let mut hook = PowerSgd::new(1)?;
    ///     hook.reduce(Bucket { index: 0, gradients: &mut gradients, shapes: &[&[64, 64]] }, &group)?;
    ///     assert_eq!(hook.traffic().ratio(), 32.0);
    ///     Ok(gradients)
    /// })?;
    /// assert!(matrices[0].iter().all(|sum| (sum - 3.0).abs() < 1e-3));
    /// assert!(PowerSgd::new(0).is_err());
    /// # Ok::<(), phalanx::Error>(())
    /// ```
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
        let columns = matrices.iter().map(|matrix| matrix.columns * self.rank).sum();
        if right.len() != columns {
            // Of another bucket, or of another number of directions.
            *right = vec![0.0; columns];
        }
        let rank = self.rank;
        let parts = |sides: &mut dyn Iterator<Item = usize>| ranges(&mut sides.map(|side| side * rank));
        let rights = parts(&mut matrices.iter().map(|matrix| matrix.columns));
        let lefts = parts(&mut matrices.iter().map(|matrix| matrix.rows));

        // The left-hand sides travel with everything that is sent as it is.
        let mut sent = vec![0.0; lefts.last().map_or(0, |range| range.end)];
        for ((matrix, at), (l, r)) in matrices.iter().zip(0..).zip(lefts.iter().zip(&rights)) {
            replace_missing(&mut right[r.clone()], matrix.columns, (index, at));
            right[r.clone()].chunks_exact_mut(matrix.columns).for_each(bring_into_range);
            multiply(&gradients[matrix.elements.clone()], &right[r.clone()], &mut sent[l.clone()], matrix);
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
            orthonormalise(&mut sent[l.clone()], matrix.rows);
            let elements = &gradients[matrix.elements.clone()];
            multiply_transposed(elements, &sent[l.clone()], &mut right[r.clone()], matrix);
        }
        let left = self.left.of(index, gradients.len());
        left.fill(0.0);
        for (matrix, (l, r)) in matrices.iter().zip(lefts.iter().zip(&rights)) {
            let left = left[matrix.elements.clone()].chunks_exact_mut(matrix.columns);
            let mut rows = left.zip(gradients[matrix.elements.clone()].chunks_exact(matrix.columns));
            product(&sent[l.clone()], &right[r.clone()], matrix, |product| {
                let Some((left, row)) = rows.next() else { return };
                let differences =
                    row.iter().zip(product).map(|(gradient, product)| finite(gradient - product));
                left.iter_mut().zip(differences).for_each(|(left, difference)| *left = difference);
            });
        }
        group.all_reduce(right, ReduceOp::Sum)?;
        for (matrix, (l, r)) in matrices.iter().zip(lefts.iter().zip(&rights)) {
            let mut rows = gradients[matrix.elements.clone()].chunks_exact_mut(matrix.columns);
            product(&sent[l.clone()], &right[r.clone()], matrix, |product| {
                rows.next().into_iter().for_each(|row| row.copy_from_slice(product));
            });
        }
        Ok(())
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn save(&self, prefix: &str, group: &ProcessGroup, state: &mut State<'_>) -> checkpoint::Result<()> {
        self.left.save(&format!("{prefix}.power_sgd.left"), group, state)?;
        save_buckets(&self.right, &format!("{prefix}.power_sgd.right"), state)
    }

    fn load(&mut self, prefix: &str, group: &ProcessGroup, from: &Checkpoint) -> checkpoint::Result<()> {
        self.left = Feedback::load(&format!("{prefix}.power_sgd.left"), group, from)?;
        self.right = load_buckets(&format!("{prefix}.power_sgd.right"), from)?;
        Ok(())
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
                "tensors of the shapes {shapes:?} do not fill a bucket of {len} elements"
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

/// The ranges between and behind the matrices.
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

/// `out = matrix × right`. Thin matrices are stored column by column.
fn multiply(elements: &[f32], right: &[f32], out: &mut [f32], matrix: &Matrix) {
    for (i, row) in elements.chunks_exact(matrix.columns).enumerate() {
        for (out, right) in out.chunks_exact_mut(matrix.rows).zip(right.chunks_exact(matrix.columns)) {
            out[i] = dot(row, right);
        }
    }
}

/// `out += matrixᵀ × left`.
fn multiply_transposed(elements: &[f32], left: &[f32], out: &mut [f32], matrix: &Matrix) {
    for (i, row) in elements.chunks_exact(matrix.columns).enumerate() {
        for (left, out) in left.chunks_exact(matrix.rows).zip(out.chunks_exact_mut(matrix.columns)) {
            add_times(out, left[i], row);
        }
    }
}

/// Gives each row of `left × rightᵀ`.
fn product(left: &[f32], right: &[f32], matrix: &Matrix, mut each: impl FnMut(&[f32])) {
    let mut row = vec![0.0; matrix.columns];
    for i in 0..matrix.rows {
        row.fill(0.0);
        for (left, right) in left.chunks_exact(matrix.rows).zip(right.chunks_exact(matrix.columns)) {
            add_times(&mut row, left[i], right);
        }
        each(&row);
    }
}

fn add_times(out: &mut [f32], factor: f32, values: &[f32]) {
    out.iter_mut().zip(values).for_each(|(out, value)| *out += factor * value);
}

/// Sixteen sums beside each other: processors add many numbers at once, but only if the order allows it.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    for (a, b) in a.iter().zip(b) {
        (0..16).for_each(|i| sums[i] += a[i] * b[i]);
    }
    sums.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
}

/// Multiplies by the power of two that brings the largest number between one and two: so squares and products of gradients stay in the range of
/// f32. Only directions count, so nothing is divided back.
///
/// Zeros stay, and so does what has an infinity.
fn bring_into_range(column: &mut [f32]) {
    let largest = column.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
    if largest == 0.0 || largest.is_infinite() {
        return;
    }
    // The smallest numbers need a factor that f32 has not, so it is done in f64.
    let exponent = f64::from(largest).to_bits() >> 52;
    let factor = f64::from_bits((2 * 1023 - exponent) << 52);
    column.iter_mut().for_each(|value| *value = (f64::from(*value) * factor) as f32);
}

/// Makes the columns orthogonal, and one long (Gram–Schmidt); those that the others span become zero.
fn orthonormalise(thin: &mut [f32], rows: usize) {
    for column in 0..thin.len() / rows {
        let (done, rest) = thin.split_at_mut(column * rows);
        let column = &mut rest[..rows];
        bring_into_range(column);
        let before = dot(column, column);
        for other in done.chunks_exact(rows) {
            add_times(column, -dot(column, other), other);
        }
        let after = dot(column, column);
        // What is left is rounding, not a direction. A NaN goes on as one.
        let scale = if after <= before * 1e-10 { 0.0 } else { 1.0 / after.sqrt() };
        column.iter_mut().for_each(|value| *value *= scale);
    }
}

/// Gives columns that are zero, as all are at first, or no numbers, a random direction: the same on all ranks, as the others are.
fn replace_missing(right: &mut [f32], columns: usize, (bucket, matrix): (usize, usize)) {
    for (i, column) in right.chunks_exact_mut(columns).enumerate() {
        if column.iter().all(|value| value.is_finite()) && column.iter().any(|value| *value != 0.0) {
            continue;
        }
        let seed = [bucket as u64, matrix as u64, i as u64, 0].map(u64::to_le_bytes).concat();
        let mut random = ChaCha8Rng::from_seed(seed.try_into().expect("four words are 32 bytes"));
        column.iter_mut().for_each(|value| *value = random.next_u32() as f32 / u32::MAX as f32 - 0.5);
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
            let mut right = [bad, 0.0, 3.0, 4.0];
            replace_missing(&mut right, 2, (0, 0));
            assert!(right.iter().all(|x| x.is_finite()) && right[0] != 0.0 && right[1] != 0.0, "{right:?}");
            assert_eq!(right[2..], [3.0, 4.0]);
        }
    }

    #[test]
    fn the_largest_number_comes_between_one_and_two_and_no_digit_changes() {
        let brought = |mut column: Vec<f32>| {
            bring_into_range(&mut column);
            column
        };
        assert_eq!(brought(vec![0.0, -6.0, 5.0]), [0.0, -1.5, 1.25]);
        assert_eq!(brought(vec![f32::MIN_POSITIVE / 4.0, 0.0]), [1.0, 0.0]);
        assert_eq!(brought(vec![f32::from_bits(1), f32::from_bits(3)]), [0.5, 1.5]);
        assert_eq!(brought(vec![f32::MAX]), [f32::from_bits(2f32.to_bits() - 1)]);
        assert_eq!(brought(vec![0.0, -0.0]), [0.0, 0.0]);
        let bad = brought(vec![f32::NAN, 8.0]);
        assert!(bad[0].is_nan() && bad[1] == 1.0);
        assert_eq!(brought(vec![f32::INFINITY, 8.0]), [f32::INFINITY, 8.0]);
    }

    #[test]
    fn columns_become_orthonormal_and_copies_vanish() {
        let (rows, rank) = (50, 3);
        let mut thin: Vec<f32> = (0..rows * rank).map(|i| (i as f32 * 0.7).sin()).collect();
        (0..rows).for_each(|row| thin[2 * rows + row] = 2.0 * thin[row] - thin[rows + row]);
        orthonormalise(&mut thin, rows);
        let columns: Vec<&[f32]> = thin.chunks_exact(rows).collect();
        for a in 0..rank {
            for b in 0..rank {
                let dot = dot(columns[a], columns[b]);
                let expected = f32::from(u8::from(a == b && a < 2));
                assert!((dot - expected).abs() < 1e-4, "{a}, {b}: {dot}");
            }
        }
    }
}
