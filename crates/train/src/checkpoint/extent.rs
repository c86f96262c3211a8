//! A part of a named tensor that lies in a rank's slice.

use super::fit::{fits, has, read_part};
use crate::Tensor;
use phalanx_checkpoint::{Checkpoint, Error, Result, State, TensorInfo};
use std::borrow::Borrow;
use std::ops::Range;

/// Elements of a named tensor of the model, and where they lie in this rank's slice of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// The tensor's name.
    pub name: String,
    /// The tensor's dimensions.
    pub dims: Vec<usize>,
    /// This rank's elements of it; none, where all are others'.
    pub elements: Range<usize>,
    /// The place of these in the slice.
    pub in_slice: Range<usize>,
}

impl Extent {
    fn info<T: Tensor>(&self, slice: &T) -> TensorInfo {
        TensorInfo { dtype: slice.dtype(), shape: self.dims.clone() }
    }

    fn full_name(&self, prefix: &str) -> String {
        format!("{prefix}.{}", self.name)
    }

    /// Adds what this rank has of the tensor in `slice` to a state, under `prefix`, a dot, and its name.
    pub fn save<'a, T: Tensor, B: Borrow<T> + 'a>(&self, prefix: &str, slice: B, state: &mut State<'a>) {
        let (name, info, range) = (self.full_name(prefix), self.info(slice.borrow()), self.in_slice.clone());
        let copy = move || slice.borrow().read_range(range.clone()).map_err(Error::from);
        state.part(name, info, self.elements.clone(), copy);
    }

    pub(crate) fn is_in(&self, prefix: &str, from: &Checkpoint) -> bool {
        has(&self.full_name(prefix), from)
    }

    /// Whether a checkpoint has such a tensor.
    ///
    /// # Errors
    /// [`Missing`](phalanx_checkpoint::Error::Missing) and [`OtherTensor`](phalanx_checkpoint::Error::OtherTensor).
    pub fn fits<T: Tensor>(&self, prefix: &str, slice: &T, from: &Checkpoint) -> Result<()> {
        fits(&self.full_name(prefix), self.info(slice), from)
    }

    /// Reads what this rank has of it into `slice`.
    ///
    /// # Errors
    /// Those of the checkpoint, and the library's.
    pub fn load<T: Tensor>(&self, prefix: &str, slice: &mut T, from: &Checkpoint) -> Result<()> {
        read_part(&self.full_name(prefix), self.elements.clone(), slice, self.in_slice.start, from)
    }
}
