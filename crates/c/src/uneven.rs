//! The collectives whose lengths differ between ranks.

use crate::blocks;
use crate::call::Call;
use crate::failure::entry;
use crate::group::Group;
use crate::status::Status;
use crate::work::Work;
use phalanx::backend::{BlockExchange, Buffers, Request};
use phalanx::error::OpKind;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// As `phalanx_all_gather`, with `counts[r]` elements from rank r. All ranks give the same counts. The output has their sum.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_all_gather_v_at(
    group: *const Group,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    dtype: c_int,
    work: *mut *mut Work,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        // SAFETY: the caller's part.
        let call = unsafe { Call::new(group, OpKind::AllGather, dtype, work, (file, line)) }?;
        // SAFETY: the caller's part.
        let blocks = unsafe { call.blocks(counts) }?;
        // SAFETY: the caller's part.
        unsafe { blocks::all_gather(call, input, output, blocks) }
    })
}

/// As `phalanx_reduce_scatter`, with `counts[r]` elements for rank r. All ranks give the same counts. The input has their sum.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_reduce_scatter_v_at(
    group: *const Group,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    dtype: c_int,
    op: c_int,
    work: *mut *mut Work,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        // SAFETY: the caller's part.
        let call = unsafe { Call::new(group, OpKind::ReduceScatter, dtype, work, (file, line)) }?;
        // SAFETY: the caller's part.
        let blocks = unsafe { call.blocks(counts) }?;
        let reduce = call.reduce(op)?;
        // SAFETY: the caller's part.
        unsafe { blocks::reduce_scatter(call, input, output, blocks, reduce) }
    })
}

/// As `phalanx_gather`, with `counts[r]` elements from rank r. All ranks give the same counts. The output has their sum.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_gather_v_at(
    group: *const Group,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
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
        // SAFETY: the caller's part.
        let blocks = unsafe { call.blocks(counts) }?;
        // SAFETY: the caller's part.
        unsafe { blocks::gather(call, input, output, blocks, root) }
    })
}

/// As `phalanx_scatter`, with `counts[r]` elements for rank r. All ranks give the same counts. The input has their sum.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_scatter_v_at(
    group: *const Group,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
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
        // SAFETY: the caller's part.
        let blocks = unsafe { call.blocks(counts) }?;
        // SAFETY: the caller's part.
        unsafe { blocks::scatter(call, input, output, blocks, root) }
    })
}

/// As `phalanx_all_to_all`, with `send_counts[r]` elements to rank r and `recv_counts[r]` from it, which must be what rank r sends. Input and output have the sums
/// of these.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_all_to_all_v_at(
    group: *const Group,
    input: *const c_void,
    send_counts: *const usize,
    output: *mut c_void,
    recv_counts: *const usize,
    dtype: c_int,
    work: *mut *mut Work,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        // SAFETY: the caller's part.
        let call = unsafe { Call::new(group, OpKind::AllToAll, dtype, work, (file, line)) }?;
        // SAFETY: the caller's part.
        let send = unsafe { call.blocks(send_counts) }?;
        // SAFETY: the caller's part.
        let recv = unsafe { call.blocks(recv_counts) }?;
        // SAFETY: the caller's part.
        let input = unsafe { call.input(input, send.len()) }?;
        // SAFETY: the caller's part.
        let output = unsafe { call.output(output, recv.len()) }?;
        call.check_apart(&input, &output)?;
        let (buffers, blocks) = (Buffers::Separate(input, output), BlockExchange::Uneven { send, recv });
        call.perform(Request::AllToAll { buffers, blocks })
    })
}
