//! Distributed training for Rust: what `torch.distributed` is to Python.
//!
//! Processes become the *ranks* of a job by [`init`]. It returns the *group* of all of them, a [`ProcessGroup`]. Every rank calls the group's
//! collectives in the same order, and gets the same result, bit for bit. A launcher starts the ranks and tells each who it is; without one the job has
//! one rank.
//!
//! # A first program
//!
//! ```toml
//! [dependencies]
//! phalanx = { path = "../phalanx/crates/phalanx" } # a copy of the repository: it is not on crates.io yet
//! ```
//!
//! The ranks share 64 points of the line y = 3x + 1, and find it together:
//!
//! ```
//! use phalanx::ReduceOp;
//!
//! fn main() -> phalanx::Result<()> {
//!     let group = phalanx::init()?; // who this process is, and who the others are
//!     let points = (0..64).map(|i| i as f32 / 32.0 - 1.0).map(|x| (x, 3.0 * x + 1.0));
//!     let share: Vec<(f32, f32)> = points.skip(group.rank()).step_by(group.world_size()).collect();
//!
//!     let mut weights = [0.0f32; 2]; // slope and offset, equal on all ranks
//!     for _ in 0..80 {
//!         let mut grads = [0.0f32; 2];
//!         for (x, y) in &share {
//!             let error = weights[0] * x + weights[1] - y;
//!             grads[0] += 2.0 * error * x / share.len() as f32;
//!             grads[1] += 2.0 * error / share.len() as f32;
//!         }
//!         group.all_reduce(&mut grads, ReduceOp::Avg)?; // the mean over all ranks, the same bits on each
//!         for (weight, grad) in weights.iter_mut().zip(grads) {
//!             *weight -= 0.2 * grad;
//!         }
//!     }
//!     println!("rank {} of {}: y = {:.3}x + {:.3}", group.rank(), group.world_size(), weights[0], weights[1]);
//!     # assert!((weights[0] - 3.0).abs() < 0.01 && (weights[1] - 1.0).abs() < 0.01);
//!     group.finalize()
//! }
//! ```
//!
//! ```sh
//! cargo install --path ../phalanx/crates/cli # the launcher
//! cargo build
//! phalanx run -n 2 target/debug/first
//! ```
//!
//! # Where to go on
//!
//! - Pages: `docs/README.md` in the repository is their index; `cargo xtask book` makes a book with search of them.
//! - Training with candle: `phalanx-candle`. With other tensors, or plain `Vec`s: `phalanx-train`.
//! - Operations that run meanwhile: [`ProcessGroup::all_reduce_async`] and others return a [`Work`], which owns the buffer until it is waited for.
//! - Errors: [`Error`] says whose trouble it is, and [`Error::group_is_usable`] whether the group can go on.
//! - Names: [`prelude`] has what most programs use; [`error`], [`config`], [`store`] and [`launch`] what some need, [`backend`] what authors of
//!   backends need, [`transport`] what authors of transports need, and [`trace`] the flight recorder.
//! - Networks of clusters: with the feature `ucx`, `PHALANX_BACKEND=ucx` takes UCX, where it is installed.
//! - Tests and examples without processes: [`threads()`] makes ranks of threads, and [`on_threads`] runs them.

pub use phalanx_core::{CallSite, DType, Element, Error, ReduceOp, Result, chunk};
#[cfg(feature = "ucx")]
mod with_ucx;

pub use phalanx_group::{
    Buffer, EAGER_LIMIT, MessageBatch, OBJECT_LEN_MAX, ProcessGroup, RegisteredBuffer, SimulatedBackend,
    Work, on_threads, threads, threads_with, trace,
};
#[cfg(not(feature = "ucx"))]
pub use phalanx_group::{init, join};
pub use phalanx_rendezvous::Config;
#[cfg(feature = "ucx")]
pub use with_ucx::{init, join};

