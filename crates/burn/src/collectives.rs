//! Collectives on burn's tensors.
//!
//! The functions follow the methods of [`ProcessGroup`] of the same names, with the same contract among ranks. A tensor goes in, and the result comes
//! out, on the same device: burn's tensors are values. They hold floats of 16, 32 or 64 bits, or integers, and are seen as flat rows of elements: ranks
//! must agree on type and number, not on shape.
//!
//! None of them is recorded for the backward pass: results have no history. Tensors of any backend travel through the host's memory; one that is there, and
//! that nobody else holds, is not copied for it.
//!
//! # Errors
//! Of all functions here, besides the group's own errors: [`phalanx::Error::Unsupported`] for elements that cannot be sent, such as quantized ones, before
//! anything is, and [`Error::Tensors`](crate::Error::Tensors) for a device that could not be read.

use crate::Result;
use crate::elements::Elements;
use burn_core::tensor::Tensor;
use burn_core::tensor::kind::Numeric;
use phalanx::backend::{BlockExchange, Buffers, Layout, Request};
use phalanx::error::OpKind;
use phalanx::{CallSite, Error, ProcessGroup, ReduceOp};

/// Messages of tensors have no tags.
const TAG: u64 = 0;

/// The combination of the tensors of all ranks; every rank ends with the same bits.
///
/// # Examples
/// ```
/// use burn::tensor::{Device, Tensor};
/// use phalanx::ReduceOp;
///
/// let sums = phalanx::on_threads(3, |group| {
///     let tensor = Tensor::<2>::full([2, 2], group.rank() as f32, &Device::default());
///     Ok(phalanx_burn::all_reduce(&group, tensor, ReduceOp::Sum).unwrap().into_data())
/// })?;
/// assert!(sums.iter().all(|sum| sum.as_slice::<f32>().unwrap() == [3.0; 4])); // 0 + 1 + 2
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn all_reduce<const D: usize, K: Numeric>(
    group: &ProcessGroup,
    tensor: Tensor<D, K>,
    op: ReduceOp,
) -> Result<Tensor<D, K>> {
    let site = CallSite::caller();
    in_place(group, OpKind::AllReduce, tensor, site, |buffer| Request::AllReduce {
        buffers: Buffers::InPlace(buffer),
        reduce: op,
    })
}

/// The tensor of rank `root`, on every rank. The others pass one of as many elements, which is overwritten.
///
/// # Examples
/// ```
/// # use burn::tensor::{Device, Tensor};
/// let weights = phalanx::on_threads(2, |group| {
///     let mine = Tensor::<1>::full([2], group.rank() as f32 + 0.5, &Device::default());
///     Ok(phalanx_burn::broadcast(&group, mine, 1).unwrap().into_data())
/// })?;
/// assert!(weights.iter().all(|weight| weight.as_slice::<f32>().unwrap() == [1.5; 2]));
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn broadcast<const D: usize, K: Numeric>(
    group: &ProcessGroup,
    tensor: Tensor<D, K>,
    root: usize,
) -> Result<Tensor<D, K>> {
    let site = CallSite::caller();
    in_place(group, OpKind::Broadcast, tensor, site, |buffer| Request::Broadcast { buffer, root })
}

/// The combination of the tensors of all ranks, on rank `root`; `None` elsewhere.
///
/// # Examples
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # use phalanx::ReduceOp;
/// let worst = phalanx::on_threads(2, |group| {
///     let loss = Tensor::<1>::full([1], group.rank() as f32, &Device::default());
///     let worst = phalanx_burn::reduce(&group, loss, ReduceOp::Max, 0).unwrap();
///     Ok(worst.map(|worst| worst.into_scalar::<f32>()))
/// })?;
/// assert_eq!(worst, [Some(1.0), None]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn reduce<const D: usize, K: Numeric>(
    group: &ProcessGroup,
    tensor: Tensor<D, K>,
    op: ReduceOp,
    root: usize,
) -> Result<Option<Tensor<D, K>>> {
    let site = CallSite::caller();
    let reduced =
        in_place(group, OpKind::Reduce, tensor, site, |buffer| Request::Reduce { buffer, reduce: op, root })?;
    Ok((group.rank() == root).then_some(reduced))
}

