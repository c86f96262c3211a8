//! Collectives on tensors of libtorch.
//!
//! The functions follow the methods of [`ProcessGroup`] of the same names, with the same contract among ranks. Tensors are in the host's memory, where they are sent
//! from and received into without a copy. They hold floats of 16, 32 or 64 bits, or integers, and are seen as flat rows of elements: ranks must agree on
//! type and number, not on shape.
//!
//! None of them is recorded for the backward pass. What is changed in place is changed behind libtorch's back, as `torch.distributed` does it: don't change
//! what a backward pass still needs.
//!
//! # Errors
//! Of all functions here, besides the group's own errors: [`phalanx::Error::Unsupported`] for a tensor that is not on the CPU, is sparse, or has elements
//! that cannot be sent, such as complex ones; and [`phalanx::Error::Misuse`] for one that cannot be changed in place because its elements do not lie in row-major
//! order. In both cases nothing was sent.

use crate::Result;
use crate::error::told;
use crate::memory::{dtype, overlap, read, write};
use crate::torch::{dims, zeros};
use phalanx::backend::{BlockExchange, Buffers, Layout, Request};
use phalanx::error::OpKind;
use phalanx::{CallSite, Error, ProcessGroup, ReduceOp};
use tch::Tensor;

/// Messages of tensors have no tags.
const TAG: u64 = 0;

/// Combines `tensor` over the group, in place; every rank ends with the same bits.
///
/// # Examples
/// ```
/// use phalanx::ReduceOp;
/// use tch::Tensor;
///
/// phalanx::on_threads(3, |group| {
///     let mut tensor = Tensor::from_slice(&[group.rank() as f32; 4]);
///     phalanx_tch::all_reduce(&group, &mut tensor, ReduceOp::Sum).unwrap();
///     assert_eq!(tensor, Tensor::from_slice(&[3f32; 4])); // 0 + 1 + 2
///     Ok(())
/// })?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn all_reduce(group: &ProcessGroup, tensor: &mut Tensor, op: ReduceOp) -> Result<()> {
    let site = CallSite::caller();
    in_place(group, OpKind::AllReduce, tensor, site, |buffer| Request::AllReduce {
        buffers: Buffers::InPlace(buffer),
        reduce: op,
    })
}

/// Overwrites `tensor` on every rank with its elements on rank `root`, in place.
///
/// # Examples
/// ```
/// # use tch::Tensor;
/// phalanx::on_threads(2, |group| {
///     let mut weights = Tensor::from_slice(&[group.rank() as f32 + 0.5; 2]);
///     phalanx_tch::broadcast(&group, &mut weights, 1).unwrap();
///     assert_eq!(weights, Tensor::from_slice(&[1.5f32; 2]));
///     Ok(())
/// })?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn broadcast(group: &ProcessGroup, tensor: &mut Tensor, root: usize) -> Result<()> {
    let site = CallSite::caller();
    in_place(group, OpKind::Broadcast, tensor, site, |buffer| Request::Broadcast { buffer, root })
}

/// Combines `tensor` over the group into the one on rank `root`, in place. On the other ranks its elements are unspecified afterwards.
///
/// # Examples
/// ```
/// # use phalanx::ReduceOp;
/// # use tch::Tensor;
/// phalanx::on_threads(2, |group| {
///     let mut losses = Tensor::from_slice(&[group.rank() as f32; 2]);
///     phalanx_tch::reduce(&group, &mut losses, ReduceOp::Max, 0).unwrap();
///     assert!(group.rank() != 0 || losses == Tensor::from_slice(&[1f32; 2]));
///     Ok(())
/// })?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn reduce(group: &ProcessGroup, tensor: &mut Tensor, op: ReduceOp, root: usize) -> Result<()> {
    let site = CallSite::caller();
    in_place(group, OpKind::Reduce, tensor, site, |buffer| Request::Reduce { buffer, reduce: op, root })
}

/// Combines `tensor` with those of the ranks before, in place: rank `r` ends with the combination of ranks 0 to `r`.
///
/// # Examples
/// ```
/// # use phalanx::ReduceOp;
/// # use tch::Tensor;
/// phalanx::on_threads(3, |group| {
///     let mut samples = Tensor::from_slice(&[10i64]);
///     phalanx_tch::scan(&group, &mut samples, ReduceOp::Sum).unwrap();
///     assert_eq!(samples, Tensor::from_slice(&[[10i64], [20], [30]][group.rank()]));
///     Ok(())
/// })?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn scan(group: &ProcessGroup, tensor: &mut Tensor, op: ReduceOp) -> Result<()> {
    let site = CallSite::caller();
    in_place(group, OpKind::Scan, tensor, site, |buffer| Request::Scan {
        buffers: Buffers::InPlace(buffer),
        reduce: op,
    })
}

