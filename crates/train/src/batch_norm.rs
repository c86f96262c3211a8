//! The arithmetic of batch normalisation over the samples of all ranks, on slices.

use crate::element::{Float, with_float};
use bytemuck::{cast_slice, cast_slice_mut};
use phalanx::{DType, Element, Error, ProcessGroup, ReduceOp, Result};

/// The number of values a feature, and of each feature the mean and the sum of squares around it: of this rank's samples, or of those of all ranks.
///
/// Sums are formed in f64: means first, then the squares around them, and the ranks' are put together by the formula of Chan et al. (1979), so a mean that is
/// large beside the deviation takes nothing from the variance. All ranks have the same bits.
///
/// # Examples
/// A layer of one feature, forward and backward; two samples here, one there:
///
/// ```
/// use phalanx_train::BatchMoments;
///
/// # fn on(group: &phalanx::ProcessGroup) -> phalanx::Result<()> {
/// let mine = [&[0f32, 2.0][..], &[4.0]][group.rank()];
/// let moments = BatchMoments::of(mine, 1, 1, true)?.over(group)?;
/// assert_eq!((moments.count(), moments.mean()), (3.0, &[2.0][..]));
///
/// let standardise = moments.standardise(1e-5);
/// let y = standardise.forward(mine, 1)?;
/// let expected = [&[-1.2247f32, 0.0][..], &[1.2247]][group.rank()]; // the deviation is √(8/3)
/// assert!(y.iter().zip(expected).all(|(y, expected)| (y - expected).abs() < 1e-4));
/// // What adds the same to all samples changes nothing, so it has no gradient.
/// let grads = standardise.backward(&vec![1f32; mine.len()], &y, 1)?;
/// assert!(grads.iter().all(|grad| grad.abs() < 1e-6));
/// # Ok(()) }
/// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
/// ```
#[derive(Debug, Clone)]
#[doc(alias = "SyncBatchNorm")]
pub struct BatchMoments {
    sums: Sums,
    remove_mean: bool,
    /// The ranks that have samples, if this is one.
    working: Option<ProcessGroup>,
}

/// The moments of some samples.
#[derive(Debug, Clone, PartialEq)]
struct Sums {
    count: f64,
    mean: Vec<f64>,
    squares: Vec<f64>,
}

