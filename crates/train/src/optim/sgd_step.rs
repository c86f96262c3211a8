//! The arithmetic of gradient descent on slices.

use super::alike::{alike, no_floats};
use crate::Result;
use crate::element::{Float, with_float};
use phalanx::{DType, Element};

/// Rates of gradient descent, with PyTorch's names and defaults.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdParams {
    /// Learning rate. Default: 0.001.
    pub lr: f64,
    /// The part of the velocity that stays from step to step. Default: 0, which keeps none.
    pub momentum: f64,
    /// The part of a gradient that does not go into the velocity, from the second step on. Default: 0.
    pub dampening: f64,
    /// The part of each weight that is added to its gradient. Default: 0.
    pub weight_decay: f64,
    /// Nesterov's momentum: the step looks ahead by the velocity. Default: false.
    pub nesterov: bool,
}

impl Default for SgdParams {
    fn default() -> Self {
        Self { lr: 1e-3, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false }
    }
}

/// The factors of one step of gradient descent.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct SgdStep {
    /// The rates.
    pub params: SgdParams,
    /// Whether the velocity begins with this step's gradient, whole: it is the first of the weight.
    pub is_first: bool,
    /// What gradients are multiplied by before all else: see [`scaled`](Self::scaled).
    pub grad_factor: f64,
}

impl SgdParams {
    /// The factors of a step, which is the first of a weight or not.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::SgdParams;
    ///
    /// assert!(SgdParams::default().at_step(true).is_first);
    /// ```
    pub fn at_step(&self, is_first: bool) -> SgdStep {
        SgdStep { params: *self, is_first, grad_factor: 1.0 }
    }

    /// Whether there is a velocity to keep.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::SgdParams;
    ///
    /// assert!(!SgdParams::default().has_velocity());
    /// assert!(SgdParams { momentum: 0.9, ..Default::default() }.has_velocity());
    /// ```
    pub fn has_velocity(&self) -> bool {
        self.momentum != 0.0
    }
}

impl SgdStep {
    /// The same step, of gradients that are multiplied by `factor` in the same pass, each product rounded towards zero: none is larger than it is exactly, so a norm
    /// that was to be [clipped](crate::clip_factor) is.
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::SgdParams;
    ///
    /// let mut weights = [0f32];
    /// let step = SgdParams { lr: 1.0, ..Default::default() }.at_step(true).scaled(0.25);
    /// step.update(&mut weights, &mut [], &[2.0])?;
    /// assert_eq!(weights, [-0.5]);
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self { grad_factor: factor, ..self }
    }

    /// Makes the step on a run of weights and their velocity, in place: any part of the whole gives the same bits.
    ///
    /// The formula is that of PyTorch's `SGD`, with each product, sum and difference rounded, in the type of the weights: `g += weight_decay * w`;
    /// `v = momentum * v + (1 - dampening) * g`, and in a weight's first step `v = g`; then `g = v`, or with Nesterov's momentum `g += momentum * v`; and
    /// `w -= lr * g`. Without momentum and decay the result is that of `candle_nn::SGD` to the last bit. PyTorch's own kernels fuse products and sums on
    /// some processors: they differ then in the last bits.
    ///
    /// # Shape
    /// Three slices of one length; `velocity` is empty where [`has_velocity`](SgdParams::has_velocity) says no.
    ///
    /// # Errors
    /// As of [`AdamWStep::update`](crate::AdamWStep::update).
    ///
    /// # Examples
    /// ```
    /// use phalanx_train::SgdParams;
    ///
    /// let params = SgdParams { lr: 0.5, momentum: 0.5, ..Default::default() };
    /// let (mut weights, mut velocity) = ([0f32], [0f32]);
    /// params.at_step(true).update(&mut weights, &mut velocity, &[2.0])?; // by 2
    /// params.at_step(false).update(&mut weights, &mut velocity, &[2.0])?; // by 2 and half of 2
    /// assert_eq!((weights, velocity), ([-2.5], [3.0]));
    /// # Ok::<(), phalanx_train::Error>(())
    /// ```
    pub fn update<E: Element>(&self, weights: &mut [E], velocity: &mut [E], grads: &[E]) -> Result<()> {
        use bytemuck::{cast_slice, cast_slice_mut};
        self.update_bytes(E::DTYPE, cast_slice_mut(weights), cast_slice_mut(velocity), cast_slice(grads))
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
        velocity: &mut [u8],
        grads: &[u8],
    ) -> Result<()> {
        use bytemuck::{cast_slice, cast_slice_mut};
        let all = if self.params.has_velocity() { weights.len() } else { 0 };
        alike("SGD", dtype, weights.len(), &[grads.len()])?;
        alike("SGD", dtype, all, &[velocity.len()])?;
        with_float!(dtype,
            E => {
                // None has no place that would be aligned.
                let velocity: &mut [E] = if all == 0 { &mut [] } else { cast_slice_mut(velocity) };
                let (weights, grads) = (cast_slice_mut::<u8, E>(weights), cast_slice::<u8, E>(grads));
                match self.grad_factor {
                    1.0 => run(self, weights, velocity, grads, |grad| grad),
                    by => run(self, weights, velocity, grads, |grad| E::towards_zero(grad.to_f64() * by)),
                }
            },
            other => return Err(no_floats("SGD", other)),
        );
        Ok(())
    }
}

