//! Collectives on candle tensors.
//!
//! The functions follow the methods of [`ProcessGroup`] of the same names, with the same contract among ranks. Tensors
//! live where the [`Group`] reaches them and hold any type that candle and phalanx share: f32, f64, f16, bf16, u8, u32, i16, i32 and i64.
//! They are seen as flat rows of elements: ranks must agree on type, number and place, not on shape.
//!
//! None of them is recorded for the backward pass.
//!
//! # On a GPU
//! An operation is put behind what candle has enqueued, and ahead of what it enqueues next; the call does not wait for it. What goes wrong later is
//! an error of the next call, and of `HybridGroup::synchronize`.
//!
//! # Errors
//! Of all functions here, besides the group's own errors: [`phalanx::Error::Unsupported`] for a tensor on a device that the group does not
//! reach, or of a type that it has not there, and [`phalanx::Error::Misuse`] for one that cannot be changed in place
//! because its elements do not lie in row-major order. In both cases nothing was sent.

#[cfg(feature = "cuda")]
use crate::cuda;
use crate::element::{bytes_mut, read, unsupported_dtype, with_element};
use crate::group::Reach;
use crate::{Group, Result};
use candle_core::{Device, Tensor};
use phalanx::error::OpKind;
use phalanx::{CallSite, Element, Error, ProcessGroup, ReduceOp};
#[cfg(feature = "cuda")]
use phalanx_nccl::{Batch, DeviceBuffer};

/// Combines `tensor` over the group, in place; every rank ends with the same bits.
///
/// Views that share the tensor's memory see the change.
///
/// # Examples
/// ```
/// use candle_core::{Device, Tensor};
/// use phalanx::{ReduceOp, threads};
///
/// std::thread::scope(|s| {
///     for group in threads(3) {
///         s.spawn(move || {
///             let tensor = Tensor::full(group.rank() as f32, (2, 2), &Device::Cpu).unwrap();
///             phalanx_candle::all_reduce(&group, &tensor, ReduceOp::Sum).unwrap();
///             assert_eq!(tensor.to_vec2::<f32>().unwrap(), [[3.0; 2]; 2]); // 0 + 1 + 2
///         });
///     }
/// });
/// ```
#[track_caller]
pub fn all_reduce(group: &impl Group, tensor: &Tensor, op: ReduceOp) -> Result<()> {
    Collective::AllReduce(op).run(group, tensor)
}

/// Overwrites `tensor` on every rank with its contents on rank `root`, in place.
///
/// Views that share the tensor's memory see the change.
#[track_caller]
pub fn broadcast(group: &impl Group, tensor: &Tensor, root: usize) -> Result<()> {
    Collective::Broadcast { root }.run(group, tensor)
}

/// Combines `tensor` over the group into the one on rank `root`, in place. On the other ranks its contents are
/// unspecified afterwards.
#[track_caller]
pub fn reduce(group: &impl Group, tensor: &Tensor, op: ReduceOp, root: usize) -> Result<()> {
    Collective::Reduce { op, root }.run(group, tensor)
}

/// The tensors of all ranks, concatenated along the first dimension in rank order.
///
/// # Shape
/// `[n, …]` on each rank becomes `[world_size * n, …]`; a scalar becomes `[world_size]`.
#[track_caller]
pub fn all_gather(group: &impl Group, tensor: &Tensor) -> Result<Tensor> {
    let world_size = group.host().world_size();
    let mut shape = tensor.dims().to_vec();
    match shape.first_mut() {
        Some(rows) => *rows *= world_size,
        None => shape.push(world_size),
    }
    match Reach::of(group, OpKind::AllGather, tensor.device())? {
        Reach::Host(group) => with_element!(tensor.dtype(),
            T => {
                let mine = read(tensor, <[T]>::to_vec)?;
                let mut all = vec![T::default(); mine.len() * world_size];
                group.all_gather(&mine, &mut all)?;
                Ok(Tensor::from_vec(all, shape, &Device::Cpu)?)
            },
            _ => Err(unsupported_dtype(group, OpKind::AllGather, tensor.dtype()).into()),
        ),
        #[cfg(feature = "cuda")]
        Reach::Device(hybrid) => cuda::all_gather(hybrid, tensor, shape, CallSite::caller()),
    }
}

