//! Captures of streams: what a stream is given meanwhile goes into a graph, and calls that a graph can't have break it.
//!
//! As with the driver, a capture of the global mode is broken by such a call of any thread, but one that has said that it is relaxed; others are by calls of the thread that began
//! them.

use crate::cuda::{CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, CudaResult, INVALID_VALUE, RawStream, SUCCESS};
use crate::lock;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;
use std::thread::{self, ThreadId};

const GLOBAL: c_int = 0;
const RELAXED: c_int = 2;

struct Capture {
    stream: usize,
    mode: c_int,
    by: ThreadId,
    is_broken: bool,
}

static ALL: Mutex<Vec<Capture>> = Mutex::new(Vec::new());

thread_local! {
    static MODE: Cell<c_int> = const { Cell::new(GLOBAL) };
}

/// Whether this thread may make a call that is none for a graph. If not, that has broken a capture.
pub(crate) fn check() -> Result<(), CudaResult> {
    let (mode, me) = (MODE.get(), thread::current().id());
    let mut outcome = Ok(());
    if mode == RELAXED {
        return outcome;
    }
    for capture in lock(&ALL).iter_mut() {
        let is_hurt = (capture.mode == GLOBAL && mode == GLOBAL) || capture.by == me;
        if is_hurt && capture.mode != RELAXED {
            capture.is_broken = true;
            outcome = Err(CAPTURE_UNSUPPORTED);
        }
    }
    outcome
}

pub(crate) fn is_captured(stream: RawStream) -> bool {
    lock(&ALL).iter().any(|capture| capture.stream == stream as usize)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamBeginCapture_v2(stream: RawStream, mode: c_int) -> CudaResult {
    if stream.is_null() || is_captured(stream) {
        return INVALID_VALUE;
    }
    let (stream, by) = (stream as usize, thread::current().id());
    lock(&ALL).push(Capture { stream, mode, by, is_broken: false });
    SUCCESS
}

/// There is no graph to be had.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: RawStream, graph: *mut *mut c_void) -> CudaResult {
    let mut all = lock(&ALL);
    let Some(at) = all.iter().position(|capture| capture.stream == stream as usize) else {
        return INVALID_VALUE;
    };
    let capture = all.remove(at);
    // SAFETY: the caller's pointer.
    unsafe { *graph = std::ptr::null_mut() };
    if capture.is_broken { CAPTURE_INVALIDATED } else { SUCCESS }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: RawStream, status: *mut c_int) -> CudaResult {
    let all = lock(&ALL);
    let found = all.iter().find(|capture| capture.stream == stream as usize);
    // SAFETY: the caller's int.
    unsafe { *status = found.map_or(0, |capture| 1 + c_int::from(capture.is_broken)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> CudaResult {
    // SAFETY: the caller's int.
    let new = unsafe { *mode };
    // SAFETY: as above.
    unsafe { *mode = MODE.replace(new) };
    SUCCESS
}