/// The combination of the tensors of ranks 0 to this one.
///
/// # Examples
/// ```
/// # use burn::tensor::{Device, Int, Tensor};
/// # use phalanx::ReduceOp;
/// let places = phalanx::on_threads(3, |group| {
///     let samples = Tensor::<1, Int>::from_data([10], &Device::default());
///     Ok(phalanx_burn::scan(&group, samples, ReduceOp::Sum).unwrap().into_scalar::<i64>())
/// })?;
/// assert_eq!(places, [10, 20, 30]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn scan<const D: usize, K: Numeric>(
    group: &ProcessGroup,
    tensor: Tensor<D, K>,
    op: ReduceOp,
) -> Result<Tensor<D, K>> {
    let site = CallSite::caller();
    in_place(group, OpKind::Scan, tensor, site, |buffer| Request::Scan {
        buffers: Buffers::InPlace(buffer),
        reduce: op,
    })
}

/// The tensors of all ranks, concatenated along the first dimension in rank order.
///
/// # Shape
/// `[n, …]` on each rank becomes `[world_size * n, …]`.
///
/// # Examples
/// ```
/// # use burn::tensor::{Device, Tensor};
/// let rows = phalanx::on_threads(2, |group| {
///     let row = Tensor::<2>::full([1, 3], group.rank() as f32, &Device::default());
///     Ok(phalanx_burn::all_gather(&group, row).unwrap())
/// })?;
/// assert_eq!(rows[0].dims(), [2, 3]);
/// assert_eq!(rows[0].to_data().as_slice::<f32>().unwrap(), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn all_gather<const D: usize, K: Numeric>(
    group: &ProcessGroup,
    tensor: Tensor<D, K>,
) -> Result<Tensor<D, K>> {
    let (site, device) = (CallSite::caller(), tensor.device());
    let mine = Elements::of(OpKind::AllGather, tensor)?;
    let mut all = mine.zeros(&gathered(mine.dims(), group.world_size()));
    let blocks = Layout::even(group.world_size(), all.len());
    let buffers = Buffers::Separate(mine.bytes(), all.bytes_mut());
    group.untyped(mine.dtype()).called_at(site).request(Request::AllGather { buffers, blocks })?;
    Ok(all.into_tensor(&device))
}

/// The tensors of all ranks, concatenated along the first dimension in rank order, on rank `root`; `None` elsewhere.
///
/// # Shape
/// `[n, …]` on each rank becomes `[world_size * n, …]`.
///
/// # Examples
/// ```
/// # use burn::tensor::{Device, Tensor};
/// let losses = phalanx::on_threads(2, |group| {
///     let loss = Tensor::<1>::full([1], group.rank() as f32, &Device::default());
///     let losses = phalanx_burn::gather(&group, loss, 1).unwrap();
///     Ok(losses.map(|losses| losses.to_data().try_to_vec::<f32>().unwrap()))
/// })?;
/// assert_eq!(losses, [None, Some(vec![0.0, 1.0])]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn gather<const D: usize, K: Numeric>(
    group: &ProcessGroup,
    tensor: Tensor<D, K>,
    root: usize,
) -> Result<Option<Tensor<D, K>>> {
    let (site, device) = (CallSite::caller(), tensor.device());
    let mine = Elements::of(OpKind::Gather, tensor)?;
    let world_size = group.world_size();
    let blocks = Layout::even(world_size, mine.len() * world_size);
    let mut all = (group.rank() == root).then(|| mine.zeros(&gathered(mine.dims(), world_size)));
    let output = all.as_mut().map(Elements::bytes_mut);
    let request = Request::Gather { input: Some(mine.bytes()), output, blocks, root };
    group.untyped(mine.dtype()).called_at(site).request(request)?;
    Ok(all.map(|all| all.into_tensor(&device)))
}

