//! Data-parallel training for [tch](https://github.com/LaurentMazare/tch-rs), the bindings of libtorch, over [phalanx].
//!
//! Three lines turn a program that trains in one process into one that trains in many: join the group, wrap the variables, and call
//! [`backward`](DistributedDataParallel::backward) there instead of on the loss. Each rank works on its share of a batch, as
//! [`DistributedSampler`] deals it, and ends each step with the gradients of the whole, for any of tch's optimizers.
//!
//! The collectives themselves work on tensors too, in place: [`all_reduce`], [`broadcast`], [`reduce`], [`scan`], [`all_gather`], [`gather`],
//! [`reduce_scatter`], [`scatter`], [`all_to_all`], and messages: [`send`], [`recv`], [`recv_any`].
//!
//! Where an optimizer remembers more than a rank has memory for, [`Sharded`] deals that out over the ranks. Where the network is slow, [`DiLoCo`] lets each
//! rank train for itself and averages the weights now and then. [`checkpoint`] saves variables so that any number of ranks goes on.
//!
//! Tensors are on the CPU. libtorch itself comes with PyTorch's Python package, or alone: how, and how to build with it, is on the guide's page about tch.
//!
//! This is the adapter of [`phalanx_train`] for tch: what steps, buckets and samplers do is there, and the same for other libraries.
//!
//! # Example
//! Two ranks, here two threads of one process, fit a line through four points, each seeing half of them:
//!
//! ```
//! use phalanx::ProcessGroup;
//! use phalanx_tch::DistributedDataParallel;
//! use tch::nn::{Module, OptimizerConfig};
//! use tch::{Device, Reduction, Tensor, nn};
//!
//! fn train(group: &ProcessGroup) -> phalanx_tch::Result<[f64; 2]> {
//!     let store = nn::VarStore::new(Device::Cpu);
//!     let model = nn::linear(store.root(), 1, 1, Default::default()); // at random: different on each rank
//!     let mut optimizer = nn::Sgd::default().build(&store, 0.1).expect("libtorch has it");
//!
//!     let mut ddp = DistributedDataParallel::new(&store, group, Default::default())?; // now equal
//!     let x = Tensor::from_slice2(&[[[-1f32], [0.0]], [[1.0], [2.0]]][group.rank()]);
//!     let y = &x * 3.0 + 1.0;
//!     for _ in 0..200 {
//!         optimizer.zero_grad();
//!         let loss = model.forward(&x).mse_loss(&y, Reduction::Mean);
//!         ddp.backward(&loss)?; // the gradients of the mean over all four points, on both ranks
//!         optimizer.step();
//!     }
//!     let number = |tensor: &Tensor| tensor.double_value(&[0]);
//!     Ok([number(&model.ws.view(-1)), number(model.bs.as_ref().expect("it has one"))])
//! }
//!
//! let fitted = phalanx::on_threads(2, |group| Ok(train(&group).unwrap()))?;
//! assert_eq!(fitted[0], fitted[1]); // to the last bit
//! assert!((fitted[0][0] - 3.0).abs() < 1e-3 && (fitted[0][1] - 1.0).abs() < 1e-3);
//! # Ok::<(), phalanx::Error>(())
//! ```
//!
//! With processes instead of threads only one line changes: `let group = phalanx::init()?`.

pub mod checkpoint;
mod collectives;
mod data_parallel;
mod diloco;
mod error;
mod memory;
mod model;
mod sharded;
mod torch;
mod variables;

pub use collectives::{
    all_gather, all_reduce, all_to_all, broadcast, gather, recv, recv_any, reduce, reduce_scatter, scan,
    scatter, send,
};
pub use data_parallel::DistributedDataParallel;
pub use diloco::DiLoCo;
pub use model::{sync_model, verify_parameters};
/// Ways to send gradients in fewer bytes, for [`DistributedDataParallel::with_hook`] and [`DiLoCo::with_hook`].
pub use phalanx_train::compress;
pub use phalanx_train::{
    AdamW, AdamWParams, Array, Batch, DdpConfig, DiLoCoConfig, DistributedSampler, Epoch, Error, Gradients,
    MissingGradients, Overlap, Result, SamplerState, Sgd, SgdParams, ShardConfig, Share, Stage, Tail,
    Version,
};
pub use sharded::Sharded;

/// The guide's page, whose program is a test here.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/tch.md")]
struct Guide;