/// The tensors of all ranks, concatenated along the first dimension in rank order.
///
/// # Shape
/// `[n, …]` on each rank becomes `[world_size * n, …]`; a scalar becomes `[world_size]`.
///
/// # Examples
/// ```
/// # use tch::Tensor;
/// phalanx::on_threads(2, |group| {
///     let row = Tensor::from_slice(&[group.rank() as i64; 3]).view([1, 3]);
///     let rows = phalanx_tch::all_gather(&group, &row).unwrap();
///     assert_eq!(rows, Tensor::from_slice2(&[[0i64; 3], [1; 3]]));
///     Ok(())
/// })?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn all_gather(group: &ProcessGroup, tensor: &Tensor) -> Result<Tensor> {
    let site = CallSite::caller();
    let op = OpKind::AllGather;
    let mut all = zeros(dtype(op, tensor)?, &gathered(tensor, group.world_size()))?;
    let blocks = Layout::even(group.world_size(), all.numel());
    between(group, op, tensor, &mut all, site, |input, output| Request::AllGather {
        buffers: Buffers::Separate(input, output),
        blocks,
    })?;
    Ok(all)
}

/// The tensors of all ranks, concatenated along the first dimension in rank order, on rank `root`; `None` elsewhere.
///
/// # Shape
/// `[n, …]` on each rank becomes `[world_size * n, …]`; a scalar becomes `[world_size]`.
///
/// # Examples
/// ```
/// # use tch::Tensor;
/// phalanx::on_threads(2, |group| {
///     let loss = Tensor::from(group.rank() as f32);
///     let losses = phalanx_tch::gather(&group, &loss, 1).unwrap();
///     assert_eq!(losses, (group.rank() == 1).then(|| Tensor::from_slice(&[0f32, 1.0])));
///     Ok(())
/// })?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn gather(group: &ProcessGroup, tensor: &Tensor, root: usize) -> Result<Option<Tensor>> {
    let site = CallSite::caller();
    let (op, world_size) = (OpKind::Gather, group.world_size());
    let dtype = dtype(op, tensor)?;
    let blocks = Layout::even(world_size, tensor.numel() * world_size);
    let perform = |input: &[u8], output: Option<&mut [u8]>| {
        group.untyped(dtype).called_at(site).request(Request::Gather { input: Some(input), output, blocks, root })
    };
    if group.rank() != root {
        read(op, tensor, |input| perform(input, None))??;
        return Ok(None);
    }
    let mut all = zeros(dtype, &gathered(tensor, world_size))?;
    write(op, &mut all, |output| read(op, tensor, |input| perform(input, Some(output))))???;
    Ok(Some(all))
}

/// Deals the input of rank `root` out along the first dimension: rank `r` gets the `r`-th of `world_size` equal parts in `output`, in place.
///
/// # Shape
/// `input`: `world_size` times the elements of `output` on `root`, `None` elsewhere.
///
/// # Examples
/// ```
/// # use tch::{Device, Kind, Tensor};
/// phalanx::on_threads(2, |group| {
///     let batch = Tensor::from_slice2(&[[1i64, 2], [3, 4]]);
///     let mut mine = Tensor::zeros([2], (Kind::Int64, Device::Cpu));
///     phalanx_tch::scatter(&group, (group.rank() == 0).then_some(&batch), &mut mine, 0).unwrap();
///     assert_eq!(mine, Tensor::from_slice(&[[1i64, 2], [3, 4]][group.rank()]));
///     Ok(())
/// })?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn scatter(group: &ProcessGroup, input: Option<&Tensor>, output: &mut Tensor, root: usize) -> Result<()> {
    let site = CallSite::caller();
    let (op, world_size) = (OpKind::Scatter, group.world_size());
    let dtype = dtype(op, output)?;
    let blocks = Layout::even(world_size, output.numel() * world_size);
    let perform = |input: Option<&[u8]>, output: &mut [u8]| {
        group.untyped(dtype).called_at(site).request(Request::Scatter { input, output: Some(output), blocks, root })
    };
    match input {
        Some(input) => {
            let input = apart(op, input, output)?;
            write(op, output, |output| read(op, &input, |input| perform(Some(input), output)))???;
        }
        None => write(op, output, |output| perform(None, output))??,
    }
    Ok(())
}

