//! The driver's devices and contexts. A context is its device's number plus one, made a pointer.

use crate::counters::CONTEXTS;
use crate::cuda::{
    CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, CONTEXT_IS_DESTROYED, CudaResult, ILLEGAL_ADDRESS,
    INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NO_DEVICE, NOT_FOUND, NOT_READY,
    OUT_OF_MEMORY, SUCCESS,
};
use crate::fault;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

fn devices() -> c_int {
    fault::number("devices").map_or(8, |n| n as c_int)
}

/// The device of the calling thread's context.
pub(crate) fn current() -> Option<c_int> {
    CURRENT.get().checked_sub(1).map(|device| device as c_int)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(_flags: c_uint) -> CudaResult {
    if fault::has("no-device") { NO_DEVICE } else { SUCCESS }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> CudaResult {
    // SAFETY: the caller's int.
    unsafe { *version = 13_000 };
    SUCCESS
}

fn words(code: CudaResult) -> (&'static CStr, &'static CStr) {
    match code {
        SUCCESS => (c"CUDA_SUCCESS", c"no error"),
        INVALID_VALUE => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        OUT_OF_MEMORY => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        NO_DEVICE => (c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
        INVALID_DEVICE => (c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
        INVALID_CONTEXT => (c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        INVALID_HANDLE => (c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
        NOT_FOUND => (c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
        NOT_READY => (c"CUDA_ERROR_NOT_READY", c"device not ready"),
        ILLEGAL_ADDRESS => (c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
        CONTEXT_IS_DESTROYED => (c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed"),
        CAPTURE_UNSUPPORTED => {
            (c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"operation not permitted when stream is capturing")
        }
        CAPTURE_INVALIDATED => (
            c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
            c"operation failed due to a previous error during capture",
        ),
        _ => (c"CUDA_ERROR_UNKNOWN", c"unknown error"),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: CudaResult, name: *mut *const c_char) -> CudaResult {
    // SAFETY: the caller's pointer.
    unsafe { *name = words(code).0.as_ptr() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: CudaResult, text: *mut *const c_char) -> CudaResult {
    // SAFETY: the caller's pointer.
    unsafe { *text = words(code).1.as_ptr() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> CudaResult {
    // SAFETY: the caller's int.
    unsafe { *count = devices() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> CudaResult {
    if !(0..devices()).contains(&ordinal) {
        return INVALID_DEVICE;
    }
    // SAFETY: the caller's int.
    unsafe { *device = ordinal };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, _device: c_int) -> CudaResult {
    const NAME: &CStr = c"double of a GPU (host memory)";
    if len as usize <= NAME.count_bytes() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's buffer has `len` bytes.
    unsafe { name.copy_from_nonoverlapping(NAME.as_ptr(), NAME.count_bytes() + 1) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> CudaResult {
    let mut bytes = *b"not a real GPU\0\0";
    bytes[15] = device as u8;
    // SAFETY: the caller's 16 bytes.
    unsafe { *uuid = bytes };
    SUCCESS
}

/// The compute capability, 90 for 9.0.
pub(crate) fn capability() -> u64 {
    fault::number("capability").unwrap_or(90)
}

/// Memory pools there are; of the rest nobody here asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    _device: c_int,
) -> CudaResult {
    const CAPABILITY_MAJOR: c_int = 75;
    const CAPABILITY_MINOR: c_int = 76;
    const MEMORY_POOLS_SUPPORTED: c_int = 115;
    let found = match attribute {
        CAPABILITY_MAJOR => capability() as c_int / 10,
        CAPABILITY_MINOR => capability() as c_int % 10,
        _ => c_int::from(attribute == MEMORY_POOLS_SUPPORTED),
    };
    // SAFETY: the caller's int.
    unsafe { *value = found };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) -> CudaResult {
    CONTEXTS.add(1);
    // SAFETY: the caller's pointer.
    unsafe { *context = (device as usize + 1) as *mut c_void };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> CudaResult {
    CONTEXTS.add(-1);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut *mut c_void) -> CudaResult {
    // SAFETY: the caller's pointer.
    unsafe { *context = CURRENT.get() as *mut c_void };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetCurrent(context: *mut c_void) -> CudaResult {
    if !context.is_null() && fault::has("no-context") {
        return CONTEXT_IS_DESTROYED;
    }
    CURRENT.set(context as usize);
    SUCCESS
}