/// Deals the tensor of rank `root` out along the first dimension: rank `r` gets the `r`-th of `world_size` equal parts, in place of `output`.
///
/// # Shape
/// `input`: `world_size` times the elements of `output`, on `root`; `None` elsewhere.
///
/// # Examples
/// ```
/// # use burn::tensor::{Device, Tensor};
/// let parts = phalanx::on_threads(2, |group| {
///     let device = Device::default();
///     let batch = (group.rank() == 0).then(|| Tensor::<2>::from_data([[1.0, 2.0], [3.0, 4.0]], &device));
///     let mine = phalanx_burn::scatter(&group, batch, Tensor::<2>::zeros([1, 2], &device), 0).unwrap();
///     Ok(mine.into_data().try_to_vec::<f32>().unwrap())
/// })?;
/// assert_eq!(parts, [[1.0, 2.0], [3.0, 4.0]]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn scatter<const D: usize, K: Numeric>(
    group: &ProcessGroup,
    input: Option<Tensor<D, K>>,
    output: Tensor<D, K>,
    root: usize,
) -> Result<Tensor<D, K>> {
    let (site, device) = (CallSite::caller(), output.device());
    let input = input.map(|input| Elements::of(OpKind::Scatter, input)).transpose()?;
    let mut mine = Elements::of(OpKind::Scatter, output)?;
    if let Some(input) = input.as_ref().filter(|input| input.dtype() != mine.dtype()) {
        let what = format!("the input is {}, and the output {}", input.dtype(), mine.dtype());
        return Err(Error::misuse(OpKind::Scatter, what).into());
    }
    let (dtype, blocks) = (mine.dtype(), Layout::even(group.world_size(), mine.len() * group.world_size()));
    let input = input.as_ref().map(Elements::bytes);
    let request = Request::Scatter { input, output: Some(mine.bytes_mut()), blocks, root };
    group.untyped(dtype).called_at(site).request(request)?;
    Ok(mine.into_tensor(&device))
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
/// # use burn::tensor::{Device, Tensor};
/// # use phalanx::ReduceOp;
/// let parts = phalanx::on_threads(2, |group| {
///     let gradients = Tensor::<1>::from_data([1.0, 2.0], &Device::default());
///     let mine = phalanx_burn::reduce_scatter(&group, gradients, ReduceOp::Sum).unwrap();
///     Ok(mine.into_scalar::<f32>())
/// })?;
/// assert_eq!(parts, [2.0, 4.0]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn reduce_scatter<const D: usize, K: Numeric>(
    group: &ProcessGroup,
    tensor: Tensor<D, K>,
    op: ReduceOp,
) -> Result<Tensor<D, K>> {
    let (site, device) = (CallSite::caller(), tensor.device());
    let dims = dealt(OpKind::ReduceScatter, &tensor.dims(), group.world_size())?;
    let whole = Elements::of(OpKind::ReduceScatter, tensor)?;
    let mut mine = whole.zeros(&dims);
    let blocks = Layout::even(group.world_size(), whole.len());
    let buffers = Buffers::Separate(whole.bytes(), mine.bytes_mut());
    let request = Request::ReduceScatter { buffers, blocks, reduce: op };
    group.untyped(whole.dtype()).called_at(site).request(request)?;
    Ok(mine.into_tensor(&device))
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
/// # use burn::tensor::{Device, Tensor};
/// let theirs = phalanx::on_threads(2, |group| {
///     let mine = [[1.0, 2.0], [3.0, 4.0]][group.rank()]; // for rank 0, for rank 1
///     let mine = Tensor::<1>::from_data(mine, &Device::default());
///     Ok(phalanx_burn::all_to_all(&group, mine).unwrap().into_data().try_to_vec::<f32>().unwrap())
/// })?;
/// assert_eq!(theirs, [[1.0, 3.0], [2.0, 4.0]]);
/// # Ok::<(), phalanx::Error>(())
/// ```
#[track_caller]
pub fn all_to_all<const D: usize, K: Numeric>(
    group: &ProcessGroup,
    tensor: Tensor<D, K>,
) -> Result<Tensor<D, K>> {
    let (site, device) = (CallSite::caller(), tensor.device());
    dealt(OpKind::AllToAll, &tensor.dims(), group.world_size())?;
    let mine = Elements::of(OpKind::AllToAll, tensor)?;
    let mut theirs = mine.zeros(mine.dims());
    let blocks = BlockExchange::Even { count: mine.len() / group.world_size() };
    let request = Request::AllToAll { buffers: Buffers::Separate(mine.bytes(), theirs.bytes_mut()), blocks };
    group.untyped(mine.dtype()).called_at(site).request(request)?;
    Ok(theirs.into_tensor(&device))
}

/// Sends a tensor to rank `dst`, which [receives](recv) one of as many elements. Messages between two ranks arrive in order.
///
/// # Examples
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # std::thread::scope(|s| { for group in phalanx::threads(2) { s.spawn(move || {
/// let activations = Tensor::<2>::full([2, 2], 0.5, &Device::default());
/// if group.rank() == 0 {
///     phalanx_burn::send(&group, activations, 1)?;
/// } else {
///     let received = phalanx_burn::recv(&group, activations.zeros_like(), 0)?;
///     assert_eq!(received.to_data(), activations.to_data());
/// }
/// # Ok::<(), phalanx_burn::Error>(()) }); } });
/// ```
#[track_caller]
pub fn send<const D: usize, K: Numeric>(
    group: &ProcessGroup,
    tensor: Tensor<D, K>,
    dst: usize,
) -> Result<()> {
    let site = CallSite::caller();
    let mine = Elements::of(OpKind::Send, tensor)?;
    Ok(group.untyped(mine.dtype()).called_at(site).send(mine.bytes(), dst, TAG)?)
}

/// What rank `src` [sends](send) next to this rank, in place of `output`, which has as many elements.
///
/// # Examples
/// A ring of two, in which one sends first and the other receives first:
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # std::thread::scope(|s| { for group in phalanx::threads(2) { s.spawn(move || {
/// let own = Tensor::<1>::full([1], group.rank() as f32, &Device::default());
/// let other = 1 - group.rank();
/// if group.rank() == 0 {
///     phalanx_burn::send(&group, own.clone(), other)?;
/// }
/// let theirs = phalanx_burn::recv(&group, own.zeros_like(), other)?;
/// if group.rank() == 1 {
///     phalanx_burn::send(&group, own, other)?;
/// }
/// assert_eq!(theirs.into_scalar::<f32>(), other as f32);
/// # Ok::<(), phalanx_burn::Error>(()) }); } });
/// ```
#[track_caller]
pub fn recv<const D: usize, K: Numeric>(
    group: &ProcessGroup,
    output: Tensor<D, K>,
    src: usize,
) -> Result<Tensor<D, K>> {
    let (site, device) = (CallSite::caller(), output.device());
    let mut theirs = Elements::of(OpKind::Recv, output)?;
    let dtype = theirs.dtype();
    group.untyped(dtype).called_at(site).recv(theirs.bytes_mut(), src, TAG, None)?;
    Ok(theirs.into_tensor(&device))
}

/// What whichever rank [sends](send) to this rank first, in place of `output`, and that rank; see
/// [`ProcessGroup::recv_any`](phalanx::ProcessGroup::recv_any).
///
/// # Examples
/// Rank 0 takes results as they come:
/// ```
/// # use burn::tensor::{Device, Tensor};
/// # std::thread::scope(|s| { for group in phalanx::threads(3) { s.spawn(move || {
/// let mine = Tensor::<1>::full([2], group.rank() as f32, &Device::default());
/// if group.rank() == 0 {
///     for _ in 1..group.world_size() {
///         let (result, worker) = phalanx_burn::recv_any(&group, mine.zeros_like())?;
///         assert_eq!(result.to_data().as_slice::<f32>().unwrap(), [worker as f32; 2]);
///     }
/// } else {
///     phalanx_burn::send(&group, mine, 0)?;
/// }
/// # Ok::<(), phalanx_burn::Error>(()) }); } });
/// ```
#[track_caller]
pub fn recv_any<const D: usize, K: Numeric>(
    group: &ProcessGroup,
    output: Tensor<D, K>,
) -> Result<(Tensor<D, K>, usize)> {
    let (site, device) = (CallSite::caller(), output.device());
    let mut theirs = Elements::of(OpKind::RecvAny, output)?;
    let dtype = theirs.dtype();
    let from = group.untyped(dtype).called_at(site).recv_any(theirs.bytes_mut(), TAG, None)?;
    Ok((theirs.into_tensor(&device), from))
}

/// Performs what has one buffer, which is read and overwritten.
fn in_place<'b, const D: usize, K: Numeric>(
    group: &ProcessGroup,
    op: OpKind,
    tensor: Tensor<D, K>,
    site: CallSite,
    request: impl for<'a> FnOnce(&'a mut [u8]) -> Request<&'b [u8], &'a mut [u8]>,
) -> Result<Tensor<D, K>> {
    let device = tensor.device();
    let mut elements = Elements::of(op, tensor)?;
    let dtype = elements.dtype();
    group.untyped(dtype).called_at(site).request(request(elements.bytes_mut()))?;
    Ok(elements.into_tensor(&device))
}

/// The dimensions of as many tensors as there are ranks, one after the other.
fn gathered(dims: &[usize], world_size: usize) -> Vec<usize> {
    let mut all = dims.to_vec();
    all[0] *= world_size; // burn has no tensors without dimensions
    all
}

/// The dimensions of one of as many parts as there are ranks.
fn dealt(op: OpKind, dims: &[usize], world_size: usize) -> Result<Vec<usize>> {
    if !dims[0].is_multiple_of(world_size) {
        let what = format!("the first dimension of {dims:?} must be a multiple of the {world_size} ranks");
        return Err(Error::misuse(op, what).into());
    }
    let mut mine = dims.to_vec();
    mine[0] /= world_size;
    Ok(mine)
}
