//! The CUDA driver's types and functions of `cuda.h`, from CUDA 11.4 on. `cargo xtask abi` compares them with the header.

use super::table;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// `CUresult`.
pub(crate) type Code = c_int;
/// `CUdevice`.
pub(crate) type RawDevice = c_int;
/// `CUdeviceptr`.
pub(crate) type RawPointer = u64;
/// `CUcontext`.
pub(crate) type RawContext = *mut c_void;
/// `CUstream`, which is the same as `cudaStream_t`.
pub(crate) type RawStream = *mut c_void;
/// `CUmemoryPool`.
pub(crate) type RawPool = *mut c_void;
/// `CUevent`.
pub(crate) type RawEvent = *mut c_void;

/// `CUdevice_attribute`.
pub(crate) type RawAttribute = c_int;
/// `CUstreamCaptureMode`.
pub(crate) type RawCaptureMode = c_int;
/// `CUstreamCaptureStatus`.
pub(crate) type RawCaptureStatus = c_int;
/// `CUmemPool_attribute`.
pub(crate) type RawPoolAttribute = c_int;
/// `CUuuid`.
pub(crate) type RawUuid = [u8; 16];

/// `CUDA_SUCCESS`.
pub(crate) const SUCCESS: Code = 0;
/// `CUDA_ERROR_NOT_READY`.
pub(crate) const NOT_READY: Code = 600;
/// `CU_STREAM_NON_BLOCKING`: doesn't wait for the legacy default stream.
pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_PER_THREAD`: on each thread another.
pub(crate) const STREAM_PER_THREAD: usize = 2;
/// `CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES`, an int.
pub(crate) const POOL_MAY_MAKE_WAIT: RawPoolAttribute = 3;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: calls of this thread break no capture of another stream.
pub(crate) const CAPTURE_RELAXED: RawCaptureMode = 2;
/// `CU_STREAM_CAPTURE_STATUS_NONE`.
pub(crate) const CAPTURE_NONE: RawCaptureStatus = 0;
/// `CU_EVENT_DEFAULT`.
pub(crate) const EVENT_WITH_TIME: c_uint = 0;
/// `CU_EVENT_DISABLE_TIMING`: an event that only orders is cheaper.
pub(crate) const EVENT_WITHOUT_TIME: c_uint = 2;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
pub(crate) const CAPABILITY_MAJOR: RawAttribute = 75;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
pub(crate) const CAPABILITY_MINOR: RawAttribute = 76;

table! {
    /// Functions of the CUDA driver.
    CudaTable;
    needed {
        init = "cuInit": fn(c_uint) -> Code;
        driver_get_version = "cuDriverGetVersion": fn(*mut c_int) -> Code;
        get_error_name = "cuGetErrorName": fn(Code, *mut *const c_char) -> Code;
        get_error_string = "cuGetErrorString": fn(Code, *mut *const c_char) -> Code;
        device_get_count = "cuDeviceGetCount": fn(*mut c_int) -> Code;
        device_get = "cuDeviceGet": fn(*mut RawDevice, c_int) -> Code;
        device_get_name = "cuDeviceGetName": fn(*mut c_char, c_int, RawDevice) -> Code;
        device_get_attribute = "cuDeviceGetAttribute": fn(*mut c_int, RawAttribute, RawDevice) -> Code;
        device_get_uuid = "cuDeviceGetUuid_v2": fn(*mut RawUuid, RawDevice) -> Code;
        primary_ctx_retain = "cuDevicePrimaryCtxRetain": fn(*mut RawContext, RawDevice) -> Code;
        primary_ctx_release = "cuDevicePrimaryCtxRelease_v2": fn(RawDevice) -> Code;
        ctx_get_current = "cuCtxGetCurrent": fn(*mut RawContext) -> Code;
        ctx_set_current = "cuCtxSetCurrent": fn(RawContext) -> Code;
        stream_create = "cuStreamCreate": fn(*mut RawStream, c_uint) -> Code;
        stream_destroy = "cuStreamDestroy_v2": fn(RawStream) -> Code;
        stream_is_capturing = "cuStreamIsCapturing": fn(RawStream, *mut RawCaptureStatus) -> Code;
        thread_exchange_capture_mode = "cuThreadExchangeStreamCaptureMode": fn(*mut RawCaptureMode) -> Code;
        stream_wait_event = "cuStreamWaitEvent": fn(RawStream, RawEvent, c_uint) -> Code;
        event_create = "cuEventCreate": fn(*mut RawEvent, c_uint) -> Code;
        event_destroy = "cuEventDestroy_v2": fn(RawEvent) -> Code;
        event_record = "cuEventRecord": fn(RawEvent, RawStream) -> Code;
        event_query = "cuEventQuery": fn(RawEvent) -> Code;
        device_get_default_mem_pool = "cuDeviceGetDefaultMemPool": fn(*mut RawPool, RawDevice) -> Code;
        mem_pool_set_attribute = "cuMemPoolSetAttribute": fn(RawPool, RawPoolAttribute, *mut c_void) -> Code;
        mem_alloc_async = "cuMemAllocAsync": fn(*mut RawPointer, usize, RawStream) -> Code;
        mem_free_async = "cuMemFreeAsync": fn(RawPointer, RawStream) -> Code;
        memset_d8_async = "cuMemsetD8Async": fn(RawPointer, u8, usize, RawStream) -> Code;
        memcpy_to_device_async = "cuMemcpyHtoDAsync_v2": fn(RawPointer, *const c_void, usize, RawStream) -> Code;
        memcpy_to_host_async = "cuMemcpyDtoHAsync_v2": fn(*mut c_void, RawPointer, usize, RawStream) -> Code;
        mem_host_alloc = "cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint) -> Code;
        mem_free_host = "cuMemFreeHost": fn(*mut c_void) -> Code;
    }
    optional {
        event_elapsed_time = "cuEventElapsedTime" since "CUDA 2.0": fn(*mut f32, RawEvent, RawEvent) -> Code;
    }
}
