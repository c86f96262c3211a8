//! Collectives on candle tensors.
//!
//! The functions follow the methods of [`ProcessGroup`] of the same names, with the same contract among ranks. Tensors
//! live where the [`Group`] reaches them and hold any type that candle and phalanx share: f32, f64, f16, bf16, u8, u32, i16, i32 and i64.
//! They are seen as flat rows of elements: ranks must agree on type, number and place, not on shape.
//!
//! None of them is recorded for the backward pass. Objects, and messages with tags, are for [`Group::host`].
//!
//! # On a GPU
//! An operation is put behind what candle has enqueued, and ahead of what it enqueues next; the call does not wait for it. What goes wrong later is
//! an error of the next call, and of `HybridGroup::synchronize`.
//!
//! # Errors
//! Of all functions here, besides the group's own errors: [`phalanx::Error::Unsupported`] for a tensor on a device that the group does not
//! reach, or of a type that it has not there, and [`phalanx::Error::Misuse`] for one that cannot be changed in place
//! because its elements do not lie in row-major order. In both cases nothing was sent. Over NCCL [`scan`] is `Unsupported`.

use crate::perform::{pass, pass_from_any, perform};
use crate::request::{Message, Shape};
use crate::{Group, Result};
use candle_core::Tensor;
use phalanx::backend::{BlockExchange, Buffers, Layout};
use phalanx::error::OpKind;
use phalanx::{CallSite, Error, ReduceOp};

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
    let request = Shape::AllReduce { buffers: Buffers::InPlace(()), reduce: op };
    perform(group, None, Some(tensor), request, CallSite::caller())
}

/// Overwrites `tensor` on every rank with its contents on rank `root`, in place.
///
/// Views that share the tensor's memory see the change.
///
/// # Examples
/// ```
/// # use candle_core::{Device, Tensor};
/// # std::thread::scope(|s| { for group in phalanx::threads(2) { s.spawn(move || {
/// let weights = Tensor::full(group.rank() as f32 + 0.5, 2, &Device::Cpu)?;
/// phalanx_candle::broadcast(&group, &weights, 1)?;
/// assert_eq!(weights.to_vec1::<f32>()?, [1.5; 2]);
/// # Ok::<(), phalanx_candle::Error>(()) }); } });
/// ```
#[track_caller]
pub fn broadcast(group: &impl Group, tensor: &Tensor, root: usize) -> Result<()> {
    perform(group, None, Some(tensor), Shape::Broadcast { buffer: (), root }, CallSite::caller())
}

/// Combines `tensor` over the group into the one on rank `root`, in place. On the other ranks its contents are
/// unspecified afterwards.
///
/// # Examples
/// ```
/// # use candle_core::{Device, Tensor};
/// # use phalanx::ReduceOp;
/// # std::thread::scope(|s| { for group in phalanx::threads(2) { s.spawn(move || {
/// let losses = Tensor::full(group.rank() as f32, 2, &Device::Cpu)?;
/// phalanx_candle::reduce(&group, &losses, ReduceOp::Max, 0)?;
/// assert!(group.rank() != 0 || losses.to_vec1::<f32>()? == [1.0; 2]);
/// # Ok::<(), phalanx_candle::Error>(()) }); } });
/// ```
#[track_caller]
pub fn reduce(group: &impl Group, tensor: &Tensor, op: ReduceOp, root: usize) -> Result<()> {
    let request = Shape::Reduce { buffer: (), reduce: op, root };
    perform(group, None, Some(tensor), request, CallSite::caller())
}

