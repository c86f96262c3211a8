//! For testing code with many ranks: [worlds](World) in one process, [oracles](oracle), and conformance suites for
//! whoever writes a transport, a backend or a store.
//!
//! ```
//! use phalanx_core::ReduceOp;
//! use phalanx_testkit::World;
//!
//! // Three ranks, each a thread, linked over TCP; a hang becomes a panic that names the ranks that hang.
//! let averages = World::tcp().run(3, |group| {
//!     let mut gradients = vec![group.rank() as f32; 4];
//!     group.all_reduce(&mut gradients, ReduceOp::Avg).unwrap();
//!     gradients
//! });
//! assert_eq!(averages, [[1.0; 4]; 3]);
//! ```
//!
//! Deliberately absent: processes (`phalanx-launch` starts those), clocks, and limits on how fast anything must be.

#[doc(hidden)]
pub mod conformance;
mod links;
pub mod oracle;
mod port;
mod threads;
mod world;

pub use links::{End, Links};
pub use port::free_port;
pub use world::{Join, Settings, World};
