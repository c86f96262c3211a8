//! The trait `Tensor`: what data-parallel training needs of a tensor library.

use crate::memory::{Memory, Sending};
use crate::{AdamWStep, Plan, Result, SgdStep, element};
use phalanx::{DType, ProcessGroup};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A tensor of some library, as far as data-parallel training is concerned.
///
/// An adapter for a library wraps its tensors in a type of its own, implements this for it, and translates between the library's
/// way to name weights and gradients and the places in a list that the [`Reducer`](crate::Reducer) knows. [`Array`](crate::Array) is the
/// implementation for plain memory; the one of `phalanx-candle` is as short.
///
/// Errors of the library go into [`Error::Tensors`](crate::Error::Tensors), from which the adapter can take them out again.
pub trait Tensor: Sized + Send + 'static {
    /// The type of devices. `()` where there is only one.
    type Device: Clone + fmt::Debug + Send + Sync + 'static;

    /// Advice for users of the library where no rank has a gradient for a parameter: the end of a warning, and of an error.
    const NO_GRADIENT_HINT: &'static str = "Either the loss does not depend on them, or an operation between them and the loss has no backward \
         pass. If they are to stay as they are, set MissingGradients::Allow";

    /// The type of its elements.
    fn dtype(&self) -> DType;

    /// The dimensions.
    fn dims(&self) -> &[usize];

    /// The device that holds the tensor.
    fn device(&self) -> Self::Device;

    /// A tensor of zeros.
    ///
    /// # Errors
    /// The library's.
    fn zeros(dtype: DType, dims: &[usize], device: &Self::Device) -> Result<Self>;

    /// Converts the numbers to another type, rounded to the nearest, and in row-major order. If nothing has to be done, the tensor itself.
    ///
    /// # Errors
    /// The library's.
    fn to_dtype(self, dtype: DType) -> Result<Self>;

    /// The sum of two of one type and shape. The memory of neither is changed, unless nobody else sees it.
    ///
    /// # Errors
    /// The library's.
    fn add(self, other: Self) -> Result<Self>;

    /// Passes the elements on, as bytes in row-major order, aligned as elements are.
    ///
    /// # Errors
    /// The library's, and those of tensors whose memory the host can't see.
    fn read<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Result<R>;

    /// As [`read`](Self::read), for `write` to change them where they are. What shares this memory sees the change.
    ///
    /// # Errors
    /// As of [`read`](Self::read), and for elements that do not lie in row-major order.
    fn write<R>(&mut self, write: impl FnOnce(&mut [u8]) -> R) -> Result<R>;

    /// The bytes of some elements, by their numbers in row-major order: for checkpoints, which are written in parts. Where the host can't see the tensor this
    /// copies no more than these.
    ///
    /// # Errors
    /// As of [`read`](Self::read).
    fn read_range(&self, elements: Range<usize>) -> Result<Vec<u8>> {
        let size = self.dtype().size();
        self.read(|bytes| bytes[elements.start * size..elements.end * size].to_vec())
    }

    /// Multiplies each element, in place, and rounds once.
    ///
    /// # Errors
    /// As of [`write`](Self::write).
    fn multiply(&mut self, by: f64) -> Result<()> {
        let dtype = self.dtype();
        self.write(|bytes| element::multiply(dtype, bytes, by))
    }

    /// Multiplies each element by a number from 0 to 1, in place, and rounds towards zero: no element is larger than its product.
    ///
    /// # Errors
    /// As of [`write`](Self::write).
    fn shrink(&mut self, by: f64) -> Result<()> {
        let dtype = self.dtype();
        self.write(|bytes| element::shrink(dtype, bytes, by))
    }

    /// The sum of the squares of all elements, in f64, in which no square of an f32 overflows.
    ///
    /// # Errors
    /// As of [`read`](Self::read).
    fn sum_of_squares(&self) -> Result<f64> {
        self.read(|bytes| element::sum_of_squares(self.dtype(), bytes))
    }

    /// Whether no element is infinite, or not a number.
    ///
    /// # Errors
    /// As of [`read`](Self::read).
    fn is_finite(&self) -> Result<bool> {
        self.read(|bytes| element::is_finite(self.dtype(), bytes))
    }

    /// Makes a step of [`AdamW`](crate::AdamW) on this weight and its moments, all of one type and shape, in place. On the host it is [`AdamWStep::update`]; a
    /// library whose tensors are on a device makes the step there.
    ///
    /// # Errors
    /// As of [`write`](Self::write), and those of [`AdamWStep::update`].
    fn adamw(&mut self, first: &mut Self, second: &mut Self, grad: &Self, step: &AdamWStep) -> Result<()> {
        adamw_on_host(self, first, second, grad, step)
    }

    /// As [`adamw`](Self::adamw), of [`Sgd`](crate::Sgd). There is a velocity if [`has_velocity`](crate::SgdParams::has_velocity) says so.
    ///
    /// # Errors
    /// As of [`write`](Self::write), and those of [`SgdStep::update`].
    fn sgd(&mut self, velocity: Option<&mut Self>, grad: &Self, step: &SgdStep) -> Result<()> {
        sgd_on_host(self, velocity, grad, step)
    }

    /// The memory in which gradients are reduced: the seam for memory that the host can't see. `None` reduces them [on the host](crate::memory::on_host).
    /// Collective.
    ///
    /// # Errors
    /// Those of the group.
    fn memory(
        _plan: &Arc<Plan<Self::Device>>,
        _sending: Sending,
        _group: &ProcessGroup,
    ) -> Result<Option<Box<dyn Memory<Self>>>> {
        Ok(None)
    }
}

