//! The arithmetic of AdamW on slices.

use super::alike::{alike, no_floats};
use crate::Result;
use crate::element::{Float, with_float};
use phalanx::{DType, Element};

/// Rates and decay of AdamW. The defaults are those of PyTorch and of candle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWParams {
    /// Learning rate. Default: 0.001.
    pub lr: f64,
    /// The part of the mean of gradients that stays from step to step. Default: 0.9.
    pub beta1: f64,
    /// As `beta1`, of the mean of their squares. Default: 0.999.
    pub beta2: f64,
    /// Added to the root of the mean square. Default: 10⁻⁸.
    pub eps: f64,
    /// The part of each weight that is taken away in a step, times the learning rate. Default: 0.01.
    pub weight_decay: f64,
}

impl Default for AdamWParams {
    fn default() -> Self {
        Self { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }
    }
}

/// The factors of one step of AdamW.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct AdamWStep {
    /// Learning rate.
    pub learning: f64,
    /// The part of each weight that is taken away.
    pub decay: f64,
    /// The part of the first moment, the mean of gradients, that stays.
    pub first: f64,
    /// The part of the second moment, the mean of their squares, that stays.
    pub second: f64,
    /// The factor that makes up for first moments that began as zero.
    pub first_scale: f64,
    /// As `first_scale`, of second moments.
    pub second_scale: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// What gradients are multiplied by before all else: see [`scaled`](Self::scaled).
    pub grad_factor: f64,
}

impl AdamWParams {
    /// The factors of step number `step`, which counts from 1.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::AdamWParams;
    ///
    /// let step = AdamWParams::default().at_step(1);
    /// assert!((step.first_scale - 10.0).abs() < 1e-9); // 1 / (1 − 0.9)
    /// ```
    pub fn at_step(&self, step: u64) -> AdamWStep {
        let Self { lr, beta1, beta2, eps, weight_decay } = *self;
        // As candle does it: the exponent has 31 bits.
        let scale = |beta: f64| 1.0 / (1.0 - beta.powi(step as i32));
        AdamWStep {
            learning: lr,
            decay: lr * weight_decay,
            first: beta1,
            second: beta2,
            first_scale: scale(beta1),
            second_scale: scale(beta2),
            eps,
            grad_factor: 1.0,
        }
    }
}

impl AdamWStep {
    /// The same step, of gradients that are multiplied by `factor` in the same pass: as [`SgdStep::scaled`](crate::SgdStep::scaled).
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::AdamWParams;
    ///
    /// let (mut weights, mut first, mut second) = ([0f32], [0f32], [0f32]);
    /// let params = AdamWParams { beta1: 0.5, ..Default::default() };
    /// params.at_step(1).scaled(0.25).update(&mut weights, &mut first, &mut second, &[2.0])?;
    /// assert_eq!(first, [0.25]); // half of a quarter of 2
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self { grad_factor: factor, ..self }
    }

    /// Makes the step on a run of weights and their moments, in place: any part of the whole gives the same bits.
    ///
    /// It computes in the type of the weights, and rounds after each operation: to the last bit as `candle_nn::AdamW` does.
    ///
    /// # Shape
    /// Four slices of one length. Moments begin as zeros.
    ///
    /// # Errors
    /// [`phalanx::Error::Config`] for slices of different lengths, and for elements that are no floating-point numbers: nothing is changed then.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::AdamWParams;
    ///
    /// let (mut weights, mut first, mut second) = ([1f32, 1.0], [0f32; 2], [0f32; 2]);
    /// let params = AdamWParams { lr: 0.1, weight_decay: 0.0, ..Default::default() };
    /// params.at_step(1).update(&mut weights, &mut first, &mut second, &[5.0, -3.0])?;
    /// assert!((weights[0] - 0.9).abs() < 1e-6 && (weights[1] - 1.1).abs() < 1e-6); // the first step is of the size of lr
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn update<E: Element>(
        &self,
        weights: &mut [E],
        first: &mut [E],
        second: &mut [E],
        grads: &[E],
    ) -> Result<()> {
        use bytemuck::{cast_slice, cast_slice_mut};
        self.update_bytes(
            E::DTYPE,
            cast_slice_mut(weights),
            [cast_slice_mut(first), cast_slice_mut(second)],
            cast_slice(grads),
        )
    }

    /// As [`update`](Self::update), of elements whose type is known at run time.
    ///
    /// # Errors
    /// As of [`update`](Self::update).
    ///
    /// # Panics
    /// If slices are not aligned as such elements are.
    pub(crate) fn update_bytes(
        &self,
        dtype: DType,
        weights: &mut [u8],
        [first, second]: [&mut [u8]; 2],
        grads: &[u8],
    ) -> Result<()> {
        use bytemuck::{cast_slice, cast_slice_mut};
        alike("AdamW", dtype, weights.len(), &[first.len(), second.len(), grads.len()])?;
        with_float!(dtype,
            E => {
                let (weights, grads) = (cast_slice_mut::<u8, E>(weights), cast_slice::<u8, E>(grads));
                let moments = [cast_slice_mut::<u8, E>(first), cast_slice_mut::<u8, E>(second)];
                match self.grad_factor {
                    1.0 => run(self, weights, moments, grads, |grad| grad),
                    by => run(self, weights, moments, grads, |grad| E::towards_zero(grad.to_f64() * by)),
                }
            },
            other => return Err(no_floats("AdamW", other)),
        );
        Ok(())
    }

    /// Whether nothing is left of `eps` among numbers of a type, though it is not zero.
    pub(crate) fn is_eps_lost(dtype: DType, eps: f64) -> bool {
        dtype == DType::F16 && eps != 0.0 && half::f16::from_f64(eps) == half::f16::ZERO
    }
}