/// Combines the tensors of all ranks and deals the result out along the first dimension: rank `r` gets the `r`-th of
/// `world_size` equal parts.
///
/// # Shape
/// `[world_size * n, …]` on each rank becomes `[n, …]`.
/// # Cost
/// On a GPU, a copy of the tensor besides.
/// # Errors
/// [`phalanx::Error::Misuse`] if the first dimension is not a multiple of the world size.
#[track_caller]
pub fn reduce_scatter(group: &impl Group, tensor: &Tensor, op: ReduceOp) -> Result<Tensor> {
    let (reach, group) = (Reach::of(group, OpKind::ReduceScatter, tensor.device())?, group.host());
    let mut shape = tensor.dims().to_vec();
    match shape.first_mut() {
        Some(rows) if rows.is_multiple_of(group.world_size()) => *rows /= group.world_size(),
        _ => {
            let what = format!(
                "the first dimension of {shape:?} must be a multiple of the {} ranks",
                group.world_size()
            );
            return Err(Error::misuse(OpKind::ReduceScatter, what).into());
        }
    }
    match reach {
        Reach::Host(group) => with_element!(tensor.dtype(),
            T => {
                let all = read(tensor, <[T]>::to_vec)?;
                let mut mine = vec![T::default(); all.len() / group.world_size()];
                group.reduce_scatter(&all, &mut mine, op)?;
                Ok(Tensor::from_vec(mine, shape, &Device::Cpu)?)
            },
            _ => Err(unsupported_dtype(group, OpKind::ReduceScatter, tensor.dtype()).into()),
        ),
        #[cfg(feature = "cuda")]
        Reach::Device(hybrid) => cuda::reduce_scatter(hybrid, tensor, shape, op, CallSite::caller()),
    }
}

/// A collective that reads and overwrites one buffer.
#[derive(Clone, Copy)]
enum Collective {
    AllReduce(ReduceOp),
    Broadcast { root: usize },
    Reduce { op: ReduceOp, root: usize },
}

impl Collective {
    fn kind(self) -> OpKind {
        match self {
            Self::AllReduce(_) => OpKind::AllReduce,
            Self::Broadcast { .. } => OpKind::Broadcast,
            Self::Reduce { .. } => OpKind::Reduce,
        }
    }

    fn perform<T: Element>(self, group: &ProcessGroup, elements: &mut [T]) -> phalanx::Result<()> {
        match self {
            Self::AllReduce(op) => group.all_reduce(elements, op),
            Self::Broadcast { root } => group.broadcast(elements, root),
            Self::Reduce { op, root } => group.reduce(elements, op, root),
        }
    }

    #[cfg(feature = "cuda")]
    fn put<'b, T: cuda::OnGpu>(
        self,
        batch: &mut Batch<'b>,
        buffer: &'b mut DeviceBuffer<T>,
    ) -> phalanx::Result<()> {
        match self {
            Self::AllReduce(op) => batch.all_reduce(buffer, op),
            Self::Broadcast { root } => batch.broadcast(buffer, root),
            Self::Reduce { op, root } => batch.reduce(buffer, op, root),
        }
    }

    #[track_caller]
    fn run(self, group: &impl Group, tensor: &Tensor) -> Result<()> {
        let (site, reach) = (CallSite::caller(), Reach::of(group, self.kind(), tensor.device())?);
        if !tensor.is_contiguous() {
            let what = "the elements do not lie in row-major order; pass `tensor.contiguous()?` and use that";
            return Err(Error::misuse(self.kind(), what).into());
        }
        // Candle makes the call, and passes no call site on.
        let host = &group.host().with_call_site(site.clone());
        with_element!(tensor.dtype(),
            T => match reach {
                Reach::Host(_) => {
                    Ok(bytes_mut(tensor, |bytes| self.perform::<T>(host, bytemuck::cast_slice_mut(bytes)))??)
                }
                #[cfg(feature = "cuda")]
                Reach::Device(hybrid) => {
                    cuda::in_place::<T>(hybrid, tensor, site, |batch, buffer| self.put(batch, buffer))
                }
            },
            _ => Err(unsupported_dtype(host, self.kind(), tensor.dtype()).into()),
        )
    }
}