/// Combines `tensor` with those of the ranks before, in place: rank `r` ends with the combination of ranks 0 to `r`.
///
/// # Errors
/// Like [`all_reduce`]; over NCCL it is `Unsupported`, which has no scan.
///
/// # Examples
/// ```
/// # use candle_core::{Device, Tensor};
/// # use phalanx::ReduceOp;
/// # std::thread::scope(|s| { for group in phalanx::threads(3) { s.spawn(move || {
/// let samples = Tensor::new(&[10i64], &Device::Cpu)?;
/// phalanx_candle::scan(&group, &samples, ReduceOp::Sum)?;
/// assert_eq!(samples.to_vec1::<i64>()?, [[10], [20], [30]][group.rank()]);
/// # Ok::<(), phalanx_candle::Error>(()) }); } });
/// ```
#[track_caller]
pub fn scan(group: &impl Group, tensor: &Tensor, op: ReduceOp) -> Result<()> {
    let request = Shape::Scan { buffers: Buffers::InPlace(()), reduce: op };
    perform(group, None, Some(tensor), request, CallSite::caller())
}

/// The tensors of all ranks, concatenated along the first dimension in rank order.
///
/// # Shape
/// `[n, …]` on each rank becomes `[world_size * n, …]`; a scalar becomes `[world_size]`.
///
/// # Examples
/// ```
/// # use candle_core::{Device, Tensor};
/// # std::thread::scope(|s| { for group in phalanx::threads(2) { s.spawn(move || {
/// let row = Tensor::full(group.rank() as u32, (1, 3), &Device::Cpu)?;
/// let rows = phalanx_candle::all_gather(&group, &row)?;
/// assert_eq!(rows.to_vec2::<u32>()?, [[0; 3], [1; 3]]);
/// # Ok::<(), phalanx_candle::Error>(()) }); } });
/// ```
#[track_caller]
pub fn all_gather(group: &impl Group, tensor: &Tensor) -> Result<Tensor> {
    let world_size = group.host().world_size();
    let all = zeros(&gathered(tensor, world_size), tensor)?;
    let blocks = Layout::even(world_size, all.elem_count());
    let request = Shape::AllGather { buffers: Buffers::Separate((), ()), blocks };
    perform(group, Some(tensor), Some(&all), request, CallSite::caller())?;
    Ok(all)
}

/// The tensors of all ranks, concatenated along the first dimension in rank order, on rank `root`; `None` elsewhere.
///
/// # Shape
/// `[n, …]` on each rank becomes `[world_size * n, …]`; a scalar becomes `[world_size]`.
///
/// # Examples
/// ```
/// # use candle_core::{Device, Tensor};
/// # std::thread::scope(|s| { for group in phalanx::threads(2) { s.spawn(move || {
/// let loss = Tensor::new(group.rank() as f32, &Device::Cpu)?;
/// let losses = phalanx_candle::gather(&group, &loss, 1)?;
/// let losses = losses.map(|losses| losses.to_vec1::<f32>()).transpose()?;
/// assert_eq!(losses, (group.rank() == 1).then_some(vec![0.0, 1.0]));
/// # Ok::<(), phalanx_candle::Error>(()) }); } });
/// ```
#[track_caller]
pub fn gather(group: &impl Group, tensor: &Tensor, root: usize) -> Result<Option<Tensor>> {
    let (rank, world_size) = (group.host().rank(), group.host().world_size());
    let blocks = Layout::even(world_size, tensor.elem_count() * world_size);
    let all = (rank == root).then(|| zeros(&gathered(tensor, world_size), tensor)).transpose()?;
    let output = all.is_some().then_some(());
    let request = Shape::Gather { input: Some(()), output, blocks, root };
    perform(group, Some(tensor), all.as_ref(), request, CallSite::caller())?;
    Ok(all)
}

/// Deals the input of rank `root` out along the first dimension: rank `r` gets the `r`-th of `world_size` equal parts in `output`, in place.
///
/// # Shape
/// `input`: `world_size` times the elements of `output` on `root`, `None` elsewhere.
///
/// # Examples
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # std::thread::scope(|s| { for group in phalanx::threads(2) { s.spawn(move || {
/// let batch = Tensor::new(&[[1u32, 2], [3, 4]], &Device::Cpu)?;
/// let mine = Tensor::zeros(2, DType::U32, &Device::Cpu)?;
/// phalanx_candle::scatter(&group, (group.rank() == 0).then_some(&batch), &mine, 0)?;
/// assert_eq!(mine.to_vec1::<u32>()?, [[1, 2], [3, 4]][group.rank()]);
/// # Ok::<(), phalanx_candle::Error>(()) }); } });
/// ```
#[track_caller]
pub fn scatter(group: &impl Group, input: Option<&Tensor>, output: &Tensor, root: usize) -> Result<()> {
    let world_size = group.host().world_size();
    let blocks = Layout::even(world_size, output.elem_count() * world_size);
    let request = Shape::Scatter { input: input.map(drop), output: Some(()), blocks, root };
    perform(group, input, Some(output), request, CallSite::caller())
}

