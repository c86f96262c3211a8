//! Collectives on candle tensors.
//!
//! The functions follow the methods of [`ProcessGroup`] of the same names, with the same contract among ranks. Tensors
//! live on the CPU and hold any type that candle and phalanx share: f32, f64, f16, bf16, u8, u32, i16, i32 and i64. They are
//! seen as flat rows of elements: ranks must agree on type and number, not on shape.
//!
//! None of them is recorded for the backward pass.
//!
//! # Errors
//! Of all functions here, besides the group's own errors: [`phalanx::Error::Unsupported`] for a tensor on another
//! device or of another type, and [`phalanx::Error::Misuse`] for one that cannot be changed in place
//! because its elements do not lie in row-major order. In both cases nothing was sent.

use crate::Result;
use crate::element::{bytes_mut, read, require_cpu, unsupported_dtype, with_element};
use candle_core::{Device, Tensor};
use phalanx::{CallSite, Element, Error, OpKind, ProcessGroup, ReduceOp};

/// Combines `tensor` over the group, in place; every rank ends with the same bits.
///
/// Views that share the tensor's memory see the change.
///
/// # Examples
/// ```
/// use candle_core::{Device, Tensor};
/// use phalanx::{ReduceOp, SimulatedBackend};
///
/// std::thread::scope(|s| {
///     for group in SimulatedBackend::create_group(3) {
///         s.spawn(move || {
///             let tensor = Tensor::full(group.rank() as f32, (2, 2), &Device::Cpu).unwrap();
///             phalanx_candle::all_reduce(&group, &tensor, ReduceOp::Sum).unwrap();
///             assert_eq!(tensor.to_vec2::<f32>().unwrap(), [[3.0; 2]; 2]); // 0 + 1 + 2
///         });
///     }
/// });
/// ```
#[track_caller]
pub fn all_reduce(group: &ProcessGroup, tensor: &Tensor, op: ReduceOp) -> Result<()> {
    Collective::AllReduce(op).run(group, tensor)
}

/// Overwrites `tensor` on every rank with its contents on rank `root`, in place.
///
/// Views that share the tensor's memory see the change.
#[track_caller]
pub fn broadcast(group: &ProcessGroup, tensor: &Tensor, root: usize) -> Result<()> {
    Collective::Broadcast { root }.run(group, tensor)
}

/// Combines `tensor` over the group into the one on rank `root`, in place. On the other ranks its contents are
/// unspecified afterwards.
#[track_caller]
pub fn reduce(group: &ProcessGroup, tensor: &Tensor, op: ReduceOp, root: usize) -> Result<()> {
    Collective::Reduce { op, root }.run(group, tensor)
}

/// The tensors of all ranks, concatenated along the first dimension in rank order.
///
/// # Shape
/// `[n, …]` on each rank becomes `[world_size * n, …]`; a scalar becomes `[world_size]`.
#[track_caller]
pub fn all_gather(group: &ProcessGroup, tensor: &Tensor) -> Result<Tensor> {
    require_cpu(group, OpKind::AllGather, tensor.device())?;
    let mut shape = tensor.dims().to_vec();
    match shape.first_mut() {
        Some(rows) => *rows *= group.world_size(),
        None => shape.push(group.world_size()),
    }
    with_element!(tensor.dtype(),
        T => {
            let mine = read(tensor, <[T]>::to_vec)?;
            let mut all = vec![T::default(); mine.len() * group.world_size()];
            group.all_gather(&mine, &mut all)?;
            Ok(Tensor::from_vec(all, shape, &Device::Cpu)?)
        },
        _ => Err(unsupported_dtype(group, OpKind::AllGather, tensor.dtype()).into()),
    )
}

/// Combines the tensors of all ranks and deals the result out along the first dimension: rank `r` gets the `r`-th of
/// `world_size` equal parts.
///
/// # Shape
/// `[world_size * n, …]` on each rank becomes `[n, …]`.
/// # Errors
/// [`phalanx::Error::Misuse`] if the first dimension is not a multiple of the world size.
#[track_caller]
pub fn reduce_scatter(group: &ProcessGroup, tensor: &Tensor, op: ReduceOp) -> Result<Tensor> {
    require_cpu(group, OpKind::ReduceScatter, tensor.device())?;
    let mut shape = tensor.dims().to_vec();
    match shape.first_mut() {
        Some(rows) if rows.is_multiple_of(group.world_size()) => *rows /= group.world_size(),
        _ => {
            let what = format!(
                "the first dimension of {shape:?} cannot be dealt out evenly to {} ranks",
                group.world_size()
            );
            return Err(Error::misuse(OpKind::ReduceScatter, what).into());
        }
    }
    with_element!(tensor.dtype(),
        T => {
            let all = read(tensor, <[T]>::to_vec)?;
            let mut mine = vec![T::default(); all.len() / group.world_size()];
            group.reduce_scatter(&all, &mut mine, op)?;
            Ok(Tensor::from_vec(mine, shape, &Device::Cpu)?)
        },
        _ => Err(unsupported_dtype(group, OpKind::ReduceScatter, tensor.dtype()).into()),
    )
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

    #[track_caller]
    fn run(self, group: &ProcessGroup, tensor: &Tensor) -> Result<()> {
        // Candle makes the call, and passes no call site on.
        let group = &group.with_call_site(CallSite::caller());
        require_cpu(group, self.kind(), tensor.device())?;
        if !tensor.is_contiguous() {
            let what = "the elements do not lie in row-major order; pass `tensor.contiguous()?` and use that";
            return Err(Error::misuse(self.kind(), what).into());
        }
        with_element!(tensor.dtype(),
            T => Ok(bytes_mut(tensor, |bytes| self.perform::<T>(group, bytemuck::cast_slice_mut(bytes)))??),
            _ => Err(unsupported_dtype(group, self.kind(), tensor.dtype()).into()),
        )
    }
}
