//! Whether a checkpoint has a tensor, and its elements.

use crate::Tensor;
use phalanx_checkpoint::{Checkpoint, Error, Result, TensorInfo};
use std::ops::Range;

/// An error of the library, or of the group, as one of a checkpoint.
impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        match error {
            crate::Error::Checkpoint(error) => error,
            crate::Error::Group(error) => Self::Group(error),
            crate::Error::Tensors(error) => Self::Tensors(error),
            other => Self::Tensors(other.into()),
        }
    }
}

pub(crate) fn has(name: &str, from: &Checkpoint) -> bool {
    from.info(name).is_ok()
}

/// Whether the checkpoint has such a tensor.
pub fn fits(name: &str, expected: TensorInfo, from: &Checkpoint) -> Result<()> {
    let found = from.info(name)?.clone();
    if expected == found {
        Ok(())
    } else {
        Err(Error::OtherTensor { name: name.to_owned(), expected, found })
    }
}

/// Fills a tensor from the checkpoint, in place.
pub fn read_whole<T: Tensor>(name: &str, tensor: &mut T, from: &Checkpoint) -> Result<()> {
    read_part(name, 0..tensor.dims().iter().product(), tensor, 0, from)
}

/// Reads `elements` of a tensor of the checkpoint into `into`, from its element `start` on.
pub(crate) fn read_part<T: Tensor>(
    name: &str,
    elements: Range<usize>,
    into: &mut T,
    start: usize,
    from: &Checkpoint,
) -> Result<()> {
    let size = into.dtype().size();
    let place = start * size..(start + elements.len()) * size;
    into.write(|bytes| from.read_bytes(name, elements, &mut bytes[place]))?
}
