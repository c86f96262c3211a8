//! The functions of NCCL.

use crate::comm::{Comm, Place};
use crate::config::{self, Config};
use crate::counters::{ABORTED, COMMUNICATORS, FINALIZED, OPERATORS};
use crate::cuda::RawStream;
use crate::group::{self, Call};
use crate::memory::Address;
use crate::result::{
    CUDA_ERROR, IN_PROGRESS, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, NcclResult, OK, REMOTE_ERROR,
    SYSTEM_ERROR,
};
use crate::wire::{Kind, Request};
use crate::{context, fault, hub, last_error, number, stream, version};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type RawComm = *mut c_void;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([c_char; 128]);

/// The communicator that a caller means.
unsafe fn comm(raw: RawComm) -> Option<Arc<Comm>> {
    if raw.is_null() {
        return None;
    }
    // SAFETY: it came from here, and lives until it is destroyed or aborted.
    unsafe { Arc::increment_strong_count(raw.cast::<Comm>()) };
    // SAFETY: the count was just raised.
    Some(unsafe { Arc::from_raw(raw.cast::<Comm>()) })
}

fn publish(comm: Arc<Comm>) -> RawComm {
    COMMUNICATORS.add(1);
    Arc::into_raw(comm).cast_mut().cast()
}

unsafe fn release(raw: RawComm) {
    COMMUNICATORS.add(-1);
    // SAFETY: it came from `publish`, and the caller gives it up.
    drop(unsafe { Arc::from_raw(raw.cast::<Comm>()) });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> NcclResult {
    // SAFETY: the caller's int.
    unsafe { *version = version::version() as c_int };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> NcclResult {
    static MADE: AtomicU64 = AtomicU64::new(0);
    config::read_files();
    let name = format!("phalanx-nccl-double-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
    if hub::open(&name).is_err() {
        return SYSTEM_ERROR;
    }
    let mut bytes = [0; 128];
    for (slot, byte) in bytes.iter_mut().zip(name.bytes()) {
        *slot = byte as c_char;
    }
    // SAFETY: the caller's id.
    unsafe { *id = UniqueId(bytes) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetErrorString(code: NcclResult) -> *const c_char {
    let words = match code {
        OK => c"no error",
        CUDA_ERROR => c"unhandled cuda error",
        SYSTEM_ERROR => c"unhandled system error",
        INTERNAL_ERROR => c"internal error",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    words.as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetLastError(_comm: RawComm) -> *const c_char {
    last_error::now().as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    out: *mut RawComm,
    size: c_int,
    id: UniqueId,
    rank: c_int,
    config: *mut Config,
) -> NcclResult {
    let Some(device) = context::current() else { return CUDA_ERROR };
    if size < 1 || !(0..size).contains(&rank) {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the name in the id ends with zeros.
    let name = unsafe { CStr::from_ptr(id.0.as_ptr()) };
    // SAFETY: the caller's pointer.
    unsafe { *out = std::ptr::null_mut() };
    config::read_files();
    // SAFETY: null, or the caller's.
    let Some(blocking) = Config::blocking(unsafe { config.as_ref() }) else { return INVALID_ARGUMENT };
    let hub = name.to_string_lossy().into_owned();
    let comm =
        Comm::start(Place { hub, number: 0, rank: rank as usize, size: size as usize, device, blocking });
    let status = comm.status();
    // SAFETY: the caller's pointer.
    unsafe { *out = publish(comm) };
    status
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(raw: RawComm, status: *mut NcclResult) -> NcclResult {
    // SAFETY: the caller's communicator.
    let Some(comm) = (unsafe { comm(raw) }) else { return INVALID_ARGUMENT };
    // SAFETY: the caller's pointer.
    unsafe { *status = comm.status() };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCount(raw: RawComm, count: *mut c_int) -> NcclResult {
    // SAFETY: the caller's communicator.
    let Some(comm) = (unsafe { comm(raw) }) else { return INVALID_ARGUMENT };
    let code = comm.ready();
    if code == OK {
        // SAFETY: the caller's int.
        unsafe { *count = comm.place.size as c_int };
    }
    code
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommUserRank(raw: RawComm, rank: *mut c_int) -> NcclResult {
    // SAFETY: the caller's communicator.
    let Some(comm) = (unsafe { comm(raw) }) else { return INVALID_ARGUMENT };
    let code = comm.ready();
    if code == OK {
        // SAFETY: the caller's int.
        unsafe { *rank = comm.place.rank as c_int };
    }
    code
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommFinalize(raw: RawComm) -> NcclResult {
    // SAFETY: the caller's communicator.
    let Some(comm) = (unsafe { comm(raw) }) else { return INVALID_ARGUMENT };
    let code = comm.ready();
    if code != OK {
        return code;
    }
    comm.finalize();
    let worker = comm.clone();
    comm.in_background(move || {
        if fault::has("finalize-hangs") {
            worker.wait_for_abort();
        } else {
            FINALIZED.add(1);
            worker.settle(OK);
        }
    });
    comm.status()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(raw: RawComm) -> NcclResult {
    // SAFETY: the caller's communicator.
    let Some(comm) = (unsafe { comm(raw) }) else { return INVALID_ARGUMENT };
    // What is enqueued ends first; nothing must begin.
    stream::synchronize(comm.place.device);
    comm.abort();
    // SAFETY: the caller gives it up.
    unsafe { release(raw) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(raw: RawComm) -> NcclResult {
    // SAFETY: the caller's communicator.
    let Some(comm) = (unsafe { comm(raw) }) else { return OK };
    while fault::has("abort-hangs") {
        std::thread::park();
    }
    ABORTED.add(1);
    comm.abort();
    // SAFETY: the caller gives it up.
    unsafe { release(raw) };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommSplit(
    raw: RawComm,
    color: c_int,
    key: c_int,
    out: *mut RawComm,
    _config: *mut Config,
) -> NcclResult {
    // SAFETY: the caller's communicator.
    let Some(parent) = (unsafe { comm(raw) }) else { return INVALID_ARGUMENT };
    let code = parent.ready();
    if code != OK {
        return code;
    }
    // SAFETY: the caller's pointer.
    unsafe { *out = std::ptr::null_mut() };
    let seq = parent.next_collective();
    let request = Request {
        kind: Kind::Split,
        seq,
        who: color as u64,
        count: key as u64,
        dtype: 0,
        operator: 0,
        scalar: 0.0,
        data: Vec::new(),
    };
    let out = Address(out.cast());
    let worker = parent.clone();
    parent.in_background(move || {
        let out = out;
        worker.say(&request);
        let Some(reply) = worker.reply(seq) else { return };
        let word = |i: usize| u64::from_ne_bytes(reply.data[8 * i..][..8].try_into().expect("three words"));
        if color >= 0 {
            let (number, rank, size) = (word(0), word(1) as usize, word(2) as usize);
            let place = Place { number, rank, size, ..worker.place.clone() };
            let Some(child) = worker.part(place) else { return };
            // SAFETY: the caller keeps it until the split is done.
            unsafe { *out.0.cast::<RawComm>() = publish(child) };
        }
        worker.settle(OK);
    });
    // That nothing is there yet is no error, and not said.
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRedOpCreatePreMulSum(
    operator: *mut c_int,
    scalar: *mut c_void,
    dtype: c_int,
    residence: c_int,
    raw: RawComm,
) -> NcclResult {
    // SAFETY: the caller's communicator.
    let Some(comm) = (unsafe { comm(raw) }) else { return INVALID_ARGUMENT };
    let Some(size) = number::size(dtype as u64).filter(|_| residence == 1) else { return INVALID_ARGUMENT };
    // SAFETY: the caller's scalar has this type.
    let bytes = unsafe { std::slice::from_raw_parts(scalar.cast::<u8>(), size) };
    OPERATORS.add(1);
    let made = comm.new_operator(number::scalar(bytes, dtype as u64));
    // SAFETY: the caller's pointer.
    unsafe { *operator = made };
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRedOpDestroy(_operator: c_int, _comm: RawComm) -> NcclResult {
    OPERATORS.add(-1);
    OK
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupStart() -> NcclResult {
    group::start()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupEnd() -> NcclResult {
    group::end()
}

/// What all calls that carry data have in common.
struct Data {
    from: *const c_void,
    to: *mut c_void,
    /// As the call counts them, and how many elements are read, and written.
    count: usize,
    reads: usize,
    writes: usize,
    dtype: c_int,
    operator: c_int,
    who: c_int,
}

unsafe fn carry(kind: Kind, data: Data, raw: RawComm, stream: RawStream) -> NcclResult {
    // SAFETY: the caller's communicator.
    let Some(comm) = (unsafe { comm(raw) }) else { return INVALID_ARGUMENT };
    let Data { from, to, count, reads, writes, dtype, operator, who } = data;
    let code = comm.ready();
    if code != OK {
        return group::refuse(&comm, code);
    }
    let Some(len) = group::bytes(reads, dtype as u64) else { return group::refuse(&comm, INVALID_ARGUMENT) };
    let scalar = comm.scalar(operator);
    if operator < 0 || (operator > 4 && scalar.is_none()) || !(0..comm.place.size as c_int).contains(&who) {
        return group::refuse(&comm, INVALID_ARGUMENT);
    }
    // NCCL does nothing at all then, and waits for nobody.
    if count == 0 {
        return OK;
    }
    if (reads > 0 && from.is_null()) || (writes > 0 && to.is_null()) {
        return group::refuse(&comm, INVALID_ARGUMENT);
    }
    if number::is_float_of_eight_bits(dtype as u64) && !takes_eight_bits(&comm, kind, operator) {
        return group::refuse(&comm, INVALID_ARGUMENT);
    }
    // SAFETY: the caller's stream.
    let stream = unsafe { stream::Named::of(stream) };
    let from = if reads > 0 { from } else { std::ptr::dangling() };
    let request = Request {
        kind,
        seq: 0,
        who: who as u64,
        count: count as u64,
        dtype: dtype as u64,
        operator: operator.min(5) as u64,
        scalar: scalar.unwrap_or_default(),
        data: Vec::new(),
    };
    let (from, to) = (Address(from.cast_mut().cast()), Address(to.cast()));
    group::call(Call { comm, stream, request, from, len, to })
}

/// Floats of eight bits there are from 2.24 on. They are reduced from 9.0 on; until 2.28 collectives did not even move them before that. One rank alone multiplies none: what does that
/// was compiled without them.
fn takes_eight_bits(comm: &Comm, kind: Kind, operator: c_int) -> bool {
    const AVG: c_int = 4;
    let (is_new, alone) = (comm.capability() >= 90, comm.place.size == 1);
    match kind {
        _ if version::version() < 22_400 => false,
        Kind::Send | Kind::Recv => true,
        Kind::AllGather | Kind::Broadcast => is_new || version::version() >= 22_800,
        _ => is_new && !(alone && operator >= AVG),
    }
}

unsafe fn size(raw: RawComm) -> usize {
    // SAFETY: the caller's communicator.
    unsafe { comm(raw) }.map_or(0, |comm| comm.place.size)
}

unsafe fn is_root(raw: RawComm, root: c_int) -> bool {
    // SAFETY: the caller's communicator.
    unsafe { comm(raw) }.is_some_and(|comm| comm.place.rank == root as usize)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    operator: c_int,
    raw: RawComm,
    stream: RawStream,
) -> NcclResult {
    let data = Data { from, to, count, reads: count, writes: count, dtype, operator, who: 0 };
    // SAFETY: as the caller says.
    unsafe { carry(Kind::AllReduce, data, raw, stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBroadcast(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    root: c_int,
    raw: RawComm,
    stream: RawStream,
) -> NcclResult {
    // SAFETY: as the caller says.
    let reads = if unsafe { is_root(raw, root) } { count } else { 0 };
    let data = Data { from, to, count, reads, writes: count, dtype, operator: 0, who: root };
    // SAFETY: as the caller says.
    unsafe { carry(Kind::Broadcast, data, raw, stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduce(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    operator: c_int,
    root: c_int,
    raw: RawComm,
    stream: RawStream,
) -> NcclResult {
    // SAFETY: as the caller says.
    let writes = if unsafe { is_root(raw, root) } { count } else { 0 };
    let data = Data { from, to, count, reads: count, writes, dtype, operator, who: root };
    // SAFETY: as the caller says.
    unsafe { carry(Kind::Reduce, data, raw, stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGather(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    raw: RawComm,
    stream: RawStream,
) -> NcclResult {
    // SAFETY: as the caller says.
    let writes = count * unsafe { size(raw) };
    let data = Data { from, to, count, reads: count, writes, dtype, operator: 0, who: 0 };
    // SAFETY: as the caller says.
    unsafe { carry(Kind::AllGather, data, raw, stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduceScatter(
    from: *const c_void,
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    operator: c_int,
    raw: RawComm,
    stream: RawStream,
) -> NcclResult {
    // SAFETY: as the caller says.
    let reads = count * unsafe { size(raw) };
    let data = Data { from, to, count, reads, writes: count, dtype, operator, who: 0 };
    // SAFETY: as the caller says.
    unsafe { carry(Kind::ReduceScatter, data, raw, stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclSend(
    from: *const c_void,
    count: usize,
    dtype: c_int,
    peer: c_int,
    raw: RawComm,
    stream: RawStream,
) -> NcclResult {
    let to = std::ptr::null_mut();
    let data = Data { from, to, count, reads: count, writes: 0, dtype, operator: 0, who: peer };
    // SAFETY: as the caller says.
    unsafe { carry(Kind::Send, data, raw, stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRecv(
    to: *mut c_void,
    count: usize,
    dtype: c_int,
    peer: c_int,
    raw: RawComm,
    stream: RawStream,
) -> NcclResult {
    let from = std::ptr::null();
    let data = Data { from, to, count, reads: 0, writes: count, dtype, operator: 0, who: peer };
    // SAFETY: as the caller says.
    unsafe { carry(Kind::Recv, data, raw, stream) }
}