/// Each line is one of candle's operations with its rounding; a product there is `x * a + 0`, which makes zeros positive.
fn run<E: Float>(
    step: &AdamWStep,
    weights: &mut [E],
    [first, second]: [&mut [E]; 2],
    grads: &[E],
    scaled: impl Fn(E) -> E,
) {
    let of = E::from_f64;
    let (zero, one) = (of(0.0), of(1.0));
    let (keep_first, keep_second) = (of(step.first), of(step.second));
    let (new_first, new_second) = (of(1.0 - step.first), of(1.0 - step.second));
    let (first_scale, second_scale) = (of(step.first_scale), of(step.second_scale));
    let (keep, learning, eps) = (of(1.0 - step.decay), of(step.learning), of(step.eps));
    let moments = first.iter_mut().zip(second);
    for ((weight, (first, second)), &grad) in weights.iter_mut().zip(moments).zip(grads) {
        let grad = scaled(grad);
        *first = (*first * keep_first + zero) + (grad * new_first + zero);
        *second = (*second * keep_second + zero) + (grad * grad * new_second + zero);
        let slope = *first * first_scale + zero;
        let size = (*second * second_scale + zero).root() * one + eps;
        *weight = (*weight * keep + zero) - (slope / size * learning + zero);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eps_that_f16_has_not_is_told() {
        for (dtype, eps, lost) in [
            (DType::F16, 1e-8, true),
            (DType::F16, 1e-4, false),
            (DType::F16, 0.0, false),
            (DType::BF16, 1e-8, false),
            (DType::F32, 1e-8, false),
        ] {
            assert_eq!(AdamWStep::is_eps_lost(dtype, eps), lost, "{dtype}, {eps}");
        }
    }

    #[test]
    fn slices_that_do_not_fit_and_integers_are_refused() {
        let step = AdamWParams::default().at_step(1);
        let refused = step.update(&mut [1f32; 3], &mut [0.0; 3], &mut [0.0; 2], &[1.0; 3]).unwrap_err();
        assert!(
            refused.to_string().contains("AdamW was given a slice of 2 numbers, expected 3"),
            "{refused}"
        );
        let refused = step.update(&mut [1i32], &mut [0], &mut [0], &[1]).unwrap_err();
        assert!(refused.to_string().contains("AdamW can't optimise elements of i32"), "{refused}");
    }

    #[test]
    fn gradients_multiplied_on_the_way_are_those_multiplied_before() {
        let numbers = |by: f32| (0..9).map(|i| (i as f32 * by).sin()).collect::<Vec<_>>();
        let mut before = numbers(1.9);
        crate::element::shrink(DType::F32, bytemuck::cast_slice_mut(&mut before), 0.7);
        let [found, expected] = [(numbers(1.9), 0.7), (before, 1.0)].map(|(grads, by)| {
            let (mut weights, mut first, mut second) = (numbers(0.7), numbers(1.1), vec![0.5; 9]);
            let step = AdamWParams::default().at_step(3).scaled(by);
            step.update(&mut weights, &mut first, &mut second, &grads).unwrap();
            (weights, first, second)
        });
        assert_eq!(found, expected);
    }

    /// By the formulas of Loshchilov and Hutter, in f64.
    #[test]
    fn the_numbers_are_those_of_the_paper() {
        let params = AdamWParams { lr: 0.1, weight_decay: 0.05, ..Default::default() };
        let (mut weight, mut first, mut second) = ([2f64], [0f64], [0f64]);
        let (mut w, mut m, mut v) = (2f64, 0f64, 0f64);
        for step in 1..=10 {
            let grad = (f64::from(step) * 1.3).sin();
            params.at_step(step as u64).update(&mut weight, &mut first, &mut second, &[grad]).unwrap();
            (m, v) = (0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad * grad);
            let (slope, size) = (m / (1.0 - 0.9f64.powi(step)), v / (1.0 - 0.999f64.powi(step)));
            w -= 0.1 * (0.05 * w + slope / (size.sqrt() + 1e-8));
            assert!((weight[0] - w).abs() < 1e-12, "step {step}: {} and {w}", weight[0]);
        }
    }
}