/// Combines the tensors of all ranks and deals the result out along the first dimension: rank `r` gets the `r`-th of
/// `world_size` equal parts.
///
/// # Shape
/// `[world_size * n, …]` on each rank becomes `[n, …]`.
/// # Errors
/// [`phalanx::Error::Misuse`] if the first dimension is not a multiple of the world size.
///
/// # Examples
/// ```
/// # use candle_core::{Device, Tensor};
/// # use phalanx::ReduceOp;
/// # std::thread::scope(|s| { for group in phalanx::threads(2) { s.spawn(move || {
/// let gradients = Tensor::new(&[1f32, 2.0], &Device::Cpu)?;
/// let mine = phalanx_candle::reduce_scatter(&group, &gradients, ReduceOp::Sum)?;
/// assert_eq!(mine.to_vec1::<f32>()?, [[2.0], [4.0]][group.rank()]);
/// # Ok::<(), phalanx_candle::Error>(()) }); } });
/// ```
#[track_caller]
pub fn reduce_scatter(group: &impl Group, tensor: &Tensor, op: ReduceOp) -> Result<Tensor> {
    let world_size = group.host().world_size();
    let mine = zeros(&dealt(OpKind::ReduceScatter, tensor, world_size)?, tensor)?;
    let blocks = Layout::even(world_size, tensor.elem_count());
    let request = Shape::ReduceScatter { buffers: Buffers::Separate((), ()), blocks, reduce: op };
    perform(group, Some(tensor), Some(&mine), request, CallSite::caller())?;
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
/// # use candle_core::{Device, Tensor};
/// # std::thread::scope(|s| { for group in phalanx::threads(2) { s.spawn(move || {
/// let mine = [[1u32, 2], [3, 4]][group.rank()]; // for rank 0, for rank 1
/// let theirs = phalanx_candle::all_to_all(&group, &Tensor::new(&mine, &Device::Cpu)?)?;
/// assert_eq!(theirs.to_vec1::<u32>()?, [[1, 3], [2, 4]][group.rank()]);
/// # Ok::<(), phalanx_candle::Error>(()) }); } });
/// ```
#[track_caller]
pub fn all_to_all(group: &impl Group, tensor: &Tensor) -> Result<Tensor> {
    let world_size = group.host().world_size();
    dealt(OpKind::AllToAll, tensor, world_size)?;
    let output = zeros(tensor.dims(), tensor)?;
    let blocks = BlockExchange::Even { count: tensor.elem_count() / world_size };
    let request = Shape::AllToAll { buffers: Buffers::Separate((), ()), blocks };
    perform(group, Some(tensor), Some(&output), request, CallSite::caller())?;
    Ok(output)
}

/// Sends `tensor` to rank `dst`, which [receives](recv) one of as many elements.
///
/// Messages between two ranks arrive in order. On a GPU the call does not wait for the receiver.
///
/// # Examples
/// ```
/// # use candle_core::{DType, Device, Tensor};
/// # std::thread::scope(|s| { for group in phalanx::threads(2) { s.spawn(move || {
/// let activations = Tensor::full(0.5f32, (2, 2), &Device::Cpu)?;
/// if group.rank() == 0 {
///     phalanx_candle::send(&group, &activations, 1)?;
/// } else {
///     let received = activations.zeros_like()?;
///     phalanx_candle::recv(&group, &received, 0)?;
///     assert_eq!(received.to_vec2::<f32>()?, [[0.5; 2]; 2]);
/// }
/// # Ok::<(), phalanx_candle::Error>(()) }); } });
/// ```
#[track_caller]
pub fn send(group: &impl Group, tensor: &Tensor, dst: usize) -> Result<()> {
    pass(group, Message::SendTo(dst), tensor, CallSite::caller())
}

/// Overwrites `tensor` with what rank `src` [sends](send) next to this rank, in place.
///
/// # Examples
/// A ring of two, in which one sends first and the other receives first:
/// ```
/// # use candle_core::{Device, Tensor};
/// # std::thread::scope(|s| { for group in phalanx::threads(2) { s.spawn(move || {
/// let (own, theirs) = (Tensor::new(&[group.rank() as f32], &Device::Cpu)?, Tensor::new(&[9f32], &Device::Cpu)?);
/// let other = 1 - group.rank();
/// if group.rank() == 0 {
///     phalanx_candle::send(&group, &own, other)?;
/// }
/// phalanx_candle::recv(&group, &theirs, other)?;
/// if group.rank() == 1 {
///     phalanx_candle::send(&group, &own, other)?;
/// }
/// assert_eq!(theirs.to_vec1::<f32>()?, [other as f32]);
/// # Ok::<(), phalanx_candle::Error>(()) }); } });
/// ```
#[track_caller]
pub fn recv(group: &impl Group, tensor: &Tensor, src: usize) -> Result<()> {
    pass(group, Message::RecvFrom(src), tensor, CallSite::caller())
}

/// Overwrites `tensor` with what whichever rank [sends](send) to this rank first, in place, and returns that rank; see
/// [`ProcessGroup::recv_any`](phalanx::ProcessGroup::recv_any). For tensors on the CPU: NCCL receives only from a rank that is named.
///
/// # Examples
/// Rank 0 takes results as they come:
/// ```
/// # use candle_core::{Device, Tensor};
/// # std::thread::scope(|s| { for group in phalanx::threads(3) { s.spawn(move || {
/// if group.rank() == 0 {
///     let result = Tensor::zeros(2, candle_core::DType::F32, &Device::Cpu)?;
///     for _ in 1..group.world_size() {
///         let worker = phalanx_candle::recv_any(&group, &result)?;
///         assert_eq!(result.to_vec1::<f32>()?, [worker as f32; 2]);
///     }
/// } else {
///     phalanx_candle::send(&group, &Tensor::new(&[group.rank() as f32; 2], &Device::Cpu)?, 0)?;
/// }
/// # Ok::<(), phalanx_candle::Error>(()) }); } });
/// ```
#[track_caller]
pub fn recv_any(group: &impl Group, tensor: &Tensor) -> Result<usize> {
    pass_from_any(group, tensor, CallSite::caller())
}

/// The shape of as many tensors as there are ranks, one after the other.
pub(crate) fn gathered(tensor: &Tensor, world_size: usize) -> Vec<usize> {
    let mut shape = tensor.dims().to_vec();
    match shape.first_mut() {
        Some(rows) => *rows *= world_size,
        None => shape.push(world_size),
    }
    shape
}

/// The shape of one of as many parts as there are ranks.
pub(crate) fn dealt(op: OpKind, tensor: &Tensor, world_size: usize) -> Result<Vec<usize>> {
    let mut shape = tensor.dims().to_vec();
    match shape.first_mut() {
        Some(rows) if rows.is_multiple_of(world_size) => *rows /= world_size,
        _ => {
            let what =
                format!("the first dimension of {shape:?} must be a multiple of the {world_size} ranks");
            return Err(Error::misuse(op, what).into());
        }
    }
    Ok(shape)
}

/// Memory for a result, of the type of `tensor` and in its place.
pub(crate) fn zeros(shape: &[usize], tensor: &Tensor) -> Result<Tensor> {
    Ok(Tensor::zeros(shape, tensor.dtype(), tensor.device())?)
}
