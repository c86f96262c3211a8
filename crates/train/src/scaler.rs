//! Losses that are large enough for gradients of 16 bits.

use crate::{Error, Result, Tensor};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Steps without overflow after which the scale is doubled.
const PATIENCE: u32 = 2000;

/// Scales there can be. A backward pass in f16 begins with the scale, and f16 has fewer digits for smaller numbers than the least; the
/// largest is the last whose inverse has all digits in f32.
const SCALES: RangeInclusive<f64> = 1.0 / (1 << 14) as f64..=(1u128 << 126) as f64;

/// Says by what losses are multiplied, so that small gradients are not lost in 16 bits, and which steps to skip, for which that was too much.
///
/// An overflow on one rank is one in the reduced gradients of all: so all ranks skip the same steps, and have the same
/// scale, without asking each other.
///
/// # Examples
/// ```
/// use phalanx_train::{Array, LossScaler};
///
/// let mut scaler = LossScaler::new(1024.0)?;
/// let mut grads = [Some(Array::from(vec![2048f32]))]; // of a loss that was multiplied by `scaler.factor()`
/// assert!(scaler.unscale(&mut grads)?);
/// assert_eq!(grads, [Some(Array::from(vec![2f32]))]);
/// assert!(!scaler.unscale(&mut [Some(Array::from(vec![f32::INFINITY]))])?);
/// assert_eq!(scaler.factor(), 512.0);
/// # Ok::<(), phalanx_train::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Saved")]
pub struct LossScaler {
    /// The scale, one of [`SCALES`].
    scale: f64,
    /// Steps since the last overflow.
    good: u32,
}

impl LossScaler {
    /// Begins with this scale: 65536 is usual, and 1 for bf16, whose range is that of f32.
    ///
    /// # Errors
    /// [`phalanx::Error::Config`] for a scale below 2⁻¹⁴ or above 2¹²⁶, and for what is not a number.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::LossScaler;
    ///
    /// assert_eq!(LossScaler::new(65536.0)?.factor(), 65536.0);
    /// assert!(LossScaler::new(0.0).is_err());
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn new(scale: f64) -> Result<Self> {
        if SCALES.contains(&scale) { Ok(Self { scale, good: 0 }) } else { Err(refused(scale)) }
    }

    /// The factor by which losses are multiplied now: in f32, or the scaled loss overflows itself.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_train::LossScaler;
    /// let scaler = LossScaler::new(1024.0)?;
    /// let loss = 0.5f32 * scaler.factor() as f32;
    /// assert_eq!(loss, 512.0);
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn factor(&self) -> f64 {
        self.scale
    }

    /// Makes reduced gradients those of the loss that was scaled. False if one of them is infinite or not a number: skip the step; the next
    /// loss is scaled by half as much. After 2000 steps without that, by twice as much.
    ///
    /// The scale stays between 2⁻¹⁴ and 2¹²⁶. Overflows at the least are not for the scale to mend: each is a warning of `tracing`.
    ///
    /// Not collective; the same on all ranks if the gradients are.
    ///
    /// # Errors
    /// Those of the library.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_train::{Array, LossScaler};
    /// let mut scaler = LossScaler::new(1024.0)?;
    /// let mut grads = [Some(Array::from(vec![2048f32]))]; // of the loss that was scaled
    /// assert!(scaler.unscale(&mut grads)?);
    /// assert_eq!(grads, [Some(Array::from(vec![2f32]))]);
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn unscale<T: Tensor>(&mut self, grads: &mut [Option<T>]) -> Result<bool> {
        let finite = self.divide(grads)?;
        Ok(self.settle(finite))
    }

    /// The first half of [`unscale`](Self::unscale), of gradients of which this rank has a part: divides them by the scale, and says whether they
    /// are all finite.
    ///
    /// # Errors
    /// Those of the library.
    ///
    /// # Examples
    /// ```
    /// use phalanx::ReduceOp;
    /// # use phalanx_train::{Array, LossScaler};
    ///
    /// # fn on(group: &phalanx::ProcessGroup) -> phalanx_train::Result<()> {
    /// let mut scaler = LossScaler::new(1024.0)?;
    /// let part = [2048f32, f32::INFINITY][group.rank()]; // each rank has a part of the gradients
    /// let mut finite = [u8::from(scaler.divide(&mut [Some(Array::from(vec![part]))])?)];
    /// group.all_reduce(&mut finite, ReduceOp::Min)?;
    /// assert!(!scaler.settle(finite[0] == 1)); // all ranks skip the step
    /// # Ok(()) }
    /// # std::thread::scope(|s| for group in phalanx::threads(2) { s.spawn(move || on(&group).unwrap()); });
    /// ```
    pub fn divide<T: Tensor>(&self, grads: &mut [Option<T>]) -> Result<bool> {
        if !are_finite(grads)? {
            return Ok(false);
        }
        grads.iter_mut().flatten().try_for_each(|grad| grad.multiply(1.0 / self.scale))?;
        // A scale below one makes them larger.
        Ok(self.scale >= 1.0 || are_finite(grads)?)
    }

