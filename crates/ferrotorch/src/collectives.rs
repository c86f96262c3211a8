//! Collectives on tensors, with the names and results of `ferrotorch-distributed`.

use crate::backend::Backend;
use crate::error::{refused, told};
use crate::values::{Values, same_type, with_numbers};
use ferrotorch_core::{FerrotorchResult, Float, Tensor};
use phalanx::ProcessGroup;
use std::time::Duration;

/// How long operations without a time limit of their own may take.
pub const DEFAULT_COLLECTIVE_TIMEOUT: Duration = Duration::from_secs(60);

/// How values are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReduceOp {
    /// The sum over all ranks.
    Sum,
    /// The sum, divided by the number of ranks.
    Mean,
}

impl From<ReduceOp> for phalanx::ReduceOp {
    fn from(op: ReduceOp) -> Self {
        match op {
            ReduceOp::Sum => Self::Sum,
            ReduceOp::Mean => Self::Avg,
        }
    }
}

fn limited(backend: &dyn Backend, timeout: Duration) -> ProcessGroup {
    backend.group().with_timeout(timeout)
}

/// A new tensor of the same shape with the values of all ranks combined. Within [`DEFAULT_COLLECTIVE_TIMEOUT`].
///
/// # Errors
/// Ranks that do not call the same operation on as many elements, a rank that is lost or late: as for
/// [`all_reduce`](ProcessGroup::all_reduce).
///
/// # Examples
/// ```
/// use ferrotorch_core::creation;
/// use phalanx_ferrotorch::{Backend, ReduceOp, SimulatedBackend, allreduce};
///
/// std::thread::scope(|scope| {
///     for backend in SimulatedBackend::create_group(4).unwrap() {
///         scope.spawn(move || {
///             let mine = creation::full(&[2, 3], backend.rank() as f32).unwrap();
///             let mean = allreduce(&mine, &backend, ReduceOp::Mean).unwrap();
///             assert_eq!((mean.shape(), mean.data().unwrap()), (&[2, 3][..], &[1.5; 6][..]));
///         });
///     }
/// });
/// ```
#[track_caller]
pub fn allreduce<T: Float>(
    tensor: &Tensor<T>,
    backend: &dyn Backend,
    op: ReduceOp,
) -> FerrotorchResult<Tensor<T>> {
    allreduce_with_timeout(tensor, backend, op, DEFAULT_COLLECTIVE_TIMEOUT)
}

/// As [`allreduce`], within `timeout`.
///
/// # Errors
/// As for [`allreduce`].
#[track_caller]
pub fn allreduce_with_timeout<T: Float>(
    tensor: &Tensor<T>,
    backend: &dyn Backend,
    op: ReduceOp,
    timeout: Duration,
) -> FerrotorchResult<Tensor<T>> {
    let mut values = Values::of(tensor)?;
    let group = limited(backend, timeout);
    with_numbers!(&mut values, numbers => group.all_reduce(numbers, op.into())).map_err(told)?;
    values.into_tensor(tensor.shape().to_vec())
}

/// A new tensor with the values that `tensor` has on rank `root`. All ranks pass one of the same number of elements.
///
/// # Errors
/// There is no such root. The others as for [`allreduce`].
#[track_caller]
pub fn broadcast<T: Float>(
    tensor: &Tensor<T>,
    backend: &dyn Backend,
    root: usize,
) -> FerrotorchResult<Tensor<T>> {
    let mut values = Values::of(tensor)?;
    let group = limited(backend, DEFAULT_COLLECTIVE_TIMEOUT);
    with_numbers!(&mut values, numbers => group.broadcast(numbers, root)).map_err(told)?;
    values.into_tensor(tensor.shape().to_vec())
}

/// The tensors of all ranks in rank order, one after the other along the first dimension. Within [`DEFAULT_COLLECTIVE_TIMEOUT`].
///
/// # Errors
/// As for [`allreduce`].
#[track_caller]
pub fn all_gather<T: Float>(tensor: &Tensor<T>, backend: &dyn Backend) -> FerrotorchResult<Tensor<T>> {
    all_gather_with_timeout(tensor, backend, DEFAULT_COLLECTIVE_TIMEOUT)
}

/// As [`all_gather`], within `timeout`.
///
/// # Errors
/// As for [`all_gather`].
#[track_caller]
pub fn all_gather_with_timeout<T: Float>(
    tensor: &Tensor<T>,
    backend: &dyn Backend,
    timeout: Duration,
) -> FerrotorchResult<Tensor<T>> {
    let world_size = backend.world_size();
    if world_size == 1 {
        return Ok(tensor.clone());
    }
    let mut shape = tensor.shape().to_vec();
    match shape.first_mut() {
        Some(first) => *first *= world_size,
        None => shape.push(world_size),
    }
    let values = Values::of(tensor)?;
    let mut all = values.zeros(values.len() * world_size);
    let group = limited(backend, timeout);
    same_type!((&values, &mut all), (input, output) => group.all_gather(input, output))?;
    all.into_tensor(shape)
}

