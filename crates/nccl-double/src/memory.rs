//! Device memory, which is the host's, and copies.

use crate::context::current;
use crate::counters::{ALLOCATIONS, BYTES, COPIES_TO_HOST, PINNED, PINNED_BYTES, POOLS_APART};
use crate::cuda::{CudaResult, INVALID_CONTEXT, INVALID_VALUE, OUT_OF_MEMORY, RawStream, SUCCESS};
use crate::stream;
use crate::{capture, device, fault, lock};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Mutex;

/// What fresh memory is full of.
const RUBBISH: u8 = 0xa5;

/// Every piece that lives, device memory and pinned.
static PIECES: Mutex<BTreeMap<usize, Vec<u64>>> = Mutex::new(BTreeMap::new());

/// An address that streams carry with them.
#[derive(Clone, Copy)]
pub(crate) struct Address(pub(crate) *mut u8);

// SAFETY: whose memory it is, the caller orders with streams and events, as on a device.
unsafe impl Send for Address {}

fn allocate(len: usize) -> usize {
    let piece = vec![u64::from_ne_bytes([RUBBISH; 8]); len.div_ceil(8)];
    let address = piece.as_ptr() as usize;
    lock(&PIECES).insert(address, piece);
    address
}

fn free(address: usize) -> Option<usize> {
    lock(&PIECES).remove(&address).map(|piece| piece.len() * 8)
}

/// Whether a piece begins at this address or before, and ends behind it. What does not is pageable memory of the host.
fn is_ours(address: usize) -> bool {
    let pieces = lock(&PIECES);
    let before = pieces.range(..=address).next_back();
    before.is_some_and(|(start, piece)| address < start + piece.len() * 8)
}

/// There is one pool for all devices, and nobody looks into it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetDefaultMemPool(pool: *mut *mut c_void, _device: c_int) -> CudaResult {
    // SAFETY: the caller's pointer.
    unsafe { *pool = std::ptr::dangling_mut() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAttribute(
    _pool: *mut c_void,
    attribute: c_int,
    value: *mut c_void,
) -> CudaResult {
    const REUSE_ALLOW_INTERNAL_DEPENDENCIES: c_int = 3;
    // SAFETY: the caller's int, as for all attributes that callers here set.
    let value = unsafe { *value.cast::<c_int>() };
    if attribute == REUSE_ALLOW_INTERNAL_DEPENDENCIES && value == 0 {
        POOLS_APART.add(1);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(pointer: *mut u64, len: usize, _stream: RawStream) -> CudaResult {
    if let Err(code) = device::check() {
        return code;
    }
    if current().is_none() {
        return INVALID_CONTEXT;
    }
    if len == 0 {
        return INVALID_VALUE;
    }
    let rounded = len.div_ceil(8) * 8;
    if fault::number("memory").is_some_and(|limit| BYTES.now() as u64 + rounded as u64 > limit) {
        return OUT_OF_MEMORY;
    }
    ALLOCATIONS.add(1);
    BYTES.add(rounded as i64);
    // SAFETY: the caller's pointer.
    unsafe { *pointer = allocate(len) as u64 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeAsync(pointer: u64, stream: RawStream) -> CudaResult {
    if let Err(code) = device::check() {
        return code;
    }
    // SAFETY: the caller's stream.
    let stream = unsafe { stream::of(stream) };
    stream.push(move || {
        if let Some(len) = free(pointer as usize) {
            ALLOCATIONS.add(-1);
            BYTES.add(-(len as i64));
        }
    });
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(pointer: *mut *mut c_void, len: usize, _flags: c_uint) -> CudaResult {
    if let Err(code) = capture::check().and_then(|()| device::check()) {
        return code;
    }
    if current().is_none() {
        return INVALID_CONTEXT;
    }
    if fault::number("pinned").is_some_and(|limit| len as u64 > limit) {
        return OUT_OF_MEMORY;
    }
    PINNED.add(1);
    PINNED_BYTES.add((len.max(1).div_ceil(8) * 8) as i64);
    // SAFETY: the caller's pointer.
    unsafe { *pointer = allocate(len.max(1)) as *mut c_void };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(pointer: *mut c_void) -> CudaResult {
    if let Err(code) = capture::check().and_then(|()| device::check()) {
        return code;
    }
    let Some(device) = current() else { return INVALID_CONTEXT };
    stream::synchronize(device);
    let Some(len) = free(pointer as usize) else { return INVALID_VALUE };
    PINNED.add(-1);
    PINNED_BYTES.add(-(len as i64));
    SUCCESS
}

unsafe fn copy(to: *mut u8, from: *const u8, len: usize, stream: RawStream) -> CudaResult {
    let (to, from) = (Address(to), Address(from.cast_mut()));
    // SAFETY: the caller's stream.
    let stream = unsafe { stream::of(stream) };
    stream.push(move || {
        let (to, from) = (to, from);
        // SAFETY: the caller keeps both until the stream is past this.
        unsafe { to.0.copy_from(from.0, len) };
    });
    SUCCESS
}

/// What comes from pageable memory is read before the call returns, as by the driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    len: usize,
    stream: RawStream,
) -> CudaResult {
    if let Err(code) = device::check() {
        return code;
    }
    if len > 0 && !is_ours(from as usize) {
        // SAFETY: the caller's bytes.
        let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) }.to_vec();
        let to = Address(to as *mut u8);
        // SAFETY: the caller's stream.
        let stream = unsafe { stream::of(stream) };
        stream.push(move || {
            let to = to;
            // SAFETY: the caller keeps it until the stream is past this.
            unsafe { to.0.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        });
        return SUCCESS;
    }
    // SAFETY: as the caller says.
    unsafe { copy(to as *mut u8, from.cast(), len, stream) }
}

/// What goes to pageable memory is there when the call returns, as by the driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: u64,
    len: usize,
    stream: RawStream,
) -> CudaResult {
    if let Err(code) = device::check() {
        return code;
    }
    COPIES_TO_HOST.add(1);
    // SAFETY: as the caller says.
    let outcome = unsafe { copy(to.cast(), from as *const u8, len, stream) };
    if len > 0 && !is_ours(to as usize) {
        // SAFETY: the caller's stream.
        unsafe { stream::of(stream) }.synchronize();
    }
    outcome
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(
    to: u64,
    from: u64,
    len: usize,
    stream: RawStream,
) -> CudaResult {
    if let Err(code) = device::check() {
        return code;
    }
    // SAFETY: as the caller says.
    unsafe { copy(to as *mut u8, from as *const u8, len, stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(to: u64, value: u8, len: usize, stream: RawStream) -> CudaResult {
    if let Err(code) = device::check() {
        return code;
    }
    let to = Address(to as *mut u8);
    // SAFETY: the caller's stream.
    let stream = unsafe { stream::of(stream) };
    stream.push(move || {
        let to = to;
        // SAFETY: the caller keeps it until the stream is past this.
        unsafe { to.0.write_bytes(value, len) };
    });
    SUCCESS
}
