//! Messages between two ranks.

use crate::call::Call;
use crate::failure::entry;
use crate::group::Group;
use crate::status::Status;
use crate::work::{Running, Work};
use phalanx::error::OpKind;
use std::ffi::{c_char, c_int, c_uint, c_void};

/// Sends the buffer to rank `dst`. Messages to one rank with one tag arrive in their order. Up to 256 KiB need no receiver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_send_at(
    group: *const Group,
    buffer: *const c_void,
    count: usize,
    dtype: c_int,
    dst: c_int,
    tag: u64,
    work: *mut *mut Work,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        // SAFETY: the caller's part.
        let call = unsafe { Call::new(group, OpKind::Send, dtype, work, (file, line)) }?;
        // SAFETY: the caller's part.
        let buffer = unsafe { call.input(buffer, count) }?;
        let dst = call.rank(dst)?;
        call.send(buffer, dst, tag)
    })
}

/// Receives the message with this tag that rank `src` sent, which must have this count and these elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_recv_at(
    group: *const Group,
    buffer: *mut c_void,
    count: usize,
    dtype: c_int,
    src: c_int,
    tag: u64,
    work: *mut *mut Work,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        // SAFETY: the caller's part.
        let call = unsafe { Call::new(group, OpKind::Recv, dtype, work, (file, line)) }?;
        // SAFETY: the caller's part.
        let buffer = unsafe { call.buffer(buffer, count) }?;
        let src = call.rank(src)?;
        call.message(
            buffer,
            |group, bytes| group.recv(bytes, src, tag, None),
            |group, region| Ok(Running::Nothing(group.begin_recv(region, src, tag)?)),
        )
    })
}

/// As `phalanx_recv`, for at most so many seconds: if no message has come by then, it returns `PHALANX_ERROR_NO_MESSAGE`, and the group goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_recv_timeout_at(
    group: *const Group,
    buffer: *mut c_void,
    count: usize,
    dtype: c_int,
    src: c_int,
    tag: u64,
    seconds: f64,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        let work = std::ptr::null_mut();
        // SAFETY: the caller's part.
        let call = unsafe { Call::new(group, OpKind::Recv, dtype, work, (file, line)) }?;
        // SAFETY: the caller's part.
        let mut buffer = unsafe { call.buffer(buffer, count) }?;
        let (src, timeout) = (call.rank(src)?, call.duration(seconds)?);
        Ok(call.untyped().recv(buffer.write(), src, tag, Some(timeout))?)
    })
}

/// Receives a message with this tag from whichever rank sends one first, and stores that rank in `source`, if it is not null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_recv_any_at(
    group: *const Group,
    buffer: *mut c_void,
    count: usize,
    dtype: c_int,
    tag: u64,
    source: *mut c_int,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        let work = std::ptr::null_mut();
        // SAFETY: the caller's part.
        let call = unsafe { Call::new(group, OpKind::RecvAny, dtype, work, (file, line)) }?;
        // SAFETY: the caller's part.
        let buffer = unsafe { call.buffer(buffer, count) }?;
        // SAFETY: the caller's part.
        unsafe { call.recv_any(buffer, tag, None, source) }
    })
}

/// As `phalanx_recv_any`, for at most so many seconds: if no message has come by then, it returns `PHALANX_ERROR_NO_MESSAGE`, and the group goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_recv_any_timeout_at(
    group: *const Group,
    buffer: *mut c_void,
    count: usize,
    dtype: c_int,
    tag: u64,
    seconds: f64,
    source: *mut c_int,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        let work = std::ptr::null_mut();
        // SAFETY: the caller's part.
        let call = unsafe { Call::new(group, OpKind::RecvAny, dtype, work, (file, line)) }?;
        // SAFETY: the caller's part.
        let buffer = unsafe { call.buffer(buffer, count) }?;
        let timeout = call.duration(seconds)?;
        // SAFETY: the caller's part.
        unsafe { call.recv_any(buffer, tag, Some(timeout), source) }
    })
}

/// Begins a `phalanx_recv_any`. `phalanx_work_source` says which rank has sent the message.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_recv_any_async_at(
    group: *const Group,
    buffer: *mut c_void,
    count: usize,
    dtype: c_int,
    tag: u64,
    work: *mut *mut Work,
    file: *const c_char,
    line: c_uint,
) -> Status {
    entry(|| {
        // SAFETY: the caller's part.
        let call = unsafe { Call::new(group, OpKind::RecvAny, dtype, work, (file, line)) }?;
        // SAFETY: the caller's part.
        let buffer = unsafe { call.buffer(buffer, count) }?;
        call.message(
            buffer,
            |group, bytes| group.recv_any(bytes, tag, None).map(|_| ()),
            |group, region| Ok(Running::Rank(group.begin_recv_any(region, tag)?)),
        )
    })
}
