//! NVIDIA's NCCL and the CUDA driver: looked for at run time, so that programs build and start on machines that have neither.
//!
//! Three layers: `sys` has the types and functions of C, `result` makes errors of their codes, and what is public here can't be used
//! wrongly, except where it says `unsafe`. [`Nccl::load`] and [`Cuda::load`] find the libraries, or say what they tried.
//!
//! It has been tested with the real library where there is no GPU, and with a double of both libraries on host memory; **not yet on a GPU**.

mod backend;
mod batch;
mod buffer;
mod call;
mod comm;
mod context;
mod device;
mod element;
mod load;
mod maps;
mod memory;
mod result;
mod stream;
mod sys;
mod wait;

pub use backend::{NcclBackend, Work};
pub use batch::Batch;
pub use buffer::DeviceBuffer;
pub use call::{Call, Kind};
pub use comm::{Communicator, UniqueId};
pub use device::Device;
pub use element::{DataType, DeviceElement, F8E4M3, F8E5M2, Reduction};
pub use load::{CUDA_LIBRARY, Cuda, NCCL_LIBRARY, Nccl, Version};
pub use stream::{Event, Stream};
