//! Gradients of half the width.

use crate::{Bucket, CommHook, Traffic};
use half::{bf16, f16};
use phalanx::{Element, ProcessGroup, ReduceOp, Result};
use std::fmt;

/// Sends gradients as f16 or bf16, which halves the bytes.
///
/// What rounding takes away is not fed back: it is as often up as down. bf16 has the range of f32, and 8 bits of precision; f16 has 11 bits, but
/// what is beyond 65,504 becomes infinite, and what is below 6e-8 zero: scale the loss.
pub struct Cast<T> {
    half: Vec<T>,
    traffic: Traffic,
}

impl<T> fmt::Debug for Cast<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cast").field("traffic", &self.traffic).finish_non_exhaustive()
    }
}

impl Cast<f16> {
    /// Sends f16.
    ///
    /// # Examples
    /// ```
    /// use phalanx_compress::{Bucket, Cast, CommHook};
    ///
    /// let sums = phalanx::on_threads(2, |group| {
    ///     let mut gradients = [0.5 + group.rank() as f32, 1.0];
    ///     let mut hook = Cast::f16();
    ///     hook.reduce(Bucket::flat(0, &mut gradients), &group)?;
    ///     assert_eq!(hook.traffic().ratio(), 2.0);
    ///     Ok(gradients)
    /// })?;
    /// assert_eq!(sums, [[2.0, 2.0]; 2]);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn f16() -> Self {
        Self { half: Vec::new(), traffic: Traffic::default() }
    }
}

impl Cast<bf16> {
    /// Sends bf16.
    ///
    /// # Examples
    /// ```
    /// use phalanx_compress::{Bucket, Cast, CommHook};
    ///
    /// let sums = phalanx::on_threads(2, |group| {
    ///     let mut gradients = [1e38, 1.0 + 1.0 / 1024.0]; // the range is that of f32, the precision is not
    ///     Cast::bf16().reduce(Bucket::flat(0, &mut gradients), &group)?;
    ///     Ok(gradients)
    /// })?;
    /// assert!(sums[0][0] > 1.9e38 && sums[0][1] == 2.0);
    /// # Ok::<(), phalanx::Error>(())
    /// ```
    pub fn bf16() -> Self {
        Self { half: Vec::new(), traffic: Traffic::default() }
    }
}

impl<T: Element + From32> CommHook for Cast<T> {
    fn reduce(&mut self, bucket: Bucket<'_>, group: &ProcessGroup) -> Result<()> {
        self.traffic.expect(bucket.gradients.len(), group);
        self.traffic.all_reduce(size_of::<T>() * bucket.gradients.len(), group);
        self.half.clear();
        self.half.extend(bucket.gradients.iter().map(|&gradient| T::narrow(gradient)));
        group.all_reduce(&mut self.half, ReduceOp::Sum)?;
        bucket.gradients.iter_mut().zip(&self.half).for_each(|(gradient, half)| *gradient = half.widen());
        Ok(())
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }
}

/// The types of half the width of f32.
pub trait From32: sealed::Sealed + Copy {
    /// The nearest.
    fn narrow(wide: f32) -> Self;
    /// Converts the number to `f32`, exactly.
    fn widen(self) -> f32;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

impl From32 for f16 {
    fn narrow(wide: f32) -> Self {
        Self::from_f32(wide)
    }

    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl From32 for bf16 {
    fn narrow(wide: f32) -> Self {
        Self::from_f32(wide)
    }

    fn widen(self) -> f32 {
        self.to_f32()
    }
}
