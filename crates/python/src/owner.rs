//! What keeps the memory of an operation alive.

use crate::dlpack::Tensor;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;

/// What keeps memory alive. To drop it takes the interpreter.
#[derive(Debug)]
#[allow(dead_code, reason = "they are kept, and nothing else")]
pub(crate) enum Owner {
    Object(Py<PyAny>),
    Buffer(PyUntypedBuffer),
    Tensor(Tensor),
}
