//! Gradients that are too large.

use crate::{Result, Tensor};

/// Scales gradients, in place, so that the norm of all of them together is `max_norm` at most, and returns what it was.
///
/// Not collective: give it reduced gradients, as a [`Reducer`](crate::Reducer) returns them, and it does the same on all ranks, to the last
/// bit. A norm that is infinite or not a number is returned, and nothing is scaled.
///
/// # Cost
/// One pass over the gradients, two if they are scaled.
///
/// # Errors
/// Those of the library.
///
/// # Examples
/// ```
/// use phalanx_train::{Array, clip_grad_norm};
///
/// let mut grads = [Some(Array::from(vec![3f32])), None, Some(Array::from(vec![4f32]))];
/// assert_eq!(clip_grad_norm(&mut grads, 10.0)?, 5.0);
/// assert_eq!(clip_grad_norm(&mut grads, 2.5)?, 5.0);
/// assert_eq!(grads, [Some(Array::from(vec![1.5f32])), None, Some(Array::from(vec![2f32]))]);
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
pub fn sum_of_squares<T: Tensor>(grads: &[Option<T>]) -> Result<f64> {
    grads.iter().flatten().try_fold(0.0, |sum, grad| Ok(sum + grad.sum_of_squares()?))
}

/// Scales gradients that are all, or a part of all, of such as have this norm together, so that it is `max_norm` at most.
///
/// # Errors
/// Those of the library.
pub fn shorten<T: Tensor>(grads: &mut [Option<T>], norm: f64, max_norm: f64) -> Result<()> {
    if norm.is_finite() && norm > max_norm {
        grads.iter_mut().flatten().try_for_each(|grad| grad.multiply(max_norm / norm))?;
    }
    Ok(())
}