/// What most programs use.
///
/// # Examples
/// ```
/// use phalanx::prelude::*;
///
/// fn mean(group: &ProcessGroup, loss: f32) -> Result<f32> {
///     let mut mean = [loss];
///     group.all_reduce(&mut mean, ReduceOp::Avg)?;
///     Ok(mean[0])
/// }
/// let means = on_threads(2, |group| mean(&group, group.rank() as f32))?;
/// assert_eq!(means, [0.5, 0.5]);
/// # Ok::<(), Error>(())
/// ```
pub mod prelude {
    pub use crate::{Error, ProcessGroup, ReduceOp, Result, Work, init, on_threads, threads};
}

/// What an [`Error`] is made of: which operation, which rank, what happened.
///
/// # Examples
/// ```
/// use phalanx::Error;
/// use phalanx::error::Loss;
///
/// fn was_killed(error: &Error) -> bool {
///     matches!(error, Error::PeerLost { how: Loss::Killed { .. }, .. })
/// }
/// # assert!(!was_killed(&Error::config("no such file")));
/// ```
pub mod error {
    pub use phalanx_core::{Cause, Context, Loss, OpKind, Peer};
}

/// What [`init`] reads from the environment, and [`join`] takes as an argument.
pub mod config {
    pub use phalanx_rendezvous::{Config, Elastic, Source};
}

/// Where the processes of a job find each other, and the secret by which they know each other.
///
/// # Examples
/// ```
/// use phalanx::store::{MemoryStore, Store};
///
/// let store = MemoryStore::new();
/// store.set("epoch", b"3")?;
/// assert_eq!(store.try_get("epoch")?, Some(b"3".to_vec()));
/// # Ok::<(), phalanx::Error>(())
/// ```
pub mod store {
    #[cfg(unix)]
    pub use phalanx_rendezvous::FileStore;
    pub use phalanx_rendezvous::{Channel, OwnChannel, SharedFile, StoreLocation};
    pub use phalanx_rendezvous::{MemoryStore, PrefixStore, Store, TcpStore, TcpStoreServer};
    pub use phalanx_transport::Secret;
}

/// For authors of backends, and of libraries that work beside one: what performs the operations of a [`ProcessGroup`], what it is told, and how it
/// is registered so that `PHALANX_BACKEND` knows it.
pub mod backend {
    pub use phalanx_core::{Deadline, GroupId, Layout, Method, Signature, WORLD};
    pub use phalanx_group::{
        Address, Backend, BackendFactory, BackendKind, BlockExchange, BufferMemory, Buffers, Bytes, Call,
        CallQueue, Changed, Completion, Encryption, Extent, Health, HostCall, HostMessage, JobHandle,
        LinksStart, OnTimeout, OwnedBuffer, OwnedCall, Payload, Pending, Received, Request, Running, Untyped,
        copy_slice, register_backend,
    };
    #[cfg(not(feature = "ucx"))]
    pub use phalanx_group::{backend_kind, registered_backends};

    #[cfg(feature = "ucx")]
    pub use crate::with_ucx::{backend_kind, registered_backends};
}

/// Ways to move bytes between ranks: what it takes to write one, and to register it so that `PHALANX_BACKEND` knows it.
pub mod transport {
    pub use phalanx_group::{JobLinks, LinkPeer, LinksStart, TransportFactory, register_transport};
    pub use phalanx_transport::{
        Direction, HEAD_LEN_MAX, LinkFault, OwnerProcess, Transport, Wait, WakeSource, Waker, moved,
    };
}

/// Starting the ranks of a job from a program.
pub mod launch {
    pub use phalanx_launch::*;
}

/// The guide's pages, whose programs are tests here.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../docs/guide/first-program.md")]
    struct FirstProgram;

    #[doc = include_str!("../../../docs/guide/when-it-fails.md")]
    struct WhenItFails;

    #[doc = include_str!("../../../docs/guide/tuning.md")]
    struct Tuning;
}

/// The snippets of the page on going on after a loss, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference/elastic.md")]
struct GoingOn;
