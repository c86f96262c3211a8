//! Gradients that are too large.

use crate::{Result, Tensor};

/// How much shorter gradients become than asked for: more than sums of squares in f64 are wrong by, and less than f32 shows.
const MARGIN: f64 = 1e-9;

/// Scales gradients, in place, so that the norm of all of them together is `max_norm` at most, and returns what it was.
///
/// That holds after rounding, too: scaled gradients are rounded towards zero. So of 32 bits their norm is about 10⁻⁷ of itself below `max_norm`,
/// of f16 about 0.05 %, of bf16 about 0.4 %. To clip them again changes nothing.
///
/// Not collective: give it reduced gradients, as a [`Reducer`](crate::Reducer) returns them, and it does the same on all ranks, to the last
/// bit. A norm that is infinite or not a number is returned, and nothing is scaled. A `max_norm` of infinity scales nothing, one of zero makes all zero.
///
/// # Cost
/// One pass over the gradients, two if they are scaled.
///
/// # Errors
/// [`phalanx::Error::Config`] for a `max_norm` that is negative or not a number: nothing is scaled then. Those of the library.
///
/// # Examples
/// ```
/// use phalanx_train::{Array, clip_grad_norm, sum_of_squares};
///
/// let mut grads = [Some(Array::from(vec![3f32])), None, Some(Array::from(vec![4f32]))];
/// assert_eq!(clip_grad_norm(&mut grads, 10.0)?, 5.0); // nothing to do
/// assert_eq!(clip_grad_norm(&mut grads, 2.5)?, 5.0);
/// let norm = sum_of_squares(&grads)?.sqrt();
/// assert!(norm <= 2.5 && norm > 2.499999);
/// # Ok::<(), phalanx_train::Error>(())
/// ```
pub fn clip_grad_norm<T: Tensor>(grads: &mut [Option<T>], max_norm: f64) -> Result<f64> {
    let norm = sum_of_squares(grads)?.sqrt();
    shorten(grads, norm, max_norm)?;
    Ok(norm)
}

/// The square of the norm of all gradients together: where each rank has a part of them, the sum over the ranks is that of the whole.
///
/// # Errors
/// Those of the library.
///
/// # Examples
/// ```
/// use phalanx_train::{Array, sum_of_squares};
///
/// let grads = [Some(Array::from(vec![3f32])), None, Some(Array::from(vec![4f32]))];
/// assert_eq!(sum_of_squares(&grads)?, 25.0);
/// # Ok::<(), phalanx_train::Error>(())
/// ```
pub fn sum_of_squares<T: Tensor>(grads: &[Option<T>]) -> Result<f64> {
    grads.iter().flatten().try_fold(0.0, |sum, grad| Ok(sum + grad.sum_of_squares()?))
}

/// Scales gradients that are all, or a part of all, of such as have this norm together, so that it is `max_norm` at most.
///
/// # Errors
/// As of [`clip_grad_norm`].
///
/// # Examples
/// ```
/// use phalanx_train::{Array, shorten, sum_of_squares};
///
/// // This rank's part of gradients whose norm, over all ranks, is 10.
/// let mut grads = [Some(Array::from(vec![3f32, 4.0]))];
/// shorten(&mut grads, 10.0, 1.0)?;
/// assert!((sum_of_squares(&grads)?.sqrt() - 0.5).abs() < 1e-6);
/// # Ok::<(), phalanx_train::Error>(())
/// ```
pub fn shorten<T: Tensor>(grads: &mut [Option<T>], norm: f64, max_norm: f64) -> Result<()> {
    let factor = clip_factor(norm, max_norm)?;
    if factor != 1.0 {
        grads.iter_mut().flatten().try_for_each(|grad| grad.shrink(factor))?;
    }
    Ok(())
}

/// What gradients of this norm are to be multiplied by, so that it is `max_norm` at most: 1 if it is, or if it is infinite or not a number. For
/// [`Sgd::step_scaled`](crate::Sgd::step_scaled) and [`AdamW::step_scaled`](crate::AdamW::step_scaled), which do it in the pass in which they use them.
///
/// # Errors
/// [`phalanx::Error::Config`] for a `max_norm` that is negative or not a number.
///
/// # Examples
/// ```
/// use phalanx_train::clip_factor;
///
/// assert_eq!(clip_factor(0.5, 1.0)?, 1.0);
/// assert!((clip_factor(4.0, 1.0)? - 0.25).abs() < 1e-8); // a little less: products are rounded
/// # Ok::<(), phalanx_train::Error>(())
/// ```
pub fn clip_factor(norm: f64, max_norm: f64) -> Result<f64> {
    if max_norm.is_nan() || max_norm < 0.0 {
        let what = format!("max_norm is {max_norm}, expected at least 0");
        return Err(phalanx::Error::config(what).into());
    }
    Ok(if norm.is_finite() && norm > max_norm { max_norm / norm * (1.0 - MARGIN) } else { 1.0 })
}
