//! Collectives of ferrotorch's tensors on GPUs over NCCL, with the names and results of `ferrotorch-distributed`: [`HybridBackend`], [`gpu_allreduce`],
//! [`gpu_broadcast`].
//!
//! **This was verified on one GPU, not on several**: with one rank over NCCL, and with two that share it over the host. With a GPU for each rank it has run on a double
//! of CUDA and NCCL: `scripts/cuda-on-double` shows that memory and streams are used as their interfaces want it.
//!
//! The rest of ferrotorch's adapter is [`phalanx_ferrotorch`]. This is a crate of its own since `ferrotorch-gpu` 0.6.2 compiles with cudarc before 0.19.10
//! only: a program that has candle with CUDA besides, which needs 0.19.10, cannot have both. The CUDA libraries are loaded when the program runs. Where there is
//! no `nvcc` that cudarc could ask for the version, `CUDARC_CUDA_VERSION=12080` tells it when it is built.
//!
//! # Example
//! ```no_run
//! use ferrotorch_core::creation;
//! use ferrotorch_gpu::{GpuDevice, tensor_to_gpu};
//! use phalanx_ferrotorch::{Backend, Group, ReduceOp};
//! use phalanx_ferrotorch_gpu::{HybridBackend, gpu_allreduce};
//!
//! let group = Group::init()?;
//! let device = GpuDevice::new(group.rank())?; // one host: each rank takes a GPU of its own
//! let backend = HybridBackend::over(&group, &device)?;
//! let ones = tensor_to_gpu(&creation::ones::<f32>(&[2, 3])?, &device)?;
//! let sum = gpu_allreduce(&ones, &backend, ReduceOp::Sum)?; // on the GPU: world_size everywhere
//! # let _ = sum;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use ferrotorch_core::{FerrotorchError, FerrotorchResult, Tensor};
use ferrotorch_gpu::{GpuDevice, GpuError, GpuFloat, GpuTensor, tensor_to_cpu, tensor_to_gpu};
use phalanx::ProcessGroup;
use phalanx_ferrotorch::{Backend, ReduceOp, TcpBackend, allreduce, broadcast};
use phalanx_nccl::{DeviceBuffer, DeviceElement, Fallback, HybridGroup, Stream, Work};
use std::any::Any;

/// The variable by which `ferrotorch-distributed` lets tensors of GPUs go over the host, whatever its value.
pub const ENABLE_FALLBACK: &str = "FERROTORCH_ENABLE_GPU_FALLBACK";

/// Ranks with a GPU each: messages, barriers and collectives of the host's tensors go over the host as with any backend, those of GPU tensors over NCCL.
///
/// Ranks agree about NCCL's id among themselves. Where a rank lacks NCCL that is an error on all ranks, unless all have [`ENABLE_FALLBACK`] or
/// [`phalanx_nccl::ENABLE_FALLBACK`] set: then GPU tensors go over the host, with a warning at each use.
#[derive(Debug)]
pub struct HybridBackend(HybridGroup);

impl HybridBackend {
    /// Joins `world_size` processes as `rank`, as [`TcpBackend::new`] does, with `device` as this rank's GPU.
    ///
    /// # Errors
    /// As for [`TcpBackend::new`] and [`over`](Self::over).
    pub fn new(
        rank: usize,
        world_size: usize,
        master_addr: &str,
        device: &GpuDevice,
    ) -> FerrotorchResult<Self> {
        Self::over(&TcpBackend::new(rank, world_size, master_addr)?, device)
    }

    /// The ranks of another backend, with `device` as this rank's GPU. Collective: all of them call it.
    ///
    /// # Errors
    /// A rank has no NCCL and may not do without, or another NCCL; two ranks have one GPU; a rank does not come in time.
    pub fn over(backend: &dyn Backend, device: &GpuDevice) -> FerrotorchResult<Self> {
        let (group, ordinal) = (backend.group(), device.ordinal());
        let hybrid = if may_go_over_the_host() {
            HybridGroup::with_fallback(group, ordinal, Fallback::WithoutNccl)
        } else {
            HybridGroup::new(group, ordinal)
        };
        hybrid.map(Self).map_err(told)
    }

    /// Waits until this rank's GPU has done all collectives that were begun.
    ///
    /// # Errors
    /// One of them has failed, or is not done within the group's time limit.
    pub fn synchronize_nccl(&self) -> FerrotorchResult<()> {
        self.0.synchronize().map_err(told)
    }
}

