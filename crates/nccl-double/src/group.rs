//! Launches: calls between group start and end go to their streams together.

use crate::comm::Comm;
use crate::counters::LAUNCHES;
use crate::memory::Address;
use crate::number;
use crate::result::{CUDA_ERROR, IN_PROGRESS, INVALID_USAGE, NcclResult, OK, REMOTE_ERROR, SYSTEM_ERROR};
use crate::stream::Named;
use crate::wire::{Kind, Request, Way};
use crate::{device, fault, job, version};
use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

/// How long a launch is under way at least for which ranks are connected.
const CONNECTING: Duration = Duration::from_millis(5);

/// Up to so many bytes collectives go another way than beyond, which is connected for itself.
const SMALL: usize = 64 << 10;

/// When an asynchronous error comes.
const ERROR_AFTER: Duration = Duration::from_millis(50);

/// One call, with all that its stream needs.
pub(crate) struct Call {
    pub(crate) comm: Arc<Comm>,
    /// What the thread that launches takes for it.
    pub(crate) stream: Named,
    /// Without data, which is read when the stream comes to it.
    pub(crate) request: Request,
    pub(crate) from: Address,
    /// Bytes to read.
    pub(crate) len: usize,
    pub(crate) to: Address,
}

/// What a thread has begun and not ended.
#[derive(Default)]
struct Group {
    depth: usize,
    calls: Vec<Call>,
    /// The first call that was refused was for this.
    error: NcclResult,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

pub(crate) fn start() -> NcclResult {
    let code = job::before_group();
    if code == OK {
        GROUP.with_borrow_mut(|group| group.depth += 1);
    }
    code
}

pub(crate) fn end() -> NcclResult {
    let group = GROUP.with_borrow_mut(|group| match group.depth {
        0 => Err(INVALID_USAGE),
        1 => Ok(std::mem::take(group)),
        _ => {
            group.depth -= 1;
            Ok(Group::default())
        }
    });
    match group {
        Err(code) => code,
        Ok(group) if group.error == OK => launch(group.calls),
        // Nothing of it is begun, and its communicators are of no use any more.
        Ok(group) => {
            job::clear_group();
            group.calls.iter().for_each(|call| call.comm.settle(group.error));
            group.error
        }
    }
}

/// Refuses a call: its communicator has failed for good, and the group in which it was.
pub(crate) fn refuse(comm: &Comm, code: NcclResult) -> NcclResult {
    comm.refuse(code);
    GROUP.with_borrow_mut(|group| {
        if group.depth > 0 && group.error == OK {
            group.error = code;
        }
    });
    code
}

/// Launches a call, or keeps it until the group ends.
pub(crate) fn call(call: Call) -> NcclResult {
    let alone = GROUP.with_borrow_mut(|group| {
        if group.depth == 0 {
            return Some(call);
        }
        group.calls.push(call);
        None
    });
    alone.map_or(OK, |call| launch(vec![call]))
}

/// All calls are of one communicator here, as they are for its callers.
fn launch(mut calls: Vec<Call>) -> NcclResult {
    let Some(first) = calls.first() else { return OK };
    let comm = first.comm.clone();
    let code = comm.ready();
    if code != OK {
        return refuse(&comm, code);
    }
    LAUNCHES.add(1);
    let launch = comm.next_launch();
    if fault::number("refuse").is_some_and(|at| launch == at) {
        return refuse(&comm, SYSTEM_ERROR);
    }
    if fault::number("sticky").is_some_and(|at| launch == at) {
        device::fail();
    }
    if device::has_failed() {
        return refuse(&comm, CUDA_ERROR);
    }
    let blocks = fault::number("block").is_some_and(|at| launch == at);
    let is_gone = fault::number("gone").is_some_and(|at| launch == at);
    if is_gone {
        let (kind, data) = (Kind::Gone, Vec::new());
        comm.say(&Request { kind, seq: 0, who: 0, count: 0, dtype: 0, operator: 0, scalar: 0.0, data });
    }
    let failed = fault::number("error").is_some_and(|at| launch >= at);
    let stalls = fault::number("stall").is_some_and(|at| launch == at) || failed || is_gone;
    for call in &mut calls {
        let message = matches!(call.request.kind, Kind::Send | Kind::Recv);
        call.request.seq = if message { comm.next_message() } else { comm.next_collective() };
    }
    let ways: Vec<Way> = calls.iter().map(|call| way(&call.request, comm.place.rank)).collect();
    let is_quick = version::launches_in_caller() && comm.has_ways(&ways);
    let (worker, connecting) = (comm.clone(), comm.clone());
    let enqueue = move || {
        if blocks {
            worker.wait_for_abort();
        } else if stalls {
            let stalled = worker.clone();
            calls[0].stream.here(worker.place.device).push(move || stalled.wait_for_abort());
        } else {
            by_stream(calls, worker.place.device);
        }
        worker.settle(OK);
        if failed {
            std::thread::spawn(move || {
                std::thread::sleep(ERROR_AFTER);
                worker.settle(REMOTE_ERROR);
            });
        }
    };
    if is_quick {
        enqueue();
        return comm.status();
    }
    comm.in_background(move || {
        if connecting.connect_ways(ways, CONNECTING) {
            enqueue();
        }
    });
    if comm.place.blocking { OK } else { IN_PROGRESS }
}

/// What must be connected for a call: all ranks for a kind of collective, or the two ends of a message.
fn way(request: &Request, me: usize) -> Way {
    let peer = request.who;
    match request.kind {
        Kind::Send => (Kind::Send as u64, (me as u64) << 32 | peer),
        Kind::Recv => (Kind::Send as u64, peer << 32 | me as u64),
        kind => {
            let is_small = bytes(request.count as usize, request.dtype).is_none_or(|bytes| bytes <= SMALL);
            (kind as u64, u64::from(is_small))
        }
    }
}

fn by_stream(mut calls: Vec<Call>, device: c_int) {
    while let Some(stream) = calls.first().map(|call| call.stream.here(device)) {
        let is_here = |call: &Call| Arc::ptr_eq(&call.stream.here(device), &stream);
        let (here, elsewhere) = calls.into_iter().partition(is_here);
        calls = elsewhere;
        stream.push(move || perform(here));
    }
}

/// On the stream's thread: says everything before it waits for anything, so that messages may cross.
fn perform(mut calls: Vec<Call>) {
    for call in &mut calls {
        // SAFETY: the caller keeps the memory until the stream is past this.
        call.request.data = unsafe { std::slice::from_raw_parts(call.from.0, call.len) }.to_vec();
        call.comm.say(&call.request);
    }
    for call in &calls {
        let Some(mut reply) = call.comm.reply(call.request.seq) else { return };
        if let (true, Some(last)) = (fault::has("wrong-sums"), reply.data.last_mut()) {
            *last ^= 1;
        }
        // SAFETY: as above; a result has the length of the output.
        unsafe { call.to.0.copy_from_nonoverlapping(reply.data.as_ptr(), reply.data.len()) };
    }
}

/// Bytes of `count` elements; `None` for a type that there is not.
pub(crate) fn bytes(count: usize, dtype: u64) -> Option<usize> {
    Some(count * number::size(dtype)?)
}
