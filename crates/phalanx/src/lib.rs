//! Distributed training for Rust: what `torch.distributed` is to Python.
//!
//! ```
//! use phalanx::ReduceOp;
//!
//! let group = phalanx::init()?; // ranks, addresses and secret come from the launcher; alone, a group of one
//! let mut grads = vec![1.0f32; 8];
//! group.all_reduce(&mut grads, ReduceOp::Avg)?;
//!
//! let work = group.all_reduce_async(grads, ReduceOp::Sum)?; // the operation owns the buffer …
//! let grads = work.wait()?; // … until here
//! # let _ = grads;
//! group.finalize()?;
//! # Ok::<(), phalanx::Error>(())
//! ```

pub use phalanx_core::{
    CallSite, Cause, Context, DType, Deadline, Element, Error, GroupId, Layout, Loss, OpKind, Peer, ReduceOp,
    Result, Signature, WORLD, chunk,
};
pub use phalanx_group::{
    Absence, Address, Backend, Buffer, Buffers, Bytes, Collective, Completion, EAGER_LIMIT, OBJECT_LEN_MAX,
    Pending, ProcessGroup, SharedBuffer, SimulatedBackend, Work, init, join, trace,
};
#[cfg(unix)]
pub use phalanx_rendezvous::FileStore;
pub use phalanx_rendezvous::{
    Config, Elastic, MemoryStore, PrefixStore, Source, Store, StoreLocation, TcpStore, TcpStoreServer,
};

pub use phalanx_transport::Secret;

/// Starting the ranks of a job from a program.
pub mod launch {
    pub use phalanx_launch::*;
}

/// The snippets of the page on going on after a loss, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference/elastic.md")]
struct GoingOn;
