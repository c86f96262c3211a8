//! Errors of tch, as this crate has them.

use crate::Error;
use tch::TchError;

/// tch's error, from which a program can take it out again.
pub(crate) fn told(error: TchError) -> Error {
    Error::Tensors(error.into())
}
