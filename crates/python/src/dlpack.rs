//! Tensors that other libraries lend by [DLPack](https://dmlc.github.io/dlpack/latest/): the first version of its C structures, without versions in them.

use crate::elements::Elements;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::{CStr, c_void};

/// Memory that the host can read: the kinds `kDLCPU` and `kDLCUDAHost`.
const HOST: [i32; 2] = [1, 3];
/// The name of a capsule that nobody has taken yet.
const FRESH: &CStr = c"dltensor";
/// Its name once it was taken.
const TAKEN: &CStr = c"used_dltensor";

#[repr(C)]
#[derive(Debug)]
struct DlDevice {
    kind: i32,
    number: i32,
}

#[repr(C)]
#[derive(Debug)]
struct DlDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
#[derive(Debug)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    ndim: i32,
    dtype: DlDataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
#[derive(Debug)]
struct DlManagedTensor {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// A tensor that was lent. It is given back when it is dropped, which takes the interpreter.
#[derive(Debug)]
pub(crate) struct Tensor {
    managed: *mut DlManagedTensor,
    len: usize,
    elements: Elements,
}

// SAFETY: DLPack lets a tensor be used and given back on any thread; the interpreter's lock is held where it is given back.
unsafe impl Send for Tensor {}

// SAFETY: shared references only read fields that nobody changes.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// Borrows the tensor that `object` lends by `__dlpack__`.
    ///
    /// # Errors
    /// `TypeError`, `ValueError`: it is on another device, not contiguous, or of other elements. What the library itself raises.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (kind, _): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
        if !HOST.contains(&kind) {
            return Err(PyValueError::new_err(
                "the tensor is not in the host's memory, and only such memory can be used here: copy it to the CPU first",
            ));
        }
        let capsule = object.call_method0("__dlpack__")?;
        // SAFETY: it is an object; another kind of object is an error that the interpreter raises.
        let managed = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), FRESH.as_ptr()) };
        let managed = managed.cast::<DlManagedTensor>();
        if managed.is_null() {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: it is a capsule, and the name lives for ever.
        if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), TAKEN.as_ptr()) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // From here on it is ours to give back.
        let mut taken = Self { managed, len: 0, elements: Elements::Opaque };
        // SAFETY: a capsule of this name holds such a structure, which lives until its deleter is called.
        let tensor = unsafe { &(*managed).tensor };
        let shape = dimensions(tensor.shape, tensor.ndim)?;
        taken.elements = (tensor.dtype.lanes == 1)
            .then(|| Elements::of_dlpack(tensor.dtype.code, tensor.dtype.bits))
            .flatten()
            .ok_or_else(|| {
                PyTypeError::new_err(format!("the tensor's elements are not known: {:?}", tensor.dtype))
            })?;
        let size = taken.elements.size();
        let len = shape.iter().try_fold(size, |len, &n| len.checked_mul(usize::try_from(n).ok()?));
        taken.len = len.ok_or_else(|| PyValueError::new_err("the tensor's shape makes no sense"))?;
        // Without strides the elements lie one behind the other.
        if !tensor.strides.is_null()
            && taken.len > 0
            && !is_contiguous(shape, dimensions(tensor.strides, tensor.ndim)?)
        {
            return Err(PyValueError::new_err(
                "the tensor is not contiguous: pass a contiguous copy, and copy the result back",
            ));
        }
        Ok(taken)
    }

    pub(crate) fn address(&self) -> *mut u8 {
        // SAFETY: it lives until its deleter is called, in `drop`.
        let tensor = unsafe { &(*self.managed).tensor };
        tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize)
    }

    /// In bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn elements(&self) -> Elements {
        self.elements
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: it lives until its deleter is called.
        if let Some(deleter) = unsafe { (*self.managed).deleter } {
            // SAFETY: it is called once, by whoever took the tensor, and nobody uses that afterwards.
            unsafe { deleter(self.managed) };
        }
    }
}

/// `ndim` numbers that lie there.
fn dimensions<'a>(numbers: *const i64, ndim: i32) -> PyResult<&'a [i64]> {
    match usize::try_from(ndim) {
        Ok(0) => Ok(&[]),
        // SAFETY: a tensor has as many as it says, and they live as long as it does, which is longer than anybody here looks at them.
        Ok(ndim) if !numbers.is_null() => Ok(unsafe { std::slice::from_raw_parts(numbers, ndim) }),
        _ => Err(PyValueError::new_err("the tensor's shape makes no sense")),
    }
}

fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1i64;
    shape.iter().zip(strides).rev().all(|(&len, &stride)| {
        let fits = len == 1 || stride == expected;
        expected = expected.saturating_mul(len);
        fits
    })
}
