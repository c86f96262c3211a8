//! The trait `Weights`: how a training reads and changes a model's weights.

use crate::{Result, Tensor};

/// The weights of a model, by their places in the list that a training was made with.
///
/// A slice of tensors is one. A library whose models have their weights elsewhere implements it for what gets at them: it takes one weight out, has the work
/// done, and puts it back.
///
/// # Examples
/// Weights that a model keeps in fields:
///
/// ```
/// use phalanx_train::{AdamW, Array, Result, Weights};
///
/// struct Line {
///     slope: Array,
///     bias: Array,
/// }
///
/// impl Weights<Array> for Line {
///     fn with<R>(&mut self, index: usize, work: impl FnOnce(&mut Array) -> Result<R>) -> Result<R> {
///         work(if index == 0 { &mut self.bias } else { &mut self.slope })
///     }
/// }
///
/// let mut line = Line { slope: Array::from(vec![1f32]), bias: Array::from(vec![0f32]) };
/// let mut optimizer = AdamW::new([("bias", &line.bias), ("slope", &line.slope)], Default::default())?;
/// optimizer.step(&mut line, &[None, Some(Array::from(vec![1f32]))])?;
/// assert!(line.slope.as_slice::<f32>().unwrap()[0] < 1.0);
/// # Ok::<(), phalanx_train::Error>(())
/// ```
pub trait Weights<T: Tensor> {
    /// Has `work` done with the weight at this place, and keeps what it makes of it.
    ///
    /// # Errors
    /// Those of `work`, and the library's.
    fn with<R>(&mut self, index: usize, work: impl FnOnce(&mut T) -> Result<R>) -> Result<R>;

    /// Gives the weight at this place memory, of these dimensions, after [`go`](Self::go) has taken it: where weights are whole only while they are used.
    ///
    /// # Errors
    /// The library's.
    fn come(&mut self, index: usize, dims: &[usize]) -> Result<()> {
        self.with(index, |weight| {
            *weight = T::zeros(weight.dtype(), dims, &weight.device())?;
            Ok(())
        })
    }

    /// Takes the memory of the weight at this place.
    ///
    /// # Errors
    /// The library's.
    fn go(&mut self, index: usize) -> Result<()> {
        self.come(index, &[0])
    }
}

impl<T: Tensor> Weights<T> for [T] {
    fn with<R>(&mut self, index: usize, work: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        work(&mut self[index])
    }
}

impl<T: Tensor> Weights<T> for Vec<T> {
    fn with<R>(&mut self, index: usize, work: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        self.as_mut_slice().with(index, work)
    }
}

impl<T: Tensor, const N: usize> Weights<T> for [T; N] {
    fn with<R>(&mut self, index: usize, work: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        self.as_mut_slice().with(index, work)
    }
}
