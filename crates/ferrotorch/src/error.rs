//! Errors, as ferrotorch has them.

use ferrotorch_core::FerrotorchError;

/// An error of the group or of the training, in ferrotorch's words: those of its own are left as they are.
pub(crate) fn told(error: impl Into<phalanx_train::Error>) -> FerrotorchError {
    match error.into() {
        phalanx_train::Error::Tensors(error) => match error.downcast::<FerrotorchError>() {
            Ok(own) => *own,
            Err(other) => refused(other.to_string()),
        },
        other => refused(other.to_string()),
    }
}

/// What `ferrotorch-distributed` makes of each of its errors.
pub(crate) fn refused(message: impl Into<String>) -> FerrotorchError {
    FerrotorchError::InvalidArgument { message: message.into() }
}

/// An error of ferrotorch's, for `phalanx-train`.
pub(crate) fn of_tensors(error: FerrotorchError) -> phalanx_train::Error {
    phalanx_train::Error::Tensors(Box::new(error))
}
