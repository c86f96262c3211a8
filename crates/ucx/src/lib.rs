//! A transport over UCX: what ranks send each other goes over what UCX finds on a machine. UCX is looked for at run time, so programs build and start on machines
//! that have none.
//!
//! With the feature `ucx` of the crate `phalanx`, `PHALANX_BACKEND=ucx` selects it; a program without that crate calls [`register`]. UCX's own variables say what it
//! may use: `UCX_TLS=rc,self`, `UCX_NET_DEVICES=mlx5_0:1`.
//!
//! It passes the suites of phalanx's own transports over UCX's TCP and over UCX's shared memory, with UCX 1.13.1. **InfiniBand and RoCE are not verified**: there
//! was no such card to try it on.
//!
//! Inside: one worker for each rank carries the links of all its groups. `sys` has UCX's types and functions, `worker` is the safe face of them. `message` is what
//! stands before bytes, `pipe` counts those of one link, and `hub` has all links; `links` and `transport` are what groups see, `handle` ends it all. `attendant` is a thread that looks
//! after the links while the program computes: UCX moves nothing by itself.
//!
//! Deliberately absent: device memory, encryption (a job that encrypts refuses it), and the end of a peer as UCX sees it for anything but its links: who is
//! lost, the arbiter says.
//!
//! # Examples
//! ```
//! use phalanx_core::{ReduceOp, Result};
//!
//! fn main() -> Result<()> {
//!     phalanx_ucx::register()?;
//!     let group = phalanx_group::init()?; // with PHALANX_BACKEND=ucx under `phalanx run`: over UCX
//!     let mut sum = [group.rank() as f32];
//!     group.all_reduce(&mut sum, ReduceOp::Sum)?;
//!     group.finalize()
//! }
//! ```

#[cfg(target_os = "linux")]
mod attendant;
#[cfg(target_os = "linux")]
mod bytes;
mod factory;
#[cfg(target_os = "linux")]
mod handle;
#[cfg(target_os = "linux")]
mod hub;
#[cfg(target_os = "linux")]
mod introductions;
#[cfg(target_os = "linux")]
mod links;
#[cfg(target_os = "linux")]
mod load;
#[cfg(target_os = "linux")]
mod message;
#[cfg(target_os = "linux")]
mod pipe;
#[cfg(target_os = "linux")]
mod shared;
#[cfg(target_os = "linux")]
mod sleepers;
#[cfg(target_os = "linux")]
mod sys;
#[cfg(target_os = "linux")]
mod transport;
#[cfg(target_os = "linux")]
mod worker;

pub use factory::{Ucx, register};
#[cfg(target_os = "linux")]
pub use load::{UCX_LIBRARY, Ucp};

/// The page's snippets, which are no programs.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference/ucx.md")]
struct Page;
