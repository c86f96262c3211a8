//! Data-parallel training for [candle](candle_core) over [phalanx].
//!
//! Three lines turn a program that trains in one process into one that trains in many: join the group, wrap the variables, and call
//! [`backward`](DistributedDataParallel::backward) there instead of on the loss. Each rank works on its share
//! of a batch, as [`DistributedSampler`] deals it, and ends each step with the gradients of the whole.
//!
//! The collectives themselves work on tensors too: [`all_reduce`], [`broadcast`], [`reduce`], [`all_gather`], [`gather`],
//! [`reduce_scatter`], [`scatter`], [`all_to_all`], [`scan`], and messages: [`send`], [`recv`], [`recv_any`].
//!
//! [`checkpoint`] saves what a training needs to go on, on another number of ranks too: model, [`AdamW`] or [`Sgd`], place in the data.
//!
//! A model that [`build`](DistributedDataParallel::build) makes sends gradients while its backward pass still runs, where that helps:
//! see [`Overlap`]. Accumulation, unused variables, uneven batches, buffers, clipping and 16 bits are told of in
//! `docs/reference/ddp.md`.
//!
//! [`Sharded`] is data-parallel training for models that need more memory than a rank has: each keeps a part of the optimizer's state, of the
//! gradients and of the weights (ZeRO, FSDP). See `docs/reference/sharding.md`.
//! Where ranks are far apart, [`DiLoCo`] trains each for itself and averages them every so many steps; it takes an optimizer's place.
//! [`SyncBatchNorm`] normalises over the samples of all ranks. On CPUs the [`layers`] here take less time than candle's, with the same variables.
//!
//! This is the adapter of [`phalanx_train`] for candle: what steps, buckets and samplers do is there, and the same for other libraries. What works
//! inside of candle's graph and optimizers is here.
//!
//! Tensors and variables live on the CPU; with the feature `cuda` also on NVIDIA GPUs, as far as `docs/reference/cuda.md` says.
//!
//! # Example
//! Two ranks, here two threads of one process, fit a line through four points, each seeing half of them:
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{Module, Optimizer, SGD, VarBuilder, VarMap};
//! use phalanx::{ProcessGroup, threads};
//! use phalanx_candle::DistributedDataParallel;
//!
//! fn train(group: &ProcessGroup) -> phalanx_candle::Result<Vec<f32>> {
//!     let varmap = VarMap::new();
//!     let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
//!     let model = candle_nn::linear(1, 1, vb)?; // initialised at random: different on each rank
//!     let mut optimizer = SGD::new(varmap.all_vars(), 0.1)?;
//!
//!     let ddp = DistributedDataParallel::new(&varmap, group, Default::default())?; // now equal
//!     let mine = [[-1.0f32, 0.0], [1.0, 2.0]][group.rank()];
//!     let x = Tensor::new(&mine, &Device::Cpu)?.unsqueeze(1)?;
//!     let y = ((&x * 3.0)? + 1.0)?;
//!     for _ in 0..200 {
//!         let loss = candle_nn::loss::mse(&model.forward(&x)?, &y)?;
//!         let grads = ddp.backward(&loss)?; // of the mean over all four points, on both ranks
//!         optimizer.step(&grads)?;
//!     }
//!     Ok(vec![model.weight().flatten_all()?.to_vec1()?[0], model.bias().unwrap().to_vec1()?[0]])
//! }
//!
//! let fitted: Vec<Vec<f32>> = std::thread::scope(|s| {
//!     let ranks: Vec<_> =
//!         threads(2).into_iter().map(|group| s.spawn(move || train(&group).unwrap())).collect();
//!     ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
//! });
//! assert_eq!(fitted[0], fitted[1]); // to the last bit
//! assert!((fitted[0][0] - 3.0).abs() < 1e-3 && (fitted[0][1] - 1.0).abs() < 1e-3);
//! ```
//!
//! With processes instead of threads only one line changes: `let group = phalanx::init()?`.

mod adamw;
mod adapter;
mod backward;
pub mod checkpoint;
mod clip;
mod coalesced;
#[cfg(feature = "cuda")]
mod cuda;
mod data_parallel;
mod diloco;
mod element;
mod error;
mod group;
pub mod layers;
mod model;
mod perform;
mod request;
mod saved;
mod scaler;
mod sendable;
mod sgd;
mod shard;
mod sync_batch_norm;
mod tensor;
#[cfg(test)]
mod tests;
mod uses;
mod var_backend;

pub use adamw::AdamW;
pub use clip::{clip_factor, clip_grad_norm, grad_norm};
pub use coalesced::{all_gather_coalesced, all_reduce_coalesced, reduce_scatter_coalesced};
pub use data_parallel::{DistributedDataParallel, sync_gradients};
pub use diloco::{DiLoCo, DiLoCoConfig, InnerOptimizer};
pub use error::{Error, Result};
pub use group::Group;
pub use model::{sync_model, verify_parameters};
/// Ways to send gradients in fewer bytes, for [`DistributedDataParallel::with_hook`].
pub use phalanx_compress as compress;
/// A group for tensors on GPUs.
#[cfg(feature = "cuda")]
pub use phalanx_nccl::HybridGroup;
pub use phalanx_train::{
    Batch, DdpConfig, DistributedSampler, Epoch, MissingGradients, Overlap, SamplerState, SgdParams, Share,
    Tail, Version,
};
pub use scaler::LossScaler;
pub use sgd::Sgd;
pub use shard::{ShardConfig, Sharded, Stage, Unit, Units};
pub use sync_batch_norm::SyncBatchNorm;
pub use tensor::{
    all_gather, all_reduce, all_to_all, broadcast, gather, recv, recv_any, reduce, reduce_scatter, scan,
    scatter, send,
};

/// The guide's pages, whose programs are tests here.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../docs/guide/candle.md")]
    struct Candle;

    #[doc = include_str!("../../../docs/guide/checkpoints.md")]
    struct Checkpoints;
}

/// The snippets of the page that maps names, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference/coming-from.md")]
struct ComingFrom;

/// The loop of the page about data-parallel training, as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference/ddp.md")]
struct Ddp;

/// The loop of the page about sharded training, as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference/sharding.md")]
struct Sharding;

/// The loop of the page about training that communicates seldom, as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference/low-communication.md")]
struct LowCommunication;
