//! Data-parallel training over [phalanx], for any library of tensors.
//!
//! A [`Reducer`] makes the gradients of several ranks those of the whole batch, in buckets that are on their way while the backward pass finds
//! more of them. [`sync_model`] lets ranks begin with the same weights, [`verify_parameters`] tells whether they still have them, and
//! [`DistributedSampler`] deals out the data.
//!
//! All of it knows tensors by the trait [`Tensor`] alone: element type, dimensions, memory, zeros, conversion, sum. A library joins by
//! an adapter, which implements that and tells the reducer when a gradient is complete; `phalanx-candle` is one. For programs that have their numbers in
//! `Vec`s there is [`Array`]. `docs/reference/tensor-adapters.md` says how an adapter is written.
//!
//! For libraries that lack them there are optimizers, [`AdamW`] and [`Sgd`], and [`checkpoint`]s. [`DiLoCo`] is training that communicates seldom, and in [`Sharded`]
//! training (ZeRO-1 and 2) each rank keeps a part only of what the optimizer knows.
//!
//! What is not here: graphs and layers, and what works inside of a graph. Weights that come and go with a model's units (ZeRO-3), and batch normalisation over
//! ranks but for its arithmetic ([`BatchMoments`]), are in `phalanx-candle`, made of operations in candle's graph.
//!
//! # Examples
//! Two ranks, here two threads of one process, fit a line through four points, each seeing half of them, with gradients written by hand:
//!
//! ```
//! use phalanx::{ProcessGroup, threads};
//! use phalanx_train::{Array, DdpConfig, Parameter, Reducer, Share, sync_model};
//!
//! fn train(group: &ProcessGroup) -> phalanx_train::Result<Vec<f32>> {
//!     let start = 10.0 * group.rank() as f32; // different on each rank
//!     let (mut bias, mut slope) = (Array::from(vec![start]), Array::from(vec![start]));
//!     sync_model([("bias", &mut bias), ("slope", &mut slope)], group, 0)?; // now equal
//!
//!     let parameters = [Parameter::of("bias", &bias), Parameter::of("slope", &slope)];
//!     let config = DdpConfig::default();
//!     let overlap = config.overlap.choose(group)?;
//!     let mut reducer = Reducer::new(parameters, group, config.bucket_cap_bytes, overlap)?;
//!
//!     let (mut bias, mut slope): (Vec<f32>, Vec<f32>) = (bias.try_into()?, slope.try_into()?);
//!     let mine = [[-1.0f32, 0.0], [1.0, 2.0]][group.rank()];
//!     for _ in 0..200 {
//!         // Of the mean over two points of (slope × x + bias − y)².
//!         let errors = mine.map(|x| slope[0] * x + bias[0] - (3.0 * x + 1.0));
//!         reducer.begin(Share::EQUAL, [0, 1])?;
//!         reducer.ready(0, Array::from(vec![errors[0] + errors[1]]))?;
//!         reducer.ready(1, Array::from(vec![errors[0] * mine[0] + errors[1] * mine[1]]))?;
//!         for (weight, grad) in [&mut bias, &mut slope].into_iter().zip(reducer.finish()?) {
//!             let grad: Vec<f32> = grad.expect("both ranks have one").try_into()?; // of all four points
//!             weight[0] -= 0.1 * grad[0];
//!         }
//!     }
//!     Ok([slope, bias].concat())
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

mod array;
mod batch_norm;
mod bucket_plan;
pub mod checkpoint;
mod clip;
mod config;
mod diloco;
#[doc(hidden)]
pub mod element;
mod error;
pub mod memory;
#[doc(hidden)]
pub mod missing;
#[doc(hidden)]
pub mod model;
mod optim;
mod parameter;
mod plan;
mod ready_buckets;
mod reducer;
mod sampler;
mod scaler;
mod shard;
mod share;
mod step;
mod step_shares;
mod tensor;
mod verify;
mod version;
mod weights;

pub use array::Array;
pub use batch_norm::{BatchMoments, Standardise};
pub use bucket_plan::Bucket;
pub use clip::{clip_factor, clip_grad_norm, shorten, sum_of_squares};
pub use config::{DdpConfig, Overlap};
pub use diloco::{DiLoCo, DiLoCoConfig};
pub use error::{Error, Result};
pub use missing::MissingGradients;
pub use model::{sync_buffers, sync_model};
pub use optim::{AdamW, AdamWParams, AdamWStep, Sgd, SgdParams, SgdStep};
/// Ways to send gradients in fewer bytes, for [`Reducer::set_hook`].
pub use phalanx_compress as compress;
pub use plan::{Gradients, Parameter, Plan};
pub use reducer::{Reducer, sync_gradients};
pub use sampler::{Batch, DistributedSampler, Epoch, SamplerState, Tail};
pub use scaler::{LossScaler, are_finite};
/// The parts of which an adapter with a graph makes its own sharded training.
#[doc(hidden)]
pub use shard::parts as shard_parts;
pub use shard::{ShardConfig, Sharded, Stage};
pub use share::{Part, Share};
#[doc(hidden)]
pub use step_shares::{ShareSums, StepShares};
pub use tensor::{Tensor, adamw_on_host, sgd_on_host};
pub use verify::verify_parameters;
pub use version::Version;
pub use weights::Weights;

/// The adapter of the page about this crate, as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference/tensor-adapters.md")]
struct Train;