impl BatchMoments {
    /// The moments of this rank's samples alone, until they are put together with those of [all](Self::over). Without `remove_mean`, means count as zero.
    ///
    /// # Shape
    /// `values`: `[n, features, …]` in row-major order, with `inner` elements of one sample that belong to one feature. A rank may have no samples.
    ///
    /// # Errors
    /// [`Error::Config`] for elements that are no floats.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::BatchMoments;
    ///
    /// let samples = [1f32, 10.0, 3.0, 30.0]; // two, of two features
    /// let moments = BatchMoments::of(&samples, 2, 1, true)?;
    /// assert_eq!(moments.mean(), [2.0, 20.0]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn of<E: Element>(values: &[E], features: usize, inner: usize, remove_mean: bool) -> Result<Self> {
        let sums = with_float!(E::DTYPE,
            F => Sums::of::<F>(cast_slice(values), features, inner, remove_mean),
            other => return Err(no_floats(other)),
        );
        Ok(Self { sums, remove_mean, working: None })
    }

    /// The moments of all ranks' samples. Collective.
    ///
    /// # Cost
    /// One all_gather of two numbers a feature. Where some rank has no samples, a split of the group: such a rank may have no backward pass.
    ///
    /// # Errors
    /// Those of the group.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::BatchMoments;
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx::Result<()> {
    /// let moments = BatchMoments::of(&[group.rank() as f32; 4], 1, 1, true)?.over(group)?;
    /// assert_eq!((moments.count(), moments.mean()), (8.0, &[0.5][..]));
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    #[track_caller]
    pub fn over(self, group: &ProcessGroup) -> Result<Self> {
        let Self { sums: mine, remove_mean, .. } = self;
        let features = mine.mean.len();
        let told = [&[mine.count][..], &mine.mean, &mine.squares].concat();
        let mut all = vec![0.0; told.len() * group.world_size()];
        group.all_gather(&told, &mut all)?;
        let mut sums = Sums { count: 0.0, mean: vec![0.0; features], squares: vec![0.0; features] };
        let mut everybody = true;
        for rank in all.chunks_exact(told.len()) {
            sums.add(rank[0], &rank[1..=features], &rank[features + 1..]);
            everybody &= rank[0] > 0.0;
        }
        let working = match everybody {
            true => Some(group.clone()),
            false => group.split((mine.count > 0.0).then_some(0), 0)?,
        };
        Ok(Self { sums, remove_mean, working })
    }

    /// The number of values a feature. Fewer than two have no variance.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::BatchMoments;
    ///
    /// assert_eq!(BatchMoments::of(&[1f32, 2.0, 3.0, 4.0], 2, 1, true)?.count(), 2.0);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn count(&self) -> f64 {
        self.sums.count
    }

    /// The mean of each feature.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::BatchMoments;
    ///
    /// assert_eq!(BatchMoments::of(&[1f32, 2.0], 1, 1, true)?.mean(), [1.5]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn mean(&self) -> &[f64] {
        &self.sums.mean
    }

    /// The variance of each feature without the bias of a sample, for running statistics.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::BatchMoments;
    ///
    /// assert_eq!(BatchMoments::of(&[1f32, 2.0], 1, 1, true)?.unbiased_variance(), [0.5]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn unbiased_variance(&self) -> Vec<f64> {
        self.sums.squares.iter().map(|squares| squares / (self.sums.count - 1.0)).collect()
    }

    /// What takes the mean away and divides by the deviation.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::BatchMoments;
    ///
    /// let samples = [1f64, 3.0];
    /// let moments = BatchMoments::of(&samples, 1, 1, true)?;
    /// assert_eq!(moments.standardise(0.0).forward(&samples, 1)?, [-1.0, 1.0]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn standardise(self, eps: f64) -> Standardise {
        let Self { sums: Sums { count, mean, squares }, remove_mean, working } = self;
        let inverse = squares.iter().map(|squares| (squares / count + eps).sqrt().recip()).collect();
        Standardise { mean, inverse, count, remove_mean, working }
    }
}

/// Takes the mean away and divides by the deviation, both of which depend on the input, on all ranks: a batch normalisation before its weight and bias.
#[derive(Debug, Clone)]
pub struct Standardise {
    mean: Vec<f64>,
    /// One divided by the standard deviation of each feature.
    inverse: Vec<f64>,
    count: f64,
    remove_mean: bool,
    /// The ranks that have samples, if this is one.
    working: Option<ProcessGroup>,
}