/// Combines the tensors of all ranks and deals the result out along the first dimension: rank `r` gets the `r`-th of `world_size` equal parts.
///
/// # Shape
/// `[world_size * n, …]` on each rank becomes `[n, …]`.
/// # Errors
/// [`phalanx::Error::Misuse`] if the first dimension is not a multiple of the world size.
///
/// # Examples
/// ```
/// # use phalanx::ReduceOp;
/// # use tch::Tensor;
/// phalanx::on_threads(2, |group| {
///     let gradients = Tensor::from_slice(&[1f32, 2.0]);
///     let mine = phalanx_tch::reduce_scatter(&group, &gradients, ReduceOp::Sum).unwrap();
///     assert_eq!(mine, Tensor::from_slice(&[[2f32], [4.0]][group.rank()]));
///     Ok(())
/// })?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn reduce_scatter(group: &ProcessGroup, tensor: &Tensor, op: ReduceOp) -> Result<Tensor> {
    let site = CallSite::caller();
    let (kind, world_size) = (OpKind::ReduceScatter, group.world_size());
    let mut mine = zeros(dtype(kind, tensor)?, &dealt(kind, tensor, world_size)?)?;
    let blocks = Layout::even(world_size, tensor.numel());
    between(group, kind, tensor, &mut mine, site, |input, output| Request::ReduceScatter {
        buffers: Buffers::Separate(input, output),
        blocks,
        reduce: op,
    })?;
    Ok(mine)
}

/// Deals each rank's tensor out along the first dimension, and concatenates what comes, in rank order: the `r`-th of `world_size` equal parts goes to
/// rank `r`.
///
/// # Shape
/// `[world_size * n, …]` on each rank, and as much of the result.
/// # Errors
/// [`phalanx::Error::Misuse`] if the first dimension is not a multiple of the world size.
///
/// # Examples
/// ```
/// # use tch::Tensor;
/// phalanx::on_threads(2, |group| {
///     let mine = [[1i64, 2], [3, 4]][group.rank()]; // for rank 0, for rank 1
///     let theirs = phalanx_tch::all_to_all(&group, &Tensor::from_slice(&mine)).unwrap();
///     assert_eq!(theirs, Tensor::from_slice(&[[1i64, 3], [2, 4]][group.rank()]));
///     Ok(())
/// })?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn all_to_all(group: &ProcessGroup, tensor: &Tensor) -> Result<Tensor> {
    let site = CallSite::caller();
    let (op, world_size) = (OpKind::AllToAll, group.world_size());
    dealt(op, tensor, world_size)?;
    let mut theirs = zeros(dtype(op, tensor)?, &dims(tensor))?;
    let blocks = BlockExchange::Even { count: tensor.numel() / world_size };
    between(group, op, tensor, &mut theirs, site, |input, output| Request::AllToAll {
        buffers: Buffers::Separate(input, output),
        blocks,
    })?;
    Ok(theirs)
}

/// Sends `tensor` to rank `dst`, which [receives](recv) one of as many elements. Messages between two ranks arrive in order.
///
/// # Examples
/// ```
/// # use tch::Tensor;
/// phalanx::on_threads(2, |group| {
///     let activations = Tensor::from_slice(&[0.5f32; 4]);
///     if group.rank() == 0 {
///         phalanx_tch::send(&group, &activations, 1).unwrap();
///     } else {
///         let mut received = activations.zeros_like();
///         phalanx_tch::recv(&group, &mut received, 0).unwrap();
///         assert_eq!(received, activations);
///     }
///     Ok(())
/// })?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn send(group: &ProcessGroup, tensor: &Tensor, dst: usize) -> Result<()> {
    let (site, op) = (CallSite::caller(), OpKind::Send);
    let dtype = dtype(op, tensor)?;
    Ok(read(op, tensor, |bytes| group.untyped(dtype).called_at(site).send(bytes, dst, TAG))??)
}