/// A product is `x * a + 0`, as candle's is, which makes zeros positive.
fn run<E: Float>(
    step: &SgdStep,
    weights: &mut [E],
    velocity: &mut [E],
    grads: &[E],
    scaled: impl Fn(E) -> E,
) {
    let SgdStep { params: SgdParams { lr, momentum, dampening, weight_decay, nesterov }, is_first, .. } =
        *step;
    let zero = E::from_f64(0.0);
    let (rate, keep, new) = (E::from_f64(lr), E::from_f64(momentum), E::from_f64(1.0 - dampening));
    let decay = E::from_f64(weight_decay);
    let decayed = |weight: E, grad: E| {
        if weight_decay == 0.0 { grad } else { grad + (weight * decay + zero) }
    };
    if velocity.is_empty() {
        for (weight, &grad) in weights.iter_mut().zip(grads) {
            *weight = *weight - (decayed(*weight, scaled(grad)) * rate + zero);
        }
        return;
    }
    for ((weight, velocity), &grad) in weights.iter_mut().zip(velocity).zip(grads) {
        let grad = decayed(*weight, scaled(grad));
        *velocity = match is_first {
            true => grad,
            false if dampening == 0.0 => (*velocity * keep + zero) + grad,
            false => (*velocity * keep + zero) + (grad * new + zero),
        };
        let change = if nesterov { grad + (*velocity * keep + zero) } else { *velocity };
        *weight = *weight - (change * rate + zero);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    /// PyTorch's documentation of `torch.optim.SGD`, line by line, in f64.
    fn by_hand(params: &SgdParams, step: usize, w: &mut f64, v: &mut f64, mut g: f64) {
        g += params.weight_decay * *w;
        if params.momentum != 0.0 {
            *v = if step > 1 { params.momentum * *v + (1.0 - params.dampening) * g } else { g };
            g = if params.nesterov { g + params.momentum * *v } else { *v };
        }
        *w -= params.lr * g;
    }

    #[test]
    fn the_numbers_are_those_of_pytorchs_formula() {
        let plain = SgdParams { lr: 0.1, ..Default::default() };
        let heavy = SgdParams { momentum: 0.9, weight_decay: 0.01, ..plain };
        for params in [
            plain,
            SgdParams { weight_decay: 0.1, ..plain },
            heavy,
            SgdParams { dampening: 0.3, ..heavy },
            SgdParams { nesterov: true, ..heavy },
        ] {
            let (mut w, mut v) = (1.5, 0.0);
            let (mut weights, mut velocity) = (vec![1.5f64; 3], vec![0f64; 3]);
            velocity.truncate(if params.has_velocity() { 3 } else { 0 });
            for step in 1..=10 {
                let grad = (step as f64 * 0.7).cos();
                params.at_step(step == 1).update(&mut weights, &mut velocity, &[grad; 3]).unwrap();
                by_hand(&params, step, &mut w, &mut v, grad);
                assert!(weights.iter().all(|weight| (weight - w).abs() < 1e-14), "{params:?}, step {step}");
            }
        }
    }

    #[test]
    fn a_part_of_the_whole_gives_the_same_bits() {
        let params = SgdParams { lr: 0.3, momentum: 0.9, dampening: 0.1, weight_decay: 0.2, nesterov: true };
        let numbers = |by: f32| (0..9).map(|i| bf16::from_f32((i as f32 * by).sin())).collect::<Vec<_>>();
        let (weights, velocity, grads) = (numbers(0.7), numbers(1.1), numbers(1.9));
        let (mut whole, mut v) = (weights.clone(), velocity.clone());
        params.at_step(false).update(&mut whole, &mut v, &grads).unwrap();
        let (mut parts, mut v) = (weights, velocity);
        for range in [0..4, 4..9] {
            let part = range.clone();
            params
                .at_step(false)
                .update(&mut parts[part.clone()], &mut v[part.clone()], &grads[part])
                .unwrap();
        }
        assert_eq!(parts, whole);
    }

    #[test]
    fn gradients_multiplied_on_the_way_are_those_multiplied_before() {
        let params = SgdParams { lr: 0.3, momentum: 0.9, weight_decay: 0.2, ..Default::default() };
        let numbers = |by: f32| (0..9).map(|i| (i as f32 * by).sin()).collect::<Vec<_>>();
        let mut before = numbers(1.9);
        crate::element::shrink(DType::F32, bytemuck::cast_slice_mut(&mut before), 0.7);
        let [found, expected] = [(numbers(1.9), 0.7), (before, 1.0)].map(|(grads, by)| {
            let (mut weights, mut velocity) = (numbers(0.7), numbers(1.1));
            params.at_step(false).scaled(by).update(&mut weights, &mut velocity, &grads).unwrap();
            (weights, velocity)
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn a_velocity_that_is_not_wanted_is_refused() {
        let refused = SgdParams::default().at_step(true).update(&mut [1f32], &mut [0.0], &[1.0]).unwrap_err();
        assert!(refused.to_string().contains("SGD was given a slice of 1 numbers, expected 0"), "{refused}");
    }
}