    /// The second half of [`unscale`](Self::unscale): `finite` says whether all ranks' parts are. Returns it.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_train::LossScaler;
    /// let mut scaler = LossScaler::new(1024.0)?;
    /// assert!(scaler.settle(true));
    /// assert!(!scaler.settle(false)); // some rank's gradients are infinite
    /// assert_eq!(scaler.factor(), 512.0);
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn settle(&mut self, finite: bool) -> bool {
        if !finite {
            if self.scale > *SCALES.start() {
                tracing::info!(scale = self.scale, "gradients overflowed: the step is skipped");
            } else {
                tracing::warn!(
                    scale = self.scale,
                    "gradients are infinite or not numbers at the least scale: the step is skipped, and no scale will mend it"
                );
            }
            (self.scale, self.good) = ((self.scale / 2.0).max(*SCALES.start()), 0);
            return false;
        }
        self.good += 1;
        if self.good >= PATIENCE {
            (self.scale, self.good) = ((self.scale * 2.0).min(*SCALES.end()), 0);
        }
        true
    }
}

/// The scaler's state in a checkpoint. Earlier versions let the scale fall to zero.
#[derive(Deserialize)]
struct Saved {
    scale: f64,
    good: u32,
}

impl TryFrom<Saved> for LossScaler {
    type Error = Error;

    fn try_from(Saved { scale, good }: Saved) -> Result<Self> {
        if scale.is_nan() || scale < 0.0 {
            return Err(refused(scale));
        }
        Ok(Self { scale: scale.clamp(*SCALES.start(), *SCALES.end()), good: good.min(PATIENCE - 1) })
    }
}

fn refused(scale: f64) -> Error {
    let what =
        format!("losses can't be multiplied by {scale}: give LossScaler a scale between 2^-14 and 2^126");
    phalanx::Error::config(what).into()
}

/// Whether no gradient has an infinity, or what is not a number.
///
/// # Errors
/// Those of the library.
///
/// # Examples
/// ```
/// use phalanx_train::{Array, are_finite};
///
/// assert!(are_finite(&[Some(Array::from(vec![1f32])), None])?);
/// assert!(!are_finite(&[Some(Array::from(vec![f32::NAN]))])?);
/// # Ok::<(), phalanx_train::Error>(())
/// ```
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
    use half::f16;
    use proptest::prelude::*;

    fn scaler(scale: f64) -> LossScaler {
        LossScaler::new(scale).unwrap()
    }

    #[test]
    fn the_scale_falls_with_an_overflow_and_rises_with_patience() {
        let mut scaler = scaler(8.0);
        let mut step =
            |x: f32| scaler.unscale(&mut [Some(Array::from(vec![x]))]).map(|_| scaler.factor()).unwrap();
        assert_eq!(step(f32::NAN), 4.0);
        for _ in 1..PATIENCE {
            assert_eq!(step(1.0), 4.0);
        }
        assert_eq!(step(1.0), 8.0);
        assert_eq!(step(1.0), 8.0);
    }

    #[test]
    fn scales_that_are_none_are_refused() {
        for bad in [0.0, -0.0, -1.0, f64::NAN, f64::INFINITY, -f64::INFINITY, f64::MIN_POSITIVE, 6e-5, 1e38] {
            let told = LossScaler::new(bad).unwrap_err().to_string();
            assert!(told.contains(&format!("multiplied by {bad}: give LossScaler a scale")), "{told}");
        }
        for good in [*SCALES.start(), 1.0, 65536.0, *SCALES.end()] {
            assert_eq!(scaler(good).factor(), good);
        }
    }

    #[test]
    fn a_thousand_overflows_leave_a_scale_that_finite_gradients_survive() {
        let mut scaler = scaler(65536.0);
        for _ in 0..1100 {
            assert!(!scaler.settle(false));
        }
        let mut grads = [Some(Array::from(vec![1f32, -0.5]))];
        assert!(scaler.unscale(&mut grads).unwrap());
        assert_eq!(grads, [Some(Array::from(vec![16384f32, -8192.0]))]);
    }

    #[test]
    fn gradients_that_only_unscaled_overflow_are_an_overflow() {
        let mut scaler = scaler(0.5);
        assert!(!scaler.unscale(&mut [Some(Array::from(vec![f16::from_f32(60000.0)]))]).unwrap());
        assert_eq!(scaler.factor(), 0.25);
    }

    #[test]
    fn checkpoints_of_scales_that_had_fallen_too_far_are_read() {
        let read =
            |scale: &str| serde_json::from_str(&format!(r#"{{"scale": {scale}, "good": 4000000000}}"#));
        for (saved, expected) in
            [("0.0", *SCALES.start()), ("1e-300", *SCALES.start()), ("1e300", *SCALES.end())]
        {
            let mut found: LossScaler = read(saved).unwrap();
            assert_eq!(found.factor(), expected);
            assert!(found.settle(true) && found.factor() == (expected * 2.0).min(*SCALES.end()));
        }
        assert!(read("-1.0").is_err());
    }

    proptest! {
        #[test]
        fn whatever_happens_a_step_that_is_taken_has_finite_gradients(
            start in -14.0..=126.0f64,
            steps in prop::collection::vec((prop::num::f32::ANY, 0..4000u32), 1..100),
        ) {
            let mut scaler = scaler(start.exp2());
            for (value, quiet) in steps {
                let mut grads = [Some(Array::from(vec![value, 1.0]))];
                let before = scaler.factor();
                let taken = scaler.unscale(&mut grads).unwrap();
                prop_assert!(!taken || are_finite(&grads).unwrap(), "{value} at {before}");
                prop_assert!(taken || !value.is_finite() || before < 1.0, "{value} at {before}");
                for _ in 0..quiet {
                    scaler.settle(true);
                }
                prop_assert!(SCALES.contains(&scaler.factor()), "{before}, then {}", scaler.factor());
            }
        }
    }
}
