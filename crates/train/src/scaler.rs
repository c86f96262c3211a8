//! Losses that are large enough for gradients of 16 bits.

use crate::{Result, Tensor};
use serde::{Deserialize, Serialize};

/// Steps without overflow after which the scale is doubled.
const PATIENCE: u32 = 2000;

/// Says by what losses are multiplied, so that small gradients are not lost in 16 bits, and which steps to skip, for which that was too much.
///
/// An overflow on one rank is one in the reduced gradients of all: so all ranks skip the same steps, and have the same
/// scale, without asking each other.
///
/// # Examples
/// ```
/// use phalanx_train::{Array, LossScaler};
///
/// let mut scaler = LossScaler::new(1024.0);
/// let mut grads = [Some(Array::from(vec![2048f32]))]; // of a loss that was multiplied by `scaler.factor()`
/// assert!(scaler.unscale(&mut grads)?);
/// assert_eq!(grads, [Some(Array::from(vec![2f32]))]);
/// assert!(!scaler.unscale(&mut [Some(Array::from(vec![f32::INFINITY]))])?);
/// assert_eq!(scaler.factor(), 512.0);
/// # Ok::<(), phalanx_train::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LossScaler {
    scale: f64,
    /// Steps since the last overflow.
    good: u32,
}

impl LossScaler {
    /// Begins with this scale: 65536 is usual, and 1 for bf16, whose range is that of f32.
    pub fn new(scale: f64) -> Self {
        Self { scale, good: 0 }
    }

    /// By what losses are multiplied now: in f32, or the scaled loss overflows itself.
    pub fn factor(&self) -> f64 {
        self.scale
    }

    /// Makes reduced gradients those of the loss that was scaled. False if one of them is infinite or not a number: skip the step; the next
    /// loss is scaled by half as much. After 2000 steps without that, by twice as much.
    ///
    /// Not collective; the same on all ranks if the gradients are.
    ///
    /// # Errors
    /// Those of the library.
    pub fn unscale<T: Tensor>(&mut self, grads: &mut [Option<T>]) -> Result<bool> {
        let finite = are_finite(grads)?;
        self.settle(grads, finite)
    }

    /// As [`unscale`](Self::unscale), of gradients of which this rank has a part: `finite` says whether those of all ranks
    /// [are](are_finite).
    ///
    /// # Errors
    /// Those of the library.
    pub fn settle<T: Tensor>(&mut self, grads: &mut [Option<T>], finite: bool) -> Result<bool> {
        if !finite {
            tracing::info!(scale = self.scale, "gradients overflowed: the step is skipped");
            (self.scale, self.good) = (self.scale / 2.0, 0);
            return Ok(false);
        }
        grads.iter_mut().flatten().try_for_each(|grad| grad.multiply(1.0 / self.scale))?;
        self.good += 1;
        if self.good == PATIENCE {
            (self.scale, self.good) = (self.scale * 2.0, 0);
        }
        Ok(true)
    }
}

/// Whether no gradient has an infinity, or what is not a number.
///
/// # Errors
/// Those of the library.
pub fn are_finite<T: Tensor>(grads: &[Option<T>]) -> Result<bool> {
    for grad in grads.iter().flatten() {
        if !grad.is_finite()? {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Array;

    #[test]
    fn the_scale_falls_with_an_overflow_and_rises_with_patience() {
        let mut scaler = LossScaler::new(8.0);
        let mut step =
            |x: f32| scaler.unscale(&mut [Some(Array::from(vec![x]))]).map(|_| scaler.factor()).unwrap();
        assert_eq!(step(f32::NAN), 4.0);
        for _ in 1..PATIENCE {
            assert_eq!(step(1.0), 4.0);
        }
        assert_eq!(step(1.0), 8.0);
        assert_eq!(step(1.0), 8.0);
    }
}
