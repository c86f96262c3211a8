//! The primary context of a device: what streams, events and memory belong to.

use crate::load::Cuda;
use crate::sys::cuda::{
    CAPABILITY_MAJOR, CAPABILITY_MINOR, CAPTURE_RELAXED, POOL_MAY_MAKE_WAIT, RawCaptureMode, RawContext,
    RawDevice,
};
use phalanx_core::{Error, Result};
use std::ffi::{CStr, c_int};
use std::fmt;

pub(crate) struct Context {
    pub(crate) cuda: Cuda,
    pub(crate) ordinal: usize,
    pub(crate) name: String,
    pub(crate) uuid: [u8; 16],
    pub(crate) capability: (u32, u32),
    device: RawDevice,
    raw: RawContext,
}

// SAFETY: the driver may be called from any thread, with handles that another thread got.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {} ({}, {})", self.ordinal, self.name, self.uuid())
    }
}

impl Context {
    pub(crate) fn retain(cuda: Cuda, ordinal: usize) -> Result<Self> {
        let table = cuda.table();
        let count = devices(cuda)?;
        if ordinal >= count {
            return Err(Error::config(format!(
                "there is no device {ordinal}: this machine has {count}, from 0"
            )));
        }
        let mut device = 0;
        // SAFETY: `device` is good for one.
        cuda.check("cuDeviceGet", unsafe { (table.device_get)(&raw mut device, ordinal as c_int) })?;
        let mut name = [0; 256];
        // SAFETY: `name` has so many bytes.
        let code = unsafe { (table.device_get_name)(name.as_mut_ptr(), name.len() as c_int, device) };
        cuda.check("cuDeviceGetName", code)?;
        // SAFETY: the driver has written a text that ends within the array.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let mut uuid = [0; 16];
        // SAFETY: `uuid` has 16 bytes.
        cuda.check("cuDeviceGetUuid_v2", unsafe { (table.device_get_uuid)(&raw mut uuid, device) })?;
        let attribute = |which| {
            let mut value: c_int = 0;
            // SAFETY: `value` is good for one int.
            let code = unsafe { (table.device_get_attribute)(&raw mut value, which, device) };
            cuda.check("cuDeviceGetAttribute", code).map(|()| value.max(0).unsigned_abs())
        };
        let capability = (attribute(CAPABILITY_MAJOR)?, attribute(CAPABILITY_MINOR)?);
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is good for one pointer.
        let code = unsafe { (table.primary_ctx_retain)(&raw mut raw, device) };
        cuda.check("cuDevicePrimaryCtxRetain", code)?;
        let new = Self { cuda, ordinal, name, uuid, capability, device, raw };
        new.keep_streams_apart()?;
        Ok(new)
    }

    /// The pool must not make who allocates on one stream wait for what is freed on another: that may be behind an operation between ranks.
    fn keep_streams_apart(&self) -> Result<()> {
        let (_entered, table) = (self.enter()?, self.cuda.table());
        let (mut pool, mut may): (_, c_int) = (std::ptr::null_mut(), 0);
        // SAFETY: `pool` is good for one pointer.
        let code = unsafe { (table.device_get_default_mem_pool)(&raw mut pool, self.device) };
        self.cuda.check("cuDeviceGetDefaultMemPool", code)?;
        // SAFETY: the device's pool lives as long as the device, and the attribute is an int.
        let code = unsafe { (table.mem_pool_set_attribute)(pool, POOL_MAY_MAKE_WAIT, (&raw mut may).cast()) };
        self.cuda.check("cuMemPoolSetAttribute", code)
    }

    pub(crate) fn uuid(&self) -> String {
        let hex = |range: std::ops::Range<usize>| -> String {
            self.uuid[range].iter().map(|byte| format!("{byte:02x}")).collect()
        };
        format!("GPU-{}-{}-{}-{}-{}", hex(0..4), hex(4..6), hex(6..8), hex(8..10), hex(10..16))
    }

    /// The `CUcontext`.
    #[cfg(feature = "cudarc")]
    pub(crate) fn raw(&self) -> RawContext {
        self.raw
    }

    /// Makes it that of this thread, until the guard goes. Meanwhile the thread's calls break no graph that somebody captures: to ask after an event, say, is nothing that
    /// a capture could hear of, but it would end it, on whichever thread.
    pub(crate) fn enter(&self) -> Result<Entered<'_>> {
        let relaxed = Relaxed::begin(self.cuda)?;
        let mut before = std::ptr::null_mut();
        // SAFETY: `before` is good for one pointer.
        let code = unsafe { (self.cuda.table().ctx_get_current)(&raw mut before) };
        self.cuda.check("cuCtxGetCurrent", code)?;
        if before != self.raw {
            // SAFETY: the context lives.
            let code = unsafe { (self.cuda.table().ctx_set_current)(self.raw) };
            self.cuda.check("cuCtxSetCurrent", code)?;
        }
        Ok(Entered { context: self, before, _relaxed: relaxed })
    }
}

/// How many devices there are.
pub(crate) fn devices(cuda: Cuda) -> Result<usize> {
    let mut count: c_int = 0;
    // SAFETY: `count` is good for one int.
    let code = unsafe { (cuda.table().device_get_count)(&raw mut count) };
    cuda.check("cuDeviceGetCount", code)?;
    Ok(usize::try_from(count).unwrap_or_default())
}

/// This thread has the context.
pub(crate) struct Entered<'a> {
    context: &'a Context,
    before: RawContext,
    _relaxed: Relaxed,
}

/// This thread breaks no capture of another stream.
struct Relaxed {
    cuda: Cuda,
    before: RawCaptureMode,
}

impl Relaxed {
    fn begin(cuda: Cuda) -> Result<Self> {
        let mut mode = CAPTURE_RELAXED;
        // SAFETY: `mode` is good for one int.
        let code = unsafe { (cuda.table().thread_exchange_capture_mode)(&raw mut mode) };
        cuda.check("cuThreadExchangeStreamCaptureMode", code)?;
        Ok(Self { cuda, before: mode })
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: it was this thread's mode before.
        unsafe { (self.cuda.table().thread_exchange_capture_mode)(&raw mut self.before) };
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if self.before != self.context.raw {
            // SAFETY: it was this thread's context before.
            unsafe { (self.context.cuda.table().ctx_set_current)(self.before) };
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once, and all that was made in it is gone.
        unsafe { (self.cuda.table().primary_ctx_release)(self.device) };
    }
}
