//! NVIDIA's NCCL and the CUDA driver: looked for at run time, so that programs build and start on machines that have neither.
//!
//! [`HybridGroup`] is one group for memory of the host and of devices. Its half for devices is [`NcclGroup`], which gives a process group collectives on
//! device memory, with the contract and the errors that it has on the host; or, without NCCL and only if that is [allowed](Fallback), the host itself. Below are
//! [`Communicator`], NCCL's own with deadlines, and [`DeviceBuffer`], whose uses wait for each other on the device.
//!
//! Three layers: `sys` has the types and functions of C, `result` makes errors of their codes, and what is public here can't be used
//! wrongly, except where it says `unsafe`. [`Nccl::load`] and [`Cuda::load`] find the libraries, or say what they tried.
//!
//! Deliberately absent: CUDA at build time, kernels of our own, host memory as a way that device data takes unasked.
//!
//! It has been tested on one GPU, with one rank and with ranks that share it, and with a double of both libraries on host memory; **not yet on several GPUs**.
//! Why it is made so, and how to tell that it was wrong, is in `docs/reference/nccl.md` and `docs/reference/hybrid.md`.
//!
//! # Examples
//! ```
//! use phalanx_core::{Error, Result};
//! use phalanx_group::{ProcessGroup, ReduceOp};
//! use phalanx_nccl::{DeviceBuffer, NcclGroup};
//!
//! fn train(group: &ProcessGroup) -> Result<()> {
//!     let devices = NcclGroup::new(group, group.local_rank())?; // this rank's GPU: always said, never guessed
//!     let mut grads = DeviceBuffer::from_host(devices.stream(), &[1.0f32; 1000])?;
//!     let work = devices.all_reduce(&mut grads, ReduceOp::Avg)?; // the device goes on with it
//!     // … more work for the device …
//!     work.wait()?; // all ranks meant the same, and this device is done
//!     assert_eq!(grads.to_host(devices.stream(), group.timeout())?, [1.0; 1000]);
//!     devices.finalize()
//! }
//!
//! // Without NCCL or without a GPU this says what was tried, on every rank.
//! match train(&phalanx_group::init()?) {
//!     Ok(()) => {}
//!     Err(error) => assert!(matches!(error, Error::Unavailable { .. }), "{error}"),
//! }
//! # Ok::<(), Error>(())
//! ```

mod abilities;
mod action;
mod batch;
mod blocking;
mod buffer;
mod call;
mod comm;
mod comm_file;
mod context;
mod device;
mod device_memory;
mod element;
mod encryption;
mod error_text;
mod fallback;
mod group;
mod hybrid;
mod id;
mod in_order;
mod joint_health;
mod last_error;
mod launch;
mod load;
mod mapped_files;
mod memory;
mod nccl_thread;
mod on_host;
mod operation;
mod pinned;
mod pool;
mod python_paths;
mod queue;
mod result;
#[cfg(feature = "cudarc")]
mod slice;
mod staging;
mod stream;
mod sys;
mod wait;

pub use batch::Batch;
pub use buffer::DeviceBuffer;
pub use call::{Call, Kind};
pub use comm::Communicator;
pub use comm_file::DistributedConfig;
pub use device::Device;
pub use element::{DataType, DeviceElement, F8E4M3, F8E5M2};
pub use fallback::{ENABLE_FALLBACK, Fallback};
pub use group::{NcclGroup, Work};
pub use hybrid::{HybridGroup, Place};
pub use id::UniqueId;
pub use load::{CUDA_LIBRARY, Cuda, NCCL_LIBRARY, Nccl, Version};
pub use queue::Event;
pub use stream::Stream;

/// The page's example runs.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference/nccl.md")]
struct Page;

/// As above.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/reference/hybrid.md")]
struct PageOfHybrids;