/// [`Tensor::adamw`] where all four tensors are on the host: for a library whose tensors may be elsewhere too.
///
/// # Errors
/// As of [`Tensor::adamw`].
///
/// # Examples
/// ```
/// use phalanx_train::{AdamWParams, Array, adamw_on_host};
///
/// let [mut weight, grad] = [Array::from(vec![1f32, 1.0]), Array::from(vec![0.5f32, -0.5])];
/// let [mut first, mut second] = [Array::from(vec![0f32; 2]), Array::from(vec![0f32; 2])];
/// let step = AdamWParams { weight_decay: 0.0, ..AdamWParams::default() }.at_step(1);
/// adamw_on_host(&mut weight, &mut first, &mut second, &grad, &step)?;
/// // The first step is as long as the learning rate, against the gradient.
/// let weight = Vec::<f32>::try_from(weight)?;
/// assert!((weight[0] - 0.999).abs() < 1e-6 && (weight[1] - 1.001).abs() < 1e-6);
/// # Ok::<(), phalanx_train::Error>(())
/// ```
pub fn adamw_on_host<T: Tensor>(
    weight: &mut T,
    first: &mut T,
    second: &mut T,
    grad: &T,
    step: &AdamWStep,
) -> Result<()> {
    let dtype = weight.dtype();
    weight.write(|weight| {
        first.write(|first| {
            second.write(|second| grad.read(|grad| step.update_bytes(dtype, weight, [first, second], grad)))
        })
    })????
}

/// [`Tensor::sgd`] where all tensors are on the host, as [`adamw_on_host`].
///
/// # Errors
/// As of [`Tensor::sgd`].
///
/// # Examples
/// ```
/// use phalanx_train::{Array, SgdParams, sgd_on_host};
///
/// let [mut weight, grad] = [Array::from(vec![1f32, 1.0]), Array::from(vec![0.5f32, -0.5])];
/// let step = SgdParams { lr: 0.5, ..SgdParams::default() }.at_step(true);
/// sgd_on_host(&mut weight, None, &grad, &step)?;
/// assert_eq!(Vec::<f32>::try_from(weight)?, [0.75, 1.25]);
/// # Ok::<(), phalanx_train::Error>(())
/// ```
pub fn sgd_on_host<T: Tensor>(
    weight: &mut T,
    velocity: Option<&mut T>,
    grad: &T,
    step: &SgdStep,
) -> Result<()> {
    let dtype = weight.dtype();
    let mut update = |velocity: &mut [u8]| {
        weight.write(|weight| grad.read(|grad| step.update_bytes(dtype, weight, velocity, grad)))
    };
    match velocity {
        Some(velocity) => velocity.write(update)???,
        None => update(&mut [])??,
    }
}
