//! Process groups: every collective, blocking and asynchronous, over any transport.
//!
//! [`init`] makes a process a rank of its job and gives it the [`ProcessGroup`] of all ranks; [`SimulatedBackend`]
//! makes ranks of threads. Below the group stands a [`Backend`]; the ones in this crate perform the schedules of
//! `phalanx-algo` over the transports of `phalanx-transport`, or work in shared memory, and others can be written.
//!
//! Who is lost, and what went wrong first, is decided by `phalanx-control`. The folders are floors. Each uses only those before it: [`trace`]
//! (what each group did lately), `group` ([`ProcessGroup`] and the traits below it), `engine` (performs schedules), `host` (backends for host memory), `bootstrap`
//! (how ranks come together).

mod atomic_write;
mod bootstrap;
mod engine;
#[cfg(feature = "__fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod group;
mod host;
mod runtime;
#[cfg(all(test, not(loom)))]
mod sim;
mod standstill;
mod sync;
#[cfg(test)]
mod tests;
pub mod trace;
mod warning;

use phalanx_control as control;

pub use bootstrap::init::{SimulatedBackend, init, join};
pub use bootstrap::prices::{Measured, Prices};
pub use bootstrap::tune::tune;
pub use engine::eager::EAGER_LIMIT;
pub use group::backend::{Address, Backend, BackendFactory, BufferMemory, Buffers, Collective, OnTimeout};
pub use group::encryption::Encryption;
pub use group::objects::OBJECT_LEN_MAX;
pub use group::pending::{Bytes, Completion, Pending};
pub use group::process_group::ProcessGroup;
pub use group::registered_buffer::RegisteredBuffer;
pub use group::work::{Buffer, Work};
pub use phalanx_core::{Error, ReduceOp, Result};
#[doc(hidden)]
pub use warning::warn;
