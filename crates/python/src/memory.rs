//! Memory of Python's objects, as the buffers of operations.

use crate::background;
use crate::dlpack::Tensor;
use crate::elements::Elements;
use crate::owner::Owner;
use phalanx::backend::Bytes;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use std::any::Any;

/// Elements at an address, for libraries that know where their arrays lie.
///
/// Whoever makes one answers for it: `count` elements of type `dtype` must lie at `address`, writable, for as long as `owner` lives.
/// An operation on it keeps `owner` until it is over.
#[pyclass(frozen, module = "phalanx")]
#[derive(Debug)]
pub(crate) struct Memory {
    address: usize,
    count: usize,
    elements: Elements,
    owner: Py<PyAny>,
}

#[pymethods]
impl Memory {
    #[new]
    fn new(address: usize, count: usize, dtype: &str, owner: Py<PyAny>) -> PyResult<Self> {
        let Some(elements) = Elements::named(dtype) else {
            return Err(PyValueError::new_err(format!(
                "there is no element type {dtype:?}: there are f32 f64 f16 bf16 i8 to i64 u8 to u64, bool, complex64, complex128 and bytes"
            )));
        };
        let is_long = count.checked_mul(elements.size()).is_none_or(|bytes| bytes > isize::MAX as usize);
        if is_long || address == 0 && count > 0 {
            return Err(PyValueError::new_err(format!(
                "there can be no {count} elements at address {address:#x}"
            )));
        }
        Ok(Self { address, count, elements, owner })
    }

    fn __repr__(&self) -> String {
        format!("Memory({:#x}, {}, \"{}\")", self.address, self.count, self.elements)
    }
}

/// Memory that an operation reads or writes, and what keeps it alive.
pub(crate) struct Region {
    address: *mut u8,
    len: usize,
    pub(crate) elements: Elements,
    is_read_only: bool,
    /// There until it is given up.
    owner: Option<Owner>,
}

// SAFETY: the address is that of memory which the owner keeps alive, wherever it is used from; owners can be sent. Python programs see to it that nobody
// writes what an operation uses, as with every library that lets go of the interpreter's lock.
unsafe impl Send for Region {}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region")
            .field("len", &self.len)
            .field("elements", &self.elements)
            .finish_non_exhaustive()
    }
}

impl Region {
    /// The memory of `object`: a [`Memory`], or anything with a contiguous buffer, or with DLPack on the CPU.
    ///
    /// # Errors
    /// `TypeError` and `ValueError`, which say what is wrong with it.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(memory) = object.cast::<Memory>() {
            let memory = memory.get();
            let owner = Owner::Object(memory.owner.clone_ref(object.py()));
            let len = memory.count * memory.elements.size();
            return Ok(Self::new(memory.address as *mut u8, len, memory.elements, false, owner));
        }
        match PyUntypedBuffer::get(object) {
            Ok(buffer) => Self::of_buffer(object, buffer),
            Err(_) if object.hasattr("__dlpack__")? => {
                let tensor = Tensor::of(object)?;
                let (address, len, elements) = (tensor.address(), tensor.len(), tensor.elements());
                Ok(Self::new(address, len, elements, false, Owner::Tensor(tensor)))
            }
            Err(error) => {
                let kind = object.get_type().name()?;
                let what = format!(
                    "a {kind} is no buffer: pass a numpy array, a tensor on the CPU, or anything else with Python's buffer protocol or DLPack ({error})"
                );
                Err(PyTypeError::new_err(what))
            }
        }
    }

    fn of_buffer(object: &Bound<'_, PyAny>, buffer: PyUntypedBuffer) -> PyResult<Self> {
        if !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err(format!(
                "the {} is not contiguous: pass a contiguous copy (numpy.ascontiguousarray), and copy the result back",
                object.get_type().name()?
            )));
        }
        let format = buffer.format().to_string_lossy();
        let Some(elements) = Elements::of_format(&format, buffer.item_size()) else {
            return Err(PyTypeError::new_err(format!(
                "elements of format {format:?} are not known: pass numbers, truth values or complex numbers in this machine's byte order, \
                 or a view of others as unsigned integers of their size"
            )));
        };
        let (address, len, is_read_only) = (buffer.buf_ptr().cast(), buffer.len_bytes(), buffer.readonly());
        Ok(Self::new(address, len, elements, is_read_only, Owner::Buffer(buffer)))
    }

    fn new(address: *mut u8, len: usize, elements: Elements, is_read_only: bool, owner: Owner) -> Self {
        // Memory of no elements may be nowhere.
        let address = if len == 0 { std::ptr::dangling_mut::<u64>().cast() } else { address };
        Self { address, len, elements, is_read_only, owner: Some(owner) }
    }

    /// As memory that is written.
    ///
    /// # Errors
    /// `ValueError`: it is read-only.
    pub(crate) fn writable(self, name: &str) -> PyResult<Self> {
        if self.is_read_only && self.len > 0 {
            return Err(PyValueError::new_err(format!(
                "the {name} is read-only, and the operation writes to it"
            )));
        }
        Ok(self)
    }

    /// Elements that phalanx sees: two for each complex number.
    pub(crate) fn count(&self) -> usize {
        self.len / self.elements.dtype().size()
    }

    /// Whether this memory and `other` have a byte in common.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let (one, two) = (self.address.addr(), other.address.addr());
        self.len > 0 && other.len > 0 && one < two + other.len && two < one + self.len
    }

    /// Whether this memory is that part of `whole`, in bytes.
    pub(crate) fn is_part(&self, whole: &Self, part: std::ops::Range<usize>) -> bool {
        self.address.addr() == whole.address.addr() + part.start && self.len == part.len()
    }

    /// The bytes, for an operation that reads them.
    ///
    /// # Safety
    /// Nobody writes them meanwhile.
    pub(crate) unsafe fn read(&self) -> &[u8] {
        // SAFETY: so many bytes lie there and live as long as the owner, which `self` has; the caller sees to it that nobody writes them.
        unsafe { std::slice::from_raw_parts(self.address, self.len) }
    }

    /// The bytes, for an operation that writes them.
    ///
    /// # Safety
    /// Nobody else reads or writes them meanwhile.
    pub(crate) unsafe fn write(&mut self) -> &mut [u8] {
        // SAFETY: as in `read`; they are writable, and the caller sees to it that nobody else uses them.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.len) }
    }

    /// Lets go of the memory on a thread that has the interpreter.
    pub(crate) fn release(mut self, _: Python<'_>) {
        drop(self.owner.take());
    }
}

impl Bytes for Region {
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: an operation owns this region, and Python programs leave the memory of an operation alone until it is over.
        unsafe { self.write() }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // On a thread that performs operations, which must not wait for the interpreter.
        if let Some(owner) = self.owner.take() {
            background::forget_later(owner);
        }
    }
}
