//! Data-parallel training for [burn](https://burn.dev) over [phalanx].
//!
//! Three lines turn a program that trains in one process into one that trains in many: join the group, wrap the module, and call
//! [`backward`](DistributedDataParallel::backward) there instead of on the loss. Each rank works on its share of a batch, as
//! [`DistributedSampler`] deals it, and ends each step with the gradients of the whole, for any of burn's optimizers.
//!
//! The collectives themselves work on tensors too: [`all_reduce`], [`broadcast`], [`reduce`], [`all_gather`], [`gather`], [`reduce_scatter`],
//! [`scatter`], [`all_to_all`], [`scan`], and messages: [`send`], [`recv`], [`recv_any`].
//!
//! Where an optimizer remembers more than a rank has memory for, [`Sharded`] deals that out over the ranks. Where the network is slow, [`DiLoCo`] lets each
//! rank train for itself and averages the weights now and then.
//!
//! With the feature `learner`, `learner::DataParallel` has the training loop of `burn-train` run on all ranks.
//!
//! [`checkpoint`] saves what a training needs to go on, on another number of ranks too: the module, the state of burn's optimizer, the place in the data.
//!
//! Tensors are on any backend of burn's. What is sent goes through the host's memory.
//!
//! This is the adapter of [`phalanx_train`] for burn: what steps, buckets and samplers do is there, and the same for other libraries. Of burn it needs
//! `burn-core` and `burn-optim`. The backend is the program's.
//!
//! # Example
//! Two ranks, here two threads of one process, fit a line through four points, each seeing half of them:
//!
//! ```
//! use burn::nn::LinearConfig;
//! use burn::nn::loss::{MseLoss, Reduction};
//! use burn::optim::{ModuleOptimizer, SgdConfig};
//! use burn::tensor::{Device, Tensor};
//! use phalanx::ProcessGroup;
//! use phalanx_burn::DistributedDataParallel;
//!
//! fn train(group: &ProcessGroup) -> phalanx_burn::Result<Vec<f32>> {
//!     let device = Device::default().autodiff();
//!     let mut model = LinearConfig::new(1, 1).init(&device); // initialised at random: different on each rank
//!     let mut optimizer: ModuleOptimizer = SgdConfig::new().init();
//!
//!     let mut ddp = DistributedDataParallel::new(&mut model, group, Default::default())?; // now equal
//!     let mine = [[[-1.0], [0.0]], [[1.0], [2.0]]][group.rank()];
//!     let x = Tensor::<2>::from_data(mine, &device);
//!     let y = x.clone() * 3.0 + 1.0;
//!     for _ in 0..200 {
//!         let loss = MseLoss::new().forward(model.forward(x.clone()), y.clone(), Reduction::Mean);
//!         let grads = ddp.backward(&model, loss)?; // of the mean over all four points, on both ranks
//!         model = optimizer.step(0.1, model, grads);
//!     }
//!     let numbers = |tensor: Tensor<1>| tensor.into_data().try_to_vec::<f32>().unwrap();
//!     Ok([numbers(model.weight.val().flatten(0, 1)), numbers(model.bias.unwrap().val())].concat())
//! }
//!
//! let fitted = phalanx::on_threads(2, |group| Ok(train(&group).unwrap()))?;
//! assert_eq!(fitted[0], fitted[1]); // to the last bit
//! assert!((fitted[0][0] - 3.0).abs() < 1e-3 && (fitted[0][1] - 1.0).abs() < 1e-3);
//! # Ok::<(), phalanx::Error>(())
//! ```
//!
//! With processes instead of threads only one line changes: `let group = phalanx::init()?`.

mod arrays;
pub mod checkpoint;
mod collectives;
mod data_parallel;
mod diloco;
mod elements;
mod gradients;
#[cfg(feature = "learner")]
pub mod learner;
mod model;
mod names;
mod sharded;
mod trained;

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
    LossScaler, MissingGradients, Overlap, Result, SamplerState, Sgd, SgdParams, ShardConfig, Share, Stage,
    Tail, Version,
};
pub use sharded::Sharded;

/// The guide's page, whose program is a test here.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/burn.md")]
struct Guide;
