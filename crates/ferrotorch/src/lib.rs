//! Data-parallel training for [ferrotorch](https://github.com/dollspace-gay/ferrotorch) over [phalanx].
//!
//! A program that is written for `ferrotorch-distributed` changes its import: [`Backend`], [`TcpBackend`], [`SimulatedBackend`],
//! [`SubBackend`], [`allreduce`], [`broadcast`], [`all_gather`], [`reduce_scatter`], [`all_to_all`], [`send`], [`recv`] and [`DDP`] have the names, arguments and
//! results that they have there. What performs them is a [`ProcessGroup`](phalanx::ProcessGroup): shared memory or TCP, with its time limits and its errors,
//! which name the rank that is to blame.
//!
//! Beyond that surface, [`DDP::backward`] sends gradients while the backward pass still runs, [`DDP::backward_share`] takes batches of different sizes, and
//! [`DDP::join`] ranks that have more batches than others. [`Group`] makes a backend of a group that the program has joined by itself, with
//! [`phalanx::init`] for example.
//!
//! [`Sharded`] deals out what an optimizer remembers over the ranks (ZeRO), and with [`DiLoCo`] each rank trains for itself and averages its weights now and
//! then. [`checkpoint`] saves a module so that any number of ranks goes on.
//!
//! This is the adapter of [`phalanx_train`] for ferrotorch. Tensors are in the host's memory; one of a GPU is copied there and its result is on the host,
//! as in `ferrotorch-distributed`. `HybridBackend` and the collectives of GPU tensors are in `phalanx-ferrotorch-gpu`.
//! [What that crate has and these do not](https://docs.rs/ferrotorch-distributed): `FSDP`, pipelines, RPC, `DeviceMesh`, `DTensor`.
//!
//! # Example
//! Two ranks, here two threads of one process, fit a line through four points, each seeing half of them:
//!
//! ```
//! use ferrotorch_core::{FerrotorchResult, creation, grad_fns};
//! use ferrotorch_nn::{Linear, Module};
//! use ferrotorch_optim::{Optimizer, Sgd, SgdConfig};
//! use phalanx_ferrotorch::{Backend, DDP, SimulatedBackend};
//! use std::sync::Arc;
//!
//! fn train(backend: Arc<dyn Backend>) -> FerrotorchResult<Vec<f32>> {
//!     let mine = [[-1.0, 0.0], [1.0, 2.0]][backend.rank()];
//!     let mut ddp = DDP::new(Linear::<f32>::new(1, 1, true)?, backend); // initialised at random
//!     ddp.broadcast_parameters(0)?; // now equal
//!     let parameters = ddp.parameters().into_iter().cloned().collect();
//!     let mut optimizer = Sgd::new(parameters, SgdConfig::new(0.1));
//!
//!     let x = creation::from_slice(&mine, &[2, 1])?;
//!     let y = creation::from_slice(&mine.map(|x| 3.0 * x + 1.0), &[2, 1])?;
//!     for _ in 0..200 {
//!         let off = grad_fns::arithmetic::sub(&ddp.forward(&x)?, &y)?;
//!         let loss = grad_fns::reduction::mean(&grad_fns::arithmetic::mul(&off, &off)?)?;
//!         ddp.backward(&loss)?; // of the mean over all four points, on both ranks
//!         optimizer.step()?;
//!         optimizer.zero_grad()?;
//!     }
//!     ddp.parameters().iter().map(|parameter| parameter.item()).collect()
//! }
//!
//! let backends = SimulatedBackend::create_group(2)?;
//! let fitted: Vec<_> = std::thread::scope(|scope| {
//!     let rank = |backend: SimulatedBackend| scope.spawn(|| train(Arc::new(backend)).unwrap());
//!     let ranks: Vec<_> = backends.into_iter().map(rank).collect();
//!     ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
//! });
//! assert_eq!(fitted[0], fitted[1]); // to the last bit
//! assert!((fitted[0][0] - 3.0).abs() < 1e-3 && (fitted[0][1] - 1.0).abs() < 1e-3);
//! # Ok::<(), ferrotorch_core::FerrotorchError>(())
//! ```
//!
//! With processes instead of threads only the backend changes: `Group::init()?`.

mod backend;
pub mod checkpoint;
mod collectives;
mod data_parallel;
mod diloco;
mod error;
mod messages;
mod parameters;
mod pass;
mod sharded;
mod values;

pub use backend::{Backend, Group, SimulatedBackend, SubBackend, TcpBackend};
pub use collectives::{
    DEFAULT_COLLECTIVE_TIMEOUT, ReduceOp, all_gather, all_gather_with_timeout, all_to_all,
    all_to_all_single_uneven, all_to_all_with_timeout, allreduce, allreduce_with_timeout, barrier, broadcast,
    reduce_scatter, reduce_scatter_tensor, reduce_scatter_with_timeout,
};
pub use data_parallel::DDP;
pub use diloco::DiLoCo;
pub use messages::{recv, recv_into, recv_into_with_timeout, recv_with_timeout, send, sendrecv};
/// Ways to send weights in fewer bytes, for [`DiLoCo::with_hook`].
pub use phalanx_train::compress;
pub use phalanx_train::{
    AdamW, AdamWParams, Array, Batch, DdpConfig, DiLoCoConfig, DistributedSampler, Epoch, Gradients,
    MissingGradients, Overlap, SamplerState, Sgd, SgdParams, ShardConfig, Share, Stage, Tail,
};
pub use sharded::Sharded;

/// The guide's page, whose program is a test here.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/ferrotorch.md")]
struct Guide;