/// This rank's block of the combined values: the rows `rank · n .. (rank + 1) · n` of the first dimension, of which each rank gets as many. Within
/// [`DEFAULT_COLLECTIVE_TIMEOUT`].
///
/// # Errors
/// The first dimension can't be divided by the number of ranks. The others as for [`allreduce`].
#[track_caller]
pub fn reduce_scatter<T: Float>(
    tensor: &Tensor<T>,
    backend: &dyn Backend,
    op: ReduceOp,
) -> FerrotorchResult<Tensor<T>> {
    reduce_scatter_with_timeout(tensor, backend, op, DEFAULT_COLLECTIVE_TIMEOUT)
}

/// Another name of [`reduce_scatter`].
///
/// # Errors
/// As for [`reduce_scatter`].
#[track_caller]
pub fn reduce_scatter_tensor<T: Float>(
    tensor: &Tensor<T>,
    backend: &dyn Backend,
    op: ReduceOp,
) -> FerrotorchResult<Tensor<T>> {
    reduce_scatter(tensor, backend, op)
}

/// As [`reduce_scatter`], within `timeout`.
///
/// # Errors
/// As for [`reduce_scatter`].
#[track_caller]
pub fn reduce_scatter_with_timeout<T: Float>(
    tensor: &Tensor<T>,
    backend: &dyn Backend,
    op: ReduceOp,
    timeout: Duration,
) -> FerrotorchResult<Tensor<T>> {
    let world_size = backend.world_size();
    if world_size == 1 {
        return Ok(tensor.clone());
    }
    let mut shape = tensor.shape().to_vec();
    match shape.first_mut() {
        Some(first) if first.is_multiple_of(world_size) => *first /= world_size,
        _ => {
            let what = format!(
                "reduce_scatter: the shape {shape:?} can't be divided among {world_size} ranks along its first dimension"
            );
            return Err(refused(what));
        }
    }
    let values = Values::of(tensor)?;
    let mut own = values.zeros(values.len() / world_size);
    let group = limited(backend, timeout);
    same_type!((&values, &mut own), (input, output) => group.reduce_scatter(input, output, op.into()))?;
    own.into_tensor(shape)
}

/// A tensor of the same shape that holds, in rank order, the blocks that all ranks have for this one. Each rank's elements are as many blocks of equal
/// length as there are ranks; block `i` is for rank `i`. Within [`DEFAULT_COLLECTIVE_TIMEOUT`].
///
/// # Errors
/// The elements can't be divided by the number of ranks. The others as for [`allreduce`].
#[track_caller]
pub fn all_to_all<T: Float>(tensor: &Tensor<T>, backend: &dyn Backend) -> FerrotorchResult<Tensor<T>> {
    all_to_all_with_timeout(tensor, backend, DEFAULT_COLLECTIVE_TIMEOUT)
}

/// As [`all_to_all`], within `timeout`.
///
/// # Errors
/// As for [`all_to_all`].
#[track_caller]
pub fn all_to_all_with_timeout<T: Float>(
    tensor: &Tensor<T>,
    backend: &dyn Backend,
    timeout: Duration,
) -> FerrotorchResult<Tensor<T>> {
    let values = Values::of(tensor)?;
    if !values.len().is_multiple_of(backend.world_size()) {
        let (len, world_size) = (values.len(), backend.world_size());
        return Err(refused(format!("all_to_all: {len} elements can't be divided among {world_size} ranks")));
    }
    let mut received = values.zeros(values.len());
    let group = limited(backend, timeout);
    same_type!((&values, &mut received), (input, output) => group.all_to_all(input, output))?;
    received.into_tensor(tensor.shape().to_vec())
}

/// A tensor of one dimension with what each rank has for this one: `recv_sizes[i]` elements of rank `i`, which gets `send_sizes[i]`. Within
/// [`DEFAULT_COLLECTIVE_TIMEOUT`].
///
/// # Errors
/// As many sizes as ranks are needed, and as many elements as are sent. What a rank sends must be what the other expects; the error names both.
#[track_caller]
pub fn all_to_all_single_uneven<T: Float>(
    tensor: &Tensor<T>,
    send_sizes: &[usize],
    recv_sizes: &[usize],
    backend: &dyn Backend,
) -> FerrotorchResult<Tensor<T>> {
    let values = Values::of(tensor)?;
    let len = recv_sizes.iter().try_fold(0usize, |sum, &len| sum.checked_add(len));
    let len = len.ok_or_else(|| refused("all_to_all_single_uneven: the sizes overflow"))?;
    let mut received = values.zeros(len);
    let group = limited(backend, DEFAULT_COLLECTIVE_TIMEOUT);
    same_type!((&values, &mut received), (input, output) => group.all_to_all_v(input, send_sizes, output, recv_sizes))?;
    received.into_tensor(vec![len])
}

/// Waits until every rank has come here.
///
/// # Errors
/// As for [`Backend::barrier`].
#[track_caller]
pub fn barrier(backend: &dyn Backend) -> FerrotorchResult<()> {
    backend.group().barrier().map_err(told)
}
