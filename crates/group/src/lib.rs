//! Process groups: every collective, blocking and asynchronous, over any transport.
//!
//! [`init`] makes a process a rank of its job and gives it the [`ProcessGroup`] of all ranks; [`threads()`]
//! makes ranks of threads. Below the group stands a [`Backend`]; the ones in this crate perform the schedules of
//! `phalanx-algo` over the transports of `phalanx-transport`, or work in shared memory, and others can be written.
//!
//! Who is lost, and what went wrong first, is decided by `phalanx-control`; operations are performed by `phalanx-engine`. The folders are floors. Each uses only those before it: [`trace`]
//! (what each group did lately), `group` ([`ProcessGroup`] and the traits below it), `progress` (drives operations), `host` (backends for host memory), `bootstrap`
//! (how ranks come together).

mod atomic_write;
mod bootstrap;
#[cfg(feature = "__fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod group;
mod host;
mod progress;
mod quick_mutex;
mod runtime;
#[cfg(all(test, not(loom)))]
mod sim;
mod standstill;
mod sync;
#[cfg(test)]
mod tests;
pub mod trace;
mod warning;

/// The settings of a rank as it tells them to the arbiter: for a program that plays ranks.
#[cfg(feature = "__played")]
#[doc(hidden)]
pub fn played_settings(config: &phalanx_rendezvous::Config) -> String {
    bootstrap::own_settings::own_settings(config, bootstrap::build::Build::here())
}

use phalanx_engine as engine;

pub use bootstrap::init::{init, join};
pub use bootstrap::prices::{Measured, Prices};
pub use bootstrap::threads::{SimulatedBackend, on_threads, threads, threads_with};
pub use bootstrap::tune::{KernelCopyTimes, StagingTimes, tune, tune_staging};
pub use group::backend::{Address, Backend, BackendFactory, BufferMemory, HostMessage, OnTimeout, Payload};
pub use group::call::{Call, HostCall, OwnedCall};
pub use group::encryption::Encryption;
pub use group::memory::{Changed, Extent, OwnedBuffer};
pub use group::message_batch::MessageBatch;
pub use group::objects::OBJECT_LEN_MAX;
pub use group::pending::{Bytes, Completion, Pending};
pub use group::process_group::ProcessGroup;
pub use group::recv_any::Received;
pub use group::registered_buffer::RegisteredBuffer;
pub use group::request::{BlockExchange, Buffers, Request};
pub use group::untyped::Untyped;
pub use group::work::{Buffer, Work};
pub use host::backend_registry::{
    BackendKind, JobHandle, backend_kind, register_backend, register_transport, registered_backends,
};
pub use host::call_queue::CallQueue;
pub use host::job_links::{JobLinks, LinkPeer, LinksStart, TransportFactory};
pub use host::own_health::{Health, Running};
#[doc(no_inline)]
pub use phalanx_control as control;
pub use phalanx_core::{Error, LibraryCopy, ReduceOp, Result, Staging};
#[doc(no_inline)]
pub use phalanx_kernels::copy_slice;
#[doc(hidden)]
pub use warning::warn;

/// A [`send`](ProcessGroup::send) of at most so many bytes returns without its receiver, on every transport.
///
/// To each peer, messages that it has not taken may add up to this, each counted as 1 KiB at least: that is one message of
/// 256 KiB, or 256 short ones. Beyond that, `send` may wait until the peer takes one.
///
/// ```
/// use phalanx_group::{EAGER_LIMIT, threads};
///
/// # std::thread::scope(|s| { for group in threads(2) { s.spawn(move || -> phalanx_core::Result<()> {
/// // Both ranks send first.
/// let peer = 1 - group.rank();
/// group.send(&vec![0u8; EAGER_LIMIT], peer, 0)?;
/// group.recv(&mut vec![0u8; EAGER_LIMIT], peer, 0)?;
/// # Ok(()) }); } });
/// ```
pub const EAGER_LIMIT: usize = engine::eager::EAGER_LIMIT;