impl Backend for HybridBackend {
    fn group(&self) -> &ProcessGroup {
        self.0.host()
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

/// The GPUs of a backend that has some.
fn gpus(backend: &dyn Backend) -> Option<&HybridGroup> {
    backend.as_any()?.downcast_ref().map(|HybridBackend(group)| group)
}

fn may_go_over_the_host() -> bool {
    std::env::var_os(ENABLE_FALLBACK).is_some()
}

/// A new tensor on the same GPU with the values of all ranks combined. All ranks pass one of the same number of elements.
///
/// Costs a copy on the GPU, and waits until it has the result. Over a backend without GPUs it is an error, unless [`ENABLE_FALLBACK`] is set: then values are
/// copied to the host and back, with a warning.
///
/// # Errors
/// The backend has no GPUs, or the tensor is on another GPU than the backend's; what CUDA says. The others as for [`allreduce`].
#[track_caller]
pub fn gpu_allreduce<T: GpuFloat + DeviceElement>(
    tensor: &GpuTensor<T>,
    backend: &dyn Backend,
    op: ReduceOp,
) -> FerrotorchResult<GpuTensor<T>> {
    match gpus(backend) {
        Some(gpus) => on_copy("gpu_allreduce", tensor, gpus, |copy| gpus.all_reduce(copy, op.into())),
        None => on_host("gpu_allreduce", tensor, |values| allreduce(values, backend, op)),
    }
}

/// A new tensor on the same GPU with the values that `tensor` has on rank `root`. All ranks pass one of the same number of elements.
///
/// Costs, and needs of the backend, what [`gpu_allreduce`] does.
///
/// # Errors
/// There is no such root. The others as for [`gpu_allreduce`].
#[track_caller]
pub fn gpu_broadcast<T: GpuFloat + DeviceElement>(
    tensor: &GpuTensor<T>,
    backend: &dyn Backend,
    root: usize,
) -> FerrotorchResult<GpuTensor<T>> {
    match gpus(backend) {
        Some(gpus) => on_copy("gpu_broadcast", tensor, gpus, |copy| gpus.broadcast(copy, root)),
        None => on_host("gpu_broadcast", tensor, |values| broadcast(values, backend, root)),
    }
}

/// Performs a collective on a copy of `tensor`, behind what ferrotorch has enqueued so far.
#[allow(unsafe_code)]
#[track_caller]
fn on_copy<T: GpuFloat + DeviceElement>(
    what: &str,
    tensor: &GpuTensor<T>,
    gpus: &HybridGroup,
    perform: impl FnOnce(&mut DeviceBuffer<T>) -> phalanx::Result<Work>,
) -> FerrotorchResult<GpuTensor<T>> {
    let (own, backends) = (tensor.device().ordinal(), gpus.device().ordinal());
    if own != backends {
        return Err(refused(format!("{what}: the tensor is on GPU {own}, the backend's is {backends}")));
    }
    let copy = tensor.try_clone().map_err(of_cuda)?;
    let stream = tensor.device().stream();
    // SAFETY: it is a stream of the GPU that both have the ordinal of, whose primary context both use. `stream` keeps it until the end of this function, when
    // nothing here uses it any more.
    let behind = unsafe { Stream::from_raw(gpus.device(), stream.cu_stream().cast()) };
    // SAFETY: `copy` has as many elements there. Nobody else knows it, and it lives until the operation is over: if that is not certain, for ever.
    let buffer = unsafe { DeviceBuffer::from_raw(&behind, copy.cu_device_ptr(), copy.numel()) };
    let done = buffer.and_then(|mut buffer| perform(&mut buffer)?.wait());
    if let Err(error) = done {
        std::mem::forget(copy);
        return Err(told(error));
    }
    Ok(copy)
}

/// Performs a collective on the host, if that is allowed.
#[track_caller]
fn on_host<T: GpuFloat>(
    what: &str,
    tensor: &GpuTensor<T>,
    perform: impl FnOnce(&Tensor<T>) -> FerrotorchResult<Tensor<T>>,
) -> FerrotorchResult<GpuTensor<T>> {
    if !may_go_over_the_host() {
        return Err(refused(format!(
            "{what}: the backend has no GPUs; make a HybridBackend, or set {ENABLE_FALLBACK} to copy values to the host and back"
        )));
    }
    tracing::warn!(
        collective = what,
        "a GPU's tensor is copied to the host and back, since {ENABLE_FALLBACK} is set and the backend has no GPUs"
    );
    let combined = perform(&tensor_to_cpu(tensor)?)?;
    tensor_to_gpu(&combined, tensor.device()).map_err(of_cuda)
}

fn of_cuda(error: GpuError) -> FerrotorchError {
    refused(error.to_string())
}

fn told(error: phalanx::Error) -> FerrotorchError {
    refused(error.to_string())
}

fn refused(message: impl Into<String>) -> FerrotorchError {
    FerrotorchError::InvalidArgument { message: message.into() }
}
