//! Process groups: every collective, blocking and asynchronous, over any transport.
//!
//! [`init`] makes a process a rank of its job and gives it the [`ProcessGroup`] of all ranks; [`SimulatedBackend`]
//! makes ranks of threads. Below the group stands a [`Backend`]; the one in this crate performs the schedules of
//! `phalanx-algo` over the transports of `phalanx-transport`, and others can be written.
//!
//! Inside: `engine` drives operations, `control` finds out what went wrong first, `realm` knows where the ranks are.

mod address;
mod assembly;
mod asynchronous;
mod backend;
#[cfg(test)]
mod bad_links;
mod beside;
mod birthplace;
mod buffer;
mod collectives;
mod control;
#[cfg(test)]
mod corrupting;
mod encryption;
mod engine;
mod fate;
#[cfg(feature = "__fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod generation;
mod group;
mod handle;
mod host;
mod init;
#[cfg(target_os = "linux")]
mod lane;
mod launcher;
mod meeting;
mod neighbours;
mod object;
#[cfg(test)]
mod other_build;
mod own_thread;
mod prices;
mod realm;
mod recommended;
mod reminder;
mod replace;
mod report;
mod scratch;
mod self_test;
#[cfg(target_os = "linux")]
mod share;
#[cfg(target_os = "linux")]
mod shm;
#[cfg(all(test, not(loom)))]
mod sim;
mod split;
mod standstill;
mod start;
mod sync;
mod tidings;
pub mod trace;
mod tune;
#[cfg(target_os = "linux")]
mod two_level;
mod warning;
#[cfg(all(test, target_os = "linux"))]
mod ways;
#[cfg(test)]
mod wiretap;
mod work;

pub use backend::{Absence, Address, Backend, Buffers, Collective, Region};
pub use buffer::SharedBuffer;
pub use encryption::Encryption;
pub use engine::eager::EAGER_LIMIT;
pub use group::ProcessGroup;
pub use init::{SimulatedBackend, init, join};
pub use object::OBJECT_LEN_MAX;
pub use phalanx_core::{Error, ReduceOp, Result};
pub use prices::{Measured, Prices};
pub use tune::tune;
#[doc(hidden)]
pub use warning::warn;
pub use work::{Buffer, Bytes, Completion, Pending, Work};
