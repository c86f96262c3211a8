//! The collectives whose lengths are equal on all ranks.

use crate::blocks;
use crate::call::Call;
use crate::elements::Dtype;
use crate::failure::entry;
use crate::group::Group;
use crate::status::Status;
use crate::work::Work;
use phalanx::backend::{BlockExchange, Buffers, Request};
use phalanx::error::OpKind;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// Every rank ends with the combination of all ranks' buffers, in place. `count` elements on each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_all_reduce_at(
    group: *const Group,
    buffer: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    work: *mut *mut Work,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        // SAFETY: the caller's part.
        let call = unsafe { Call::new(group, OpKind::AllReduce, dtype, work, (file, line)) }?;
        // SAFETY: the caller's part.
        let buffer = unsafe { call.buffer(buffer, count) }?;
        let reduce = call.reduce(op)?;
        call.perform(Request::AllReduce { buffers: Buffers::InPlace(buffer), reduce })
    })
}

/// The root ends with the combination of all ranks' buffers, in place; elsewhere the buffer holds anything afterwards. `count` elements on each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_reduce_at(
    group: *const Group,
    buffer: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    root: c_int,
    work: *mut *mut Work,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        // SAFETY: the caller's part.
        let call = unsafe { Call::new(group, OpKind::Reduce, dtype, work, (file, line)) }?;
        // SAFETY: the caller's part.
        let buffer = unsafe { call.buffer(buffer, count) }?;
        let reduce = call.reduce(op)?;
        let root = call.rank(root)?;
        call.perform(Request::Reduce { buffer, reduce, root })
    })
}

/// Every rank ends with the root's buffer. `count` elements on each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_broadcast_at(
    group: *const Group,
    buffer: *mut c_void,
    count: usize,
    dtype: c_int,
    root: c_int,
    work: *mut *mut Work,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        // SAFETY: the caller's part.
        let call = unsafe { Call::new(group, OpKind::Broadcast, dtype, work, (file, line)) }?;
        // SAFETY: the caller's part.
        let buffer = unsafe { call.buffer(buffer, count) }?;
        let root = call.rank(root)?;
        call.perform(Request::Broadcast { buffer, root })
    })
}

/// Rank r ends with the combination of the buffers of ranks 0 to r, in place. `count` elements on each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_scan_at(
    group: *const Group,
    buffer: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    work: *mut *mut Work,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        // SAFETY: the caller's part.
        let call = unsafe { Call::new(group, OpKind::Scan, dtype, work, (file, line)) }?;
        // SAFETY: the caller's part.
        let buffer = unsafe { call.buffer(buffer, count) }?;
        let reduce = call.reduce(op)?;
        call.perform(Request::Scan { buffers: Buffers::InPlace(buffer), reduce })
    })
}

/// Every rank ends with the inputs of all, in the order of the ranks. `count` elements in, `count` × world_size out. The input may be this rank's block of
/// the output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_all_gather_at(
    group: *const Group,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: c_int,
    work: *mut *mut Work,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        // SAFETY: the caller's part.
        let call = unsafe { Call::new(group, OpKind::AllGather, dtype, work, (file, line)) }?;
        let blocks = call.equal_blocks(count)?;
        // SAFETY: the caller's part.
        unsafe { blocks::all_gather(call, input, output, blocks) }
    })
}

/// Every rank ends with its block of the combination of all inputs. `count` × world_size elements in, `count` out. The output may be this rank's block of
/// the input; the rest of that holds anything afterwards then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_reduce_scatter_at(
    group: *const Group,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: c_int,
    op: c_int,
    work: *mut *mut Work,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        // SAFETY: the caller's part.
        let call = unsafe { Call::new(group, OpKind::ReduceScatter, dtype, work, (file, line)) }?;
        let blocks = call.equal_blocks(count)?;
        let reduce = call.reduce(op)?;
        // SAFETY: the caller's part.
        unsafe { blocks::reduce_scatter(call, input, output, blocks, reduce) }
    })
}

/// The root ends with the inputs of all, in the order of the ranks. `count` elements in; `count` × world_size out on the root, elsewhere `output` is not looked
/// at. The root's input may be its block of the output.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_gather_at(
    group: *const Group,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: c_int,
    root: c_int,
    work: *mut *mut Work,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        // SAFETY: the caller's part.
        let call = unsafe { Call::new(group, OpKind::Gather, dtype, work, (file, line)) }?;
        let root = call.rank(root)?;
        let blocks = call.equal_blocks(count)?;
        // SAFETY: the caller's part.
        unsafe { blocks::gather(call, input, output, blocks, root) }
    })
}

/// Every rank ends with its block of the root's input. `count` × world_size elements in on the root, elsewhere `input` is not looked at; `count` out. The root's
/// output may be its block of the input.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_scatter_at(
    group: *const Group,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: c_int,
    root: c_int,
    work: *mut *mut Work,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        // SAFETY: the caller's part.
        let call = unsafe { Call::new(group, OpKind::Scatter, dtype, work, (file, line)) }?;
        let root = call.rank(root)?;
        let blocks = call.equal_blocks(count)?;
        // SAFETY: the caller's part.
        unsafe { blocks::scatter(call, input, output, blocks, root) }
    })
}

/// Every rank ends with one block of each rank's input, in the order of the ranks. `count` × world_size elements in and out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_all_to_all_at(
    group: *const Group,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    dtype: c_int,
    work: *mut *mut Work,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        // SAFETY: the caller's part.
        let call = unsafe { Call::new(group, OpKind::AllToAll, dtype, work, (file, line)) }?;
        let whole = call.equal_blocks(count)?.len();
        // SAFETY: the caller's part.
        let input = unsafe { call.input(input, whole) }?;
        // SAFETY: the caller's part.
        let output = unsafe { call.output(output, whole) }?;
        call.check_apart(&input, &output)?;
        let (buffers, blocks) = (Buffers::Separate(input, output), BlockExchange::Even { count });
        call.perform(Request::AllToAll { buffers, blocks })
    })
}

/// Waits until all ranks have come here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_barrier_at(
    group: *const Group,
    work: *mut *mut Work,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        // SAFETY: the caller's part.
        let call = unsafe { Call::new(group, OpKind::Barrier, Dtype::U8 as c_int, work, (file, line)) }?;
        call.perform(Request::Barrier)
    })
}

/// Waits until all ranks have come here, for at most so many seconds; the error says which have not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_monitored_barrier_at(
    group: *const Group,
    seconds: f64,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        let (dtype, work) = (Dtype::U8 as c_int, std::ptr::null_mut());
        // SAFETY: the caller's part.
        let call = unsafe { Call::new(group, OpKind::Barrier, dtype, work, (file, line)) }?;
        let timeout = call.duration(seconds)?;
        Ok(call.group_here().monitored_barrier(timeout)?)
    })
}