impl Standardise {
    /// The values of this rank's samples, standardised.
    ///
    /// # Errors
    /// [`Error::Config`] for elements that are no floats.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::BatchMoments;
    ///
    /// let samples = [1f32, 3.0];
    /// let standardise = BatchMoments::of(&samples, 1, 1, true)?.standardise(0.0);
    /// assert_eq!(standardise.forward(&samples, 1)?, [-1.0, 1.0]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn forward<E: Element>(&self, values: &[E], inner: usize) -> Result<Vec<E>> {
        let mut out = vec![E::zeroed(); values.len()];
        with_float!(E::DTYPE,
            F => self.forward_run::<F>(cast_slice(values), inner, cast_slice_mut(&mut out)),
            other => return Err(no_floats(other)),
        );
        Ok(out)
    }

    fn forward_run<F: Float>(&self, values: &[F], inner: usize, out: &mut [F]) {
        let outs = out.chunks_exact_mut(inner.max(1));
        for ((feature, run), out) in runs(values, self.mean.len(), inner).zip(outs) {
            let (mean, inverse) = (self.mean[feature], self.inverse[feature]);
            out.iter_mut().zip(run).for_each(|(out, x)| *out = F::from_f64((x.to_f64() - mean) * inverse));
        }
    }

    /// The gradient of the input, from that of the output g and the output y: (g − mean(g) − y mean(g y)) / deviation, with means over all
    /// ranks' samples. Collective, of the ranks that have samples.
    ///
    /// # Cost
    /// One all_reduce of two numbers a feature.
    ///
    /// # Errors
    /// Those of the group, and [`Error::Config`] for elements that are no floats.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::BatchMoments;
    ///
    /// let samples = [1f64, 2.0, 3.0];
    /// let standardise = BatchMoments::of(&samples, 1, 1, true)?.standardise(0.0);
    /// let y = standardise.forward(&samples, 1)?;
    /// let grads = standardise.backward(&y, &y, 1)?; // of half the sum of squares, which is always the same
    /// assert!(grads.iter().all(|grad| grad.abs() < 1e-12));
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    #[track_caller]
    pub fn backward<E: Element>(&self, grads: &[E], outs: &[E], inner: usize) -> Result<Vec<E>> {
        let mut found = vec![E::zeroed(); grads.len()];
        with_float!(E::DTYPE,
            F => {
                let (grads, outs) = (cast_slice::<E, F>(grads), cast_slice::<E, F>(outs));
                let mut sums = self.sums_of(grads, outs, inner);
                if let Some(group) = &self.working {
                    group.all_reduce(&mut sums, ReduceOp::Sum)?;
                }
                self.backward_run(grads, outs, inner, &sums, cast_slice_mut(&mut found));
            },
            other => return Err(no_floats(other)),
        );
        Ok(found)
    }

    /// The sums of gradients, and of their products with the outputs.
    fn sums_of<F: Float>(&self, grads: &[F], outs: &[F], inner: usize) -> Vec<f64> {
        let features = self.mean.len();
        let mut sums = vec![0.0; 2 * features];
        for ((feature, grads), (_, outs)) in runs(grads, features, inner).zip(runs(outs, features, inner)) {
            let with_out = grads.iter().zip(outs).map(|(grad, out)| grad.to_f64() * out.to_f64());
            sums[features + feature] += with_out.sum::<f64>();
            if self.remove_mean {
                sums[feature] += grads.iter().map(|grad| grad.to_f64()).sum::<f64>();
            }
        }
        sums
    }

    fn backward_run<F: Float>(&self, grads: &[F], outs: &[F], inner: usize, sums: &[f64], found: &mut [F]) {
        let features = self.mean.len();
        let both = runs(grads, features, inner).zip(runs(outs, features, inner));
        for (((feature, grads), (_, outs)), found) in both.zip(found.chunks_exact_mut(inner.max(1))) {
            let (mean, with_out) = (sums[feature] / self.count, sums[features + feature] / self.count);
            for ((found, grad), out) in found.iter_mut().zip(grads).zip(outs) {
                let wide = (grad.to_f64() - mean - out.to_f64() * with_out) * self.inverse[feature];
                *found = F::from_f64(wide);
            }
        }
    }
}

impl Sums {
    /// The moments of this rank's samples.
    fn of<F: Float>(values: &[F], features: usize, inner: usize, remove_mean: bool) -> Self {
        let count = (values.len() / features.max(1)) as f64;
        let (mut mean, mut squares) = (vec![0.0; features], vec![0.0; features]);
        if remove_mean && count > 0.0 {
            for (feature, run) in runs(values, features, inner) {
                mean[feature] += run.iter().map(|x| x.to_f64()).sum::<f64>();
            }
            mean.iter_mut().for_each(|sum| *sum /= count);
        }
        for (feature, run) in runs(values, features, inner) {
            squares[feature] += run.iter().map(|x| (x.to_f64() - mean[feature]).powi(2)).sum::<f64>();
        }
        Self { count, mean, squares }
    }

    /// Adds other samples.
    fn add(&mut self, count: f64, mean: &[f64], squares: &[f64]) {
        let all = self.count + count;
        if count == 0.0 {
            return;
        }
        for (at, (mean, squares)) in mean.iter().zip(squares).enumerate() {
            let apart = mean - self.mean[at];
            self.mean[at] += apart * (count / all);
            self.squares[at] += squares + apart * apart * (self.count * count / all);
        }
        self.count = all;
    }
}

/// The runs of elements of a tensor `[n, features, …]` that belong to one feature each, and which.
fn runs<F>(values: &[F], features: usize, inner: usize) -> impl Iterator<Item = (usize, &[F])> {
    // Without elements there are no runs, whatever their length.
    values.chunks_exact(inner.max(1)).enumerate().map(move |(at, run)| (at % features, run))
}

fn no_floats(dtype: DType) -> Error {
    Error::config(format!("batch normalisation of {dtype}; it needs floats"))
}
