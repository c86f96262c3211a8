//! NVIDIA's NCCL and the CUDA driver: looked for at run time, so that programs build and start on machines that have neither.
//!
//! Three layers: `sys` has the types and functions of C, `result` makes errors of their codes, and what is public here can't be used
//! wrongly, except where it says `unsafe`. [`Nccl::load`] and [`Cuda::load`] find the libraries, or say what they tried.
//!
//! It has been tested with the real library where there is no GPU, and with a double of both libraries on host memory; **not yet on a GPU**.

#![allow(dead_code, reason = "communicators and buffers are about to use all of it")]

mod load;
mod maps;
mod result;
mod sys;

pub use load::{CUDA_LIBRARY, Cuda, NCCL_LIBRARY, Nccl, Version};
