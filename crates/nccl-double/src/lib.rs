//! **A test tool.** A double of NCCL and of the CUDA driver: a `cdylib` with their C symbols, on host memory. It shows that callers keep to the
//! rules of both libraries; nothing that it computes, and no time that it takes, is a result on a GPU.
//!
//! - Ranks may be processes or threads of one host. The rank that made the unique id runs a *hub*, to which the communicators of all
//!   connect over an abstract unix socket. A collective is computed in the hub when all ranks have sent their parts.
//! - A stream is a thread with a queue, so that everything is as asynchronous as on a device: who forgets an event reads data that is not there
//!   yet. Device memory is host memory full of rubbish.
//! - Communicators that do not block don't: init, finalize and each launch go on behind the caller's back, who gets `ncclInvalidArgument`
//!   when he does not ask for their end.
//! - The first launch of a kind, of few or of many bytes, and the first message between two ranks are under way until all whom they concern have come: NCCL
//!   connects ranks when they need it.
//! - What calls leave to other threads is kept in the calling thread until 2.26, and whoever looks at it when that thread has ended ends the process (`job.rs`). Which version it
//!   is, and what of that callers see, is in `version.rs`.
//! - There is one last error for the whole process; calls that a graph can't have break captures (`capture.rs`); a device on which a kernel went wrong says so for ever.
//! - A call that is refused fails its communicator for good, and what else is in its group is not begun.
//! - Calls that differ between ranks in operation or length never end, and those that differ in type or operator give wrong numbers, as those of NCCL may.
//! - Work of a rank that has died does not end either.
//!
//! - For tests of candle on CUDA it also has what cudarc calls of the driver, of cuBLAS and of cuRAND, and candle's kernels by name, see `kernels`. Pageable
//!   memory is read before a copy returns and written before it returns, as by the driver, and each thread has a default stream.
//!
//! `PHALANX_DOUBLE` tells it to fail, see `fault.rs`. Beside the symbols of the two libraries it has those of `probe.rs`.

#![cfg(target_os = "linux")]
#![allow(unreachable_pub, reason = "who loads the library reaches all functions of C")]
#![allow(clippy::missing_safety_doc, reason = "callers keep to the rules of NCCL and CUDA")]

mod capture;
mod comm;
mod config;
mod context;
mod counters;
mod cuda;
mod device;
mod encryption;
mod fault;
mod group;
mod hub;
mod job;
mod kernels;
mod last_error;
mod libraries;
mod memory;
mod nccl;
mod number;
mod probe;
#[cfg(test)]
mod refusals;
mod result;
mod stand_in;
mod stream;
mod version;
#[cfg(test)]
mod versions;
mod wire;

pub use stand_in::stand_in;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A test that fails may have left a lock poisoned, and others go on.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