/// Overwrites `tensor` with what rank `src` [sends](send) next to this rank, in place.
///
/// # Examples
/// A ring of two, in which one sends first and the other receives first:
/// ```
/// # use tch::Tensor;
/// phalanx::on_threads(2, |group| {
///     let (own, mut theirs) = (Tensor::from(group.rank() as f32), Tensor::from(9f32));
///     let other = 1 - group.rank();
///     if group.rank() == 0 {
///         phalanx_tch::send(&group, &own, other).unwrap();
///     }
///     phalanx_tch::recv(&group, &mut theirs, other).unwrap();
///     if group.rank() == 1 {
///         phalanx_tch::send(&group, &own, other).unwrap();
///     }
///     assert_eq!(theirs, Tensor::from(other as f32));
///     Ok(())
/// })?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn recv(group: &ProcessGroup, tensor: &mut Tensor, src: usize) -> Result<()> {
    let (site, op) = (CallSite::caller(), OpKind::Recv);
    let dtype = dtype(op, tensor)?;
    Ok(write(op, tensor, |bytes| group.untyped(dtype).called_at(site).recv(bytes, src, TAG, None))??)
}

/// Overwrites `tensor` with what whichever rank [sends](send) to this rank first, in place, and returns that rank; see
/// [`ProcessGroup::recv_any`](phalanx::ProcessGroup::recv_any).
///
/// # Examples
/// Rank 0 takes results as they come:
/// ```
/// # use tch::Tensor;
/// phalanx::on_threads(3, |group| {
///     if group.rank() == 0 {
///         let mut result = Tensor::from(0f32);
///         for _ in 1..group.world_size() {
///             let worker = phalanx_tch::recv_any(&group, &mut result).unwrap();
///             assert_eq!(result, Tensor::from(worker as f32));
///         }
///     } else {
///         phalanx_tch::send(&group, &Tensor::from(group.rank() as f32), 0).unwrap();
///     }
///     Ok(())
/// })?;
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn recv_any(group: &ProcessGroup, tensor: &mut Tensor) -> Result<usize> {
    let (site, op) = (CallSite::caller(), OpKind::RecvAny);
    let dtype = dtype(op, tensor)?;
    Ok(write(op, tensor, |bytes| group.untyped(dtype).called_at(site).recv_any(bytes, TAG, None))??)
}

/// Performs what has one buffer, which is read and overwritten.
fn in_place<'b>(
    group: &ProcessGroup,
    op: OpKind,
    tensor: &mut Tensor,
    site: CallSite,
    request: impl for<'a> FnOnce(&'a mut [u8]) -> Request<&'b [u8], &'a mut [u8]>,
) -> Result<()> {
    let dtype = dtype(op, tensor)?;
    Ok(write(op, tensor, |bytes| group.untyped(dtype).called_at(site).request(request(bytes)))??)
}

/// Performs what reads one tensor and writes another, which is new.
fn between(
    group: &ProcessGroup,
    op: OpKind,
    input: &Tensor,
    output: &mut Tensor,
    site: CallSite,
    request: impl for<'a> FnOnce(&'a [u8], &'a mut [u8]) -> Request<&'a [u8], &'a mut [u8]>,
) -> Result<()> {
    let group = group.untyped(dtype(op, input)?).called_at(site);
    write(op, output, |output| read(op, input, |input| group.request(request(input, output))))???;
    Ok(())
}

/// `input`, or a copy of it where it has memory in common with `output`.
fn apart(op: OpKind, input: &Tensor, output: &Tensor) -> Result<Tensor> {
    dtype(op, input)?;
    tch::no_grad(|| {
        let input = input.f_contiguous()?;
        if !overlap(&input, output) {
            return Ok(input);
        }
        let mut copy = input.f_zeros_like()?;
        copy.f_copy_(&input)?;
        Ok(copy)
    })
    .map_err(told)
}

/// The dimensions of as many tensors as there are ranks, one after the other.
fn gathered(tensor: &Tensor, world_size: usize) -> Vec<usize> {
    let mut dims = dims(tensor);
    match dims.first_mut() {
        Some(rows) => *rows *= world_size,
        None => dims.push(world_size),
    }
    dims
}

/// The dimensions of one of as many parts as there are ranks.
fn dealt(op: OpKind, tensor: &Tensor, world_size: usize) -> Result<Vec<usize>> {
    let mut dims = dims(tensor);
    match dims.first_mut() {
        Some(rows) if rows.is_multiple_of(world_size) => *rows /= world_size,
        _ => {
            let what =
                format!("the first dimension of {dims:?} must be a multiple of the {world_size} ranks");
            return Err(Error::misuse(op, what).into());
        }
    }
    Ok(dims)
}
