//! The types and codes of the driver.

use std::ffi::{c_int, c_void};

pub(crate) type RawStream = *mut c_void;
pub(crate) type RawEvent = *mut c_void;

pub(crate) type CudaResult = c_int;
pub(crate) const SUCCESS: CudaResult = 0;
pub(crate) const INVALID_VALUE: CudaResult = 1;
pub(crate) const OUT_OF_MEMORY: CudaResult = 2;
pub(crate) const NO_DEVICE: CudaResult = 100;
pub(crate) const INVALID_DEVICE: CudaResult = 101;
pub(crate) const INVALID_CONTEXT: CudaResult = 201;
pub(crate) const INVALID_HANDLE: CudaResult = 400;
pub(crate) const NOT_FOUND: CudaResult = 500;
pub(crate) const NOT_READY: CudaResult = 600;
pub(crate) const ILLEGAL_ADDRESS: CudaResult = 700;
pub(crate) const CONTEXT_IS_DESTROYED: CudaResult = 709;
pub(crate) const NOT_SUPPORTED: CudaResult = 801;
pub(crate) const CAPTURE_UNSUPPORTED: CudaResult = 900;
pub(crate) const CAPTURE_INVALIDATED: CudaResult = 901;
