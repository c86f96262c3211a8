//! Tensors from one rank to another.

use crate::backend::{Backend, TAG};
use crate::collectives::DEFAULT_COLLECTIVE_TIMEOUT;
use crate::error::{refused, told};
use crate::values::{Values, with_numbers};
use ferrotorch_core::{FerrotorchResult, Float, Tensor, creation};
use std::time::Duration;

/// Sends a tensor's elements to `dst_rank`.
///
/// # Errors
/// As for [`Backend::send`].
///
/// # Examples
/// ```
/// use ferrotorch_core::creation;
/// use phalanx_ferrotorch::{SimulatedBackend, recv, send};
///
/// let backends = SimulatedBackend::create_group(2)?;
/// send(&creation::from_slice(&[1f32, 2.0], &[2])?, 1, &backends[0])?; // short: it needs no receiver yet
/// let received = recv::<f32>(&[1, 2], 0, &backends[1])?;
/// assert_eq!((received.shape(), received.data()?), (&[1, 2][..], &[1.0, 2.0][..]));
/// # Ok::<(), ferrotorch_core::FerrotorchError>(())
/// ```
#[track_caller]
pub fn send<T: Float>(tensor: &Tensor<T>, dst_rank: usize, backend: &dyn Backend) -> FerrotorchResult<()> {
    let values = Values::of(tensor)?;
    with_numbers!(&values, numbers => backend.group().send(numbers, dst_rank, TAG)).map_err(told)
}

/// A tensor of this shape with the elements that `src_rank` sends: [`recv_with_timeout`] with [`DEFAULT_COLLECTIVE_TIMEOUT`].
///
/// # Errors
/// As for [`recv_with_timeout`].
#[track_caller]
pub fn recv<T: Float>(
    shape: &[usize],
    src_rank: usize,
    backend: &dyn Backend,
) -> FerrotorchResult<Tensor<T>> {
    recv_with_timeout(shape, src_rank, backend, DEFAULT_COLLECTIVE_TIMEOUT)
}

/// A tensor of this shape with the elements that `src_rank` sends within `timeout`.
///
/// # Errors
/// Nothing came in time, of which the group lives on. The others as for [`Backend::recv`]: a message of another type or length among them.
#[track_caller]
pub fn recv_with_timeout<T: Float>(
    shape: &[usize],
    src_rank: usize,
    backend: &dyn Backend,
    timeout: Duration,
) -> FerrotorchResult<Tensor<T>> {
    let len = shape.iter().try_fold(1usize, |len, &dim| len.checked_mul(dim));
    let len = len.ok_or_else(|| refused(format!("recv: no tensor has the shape {shape:?}")))?;
    let mut values = Values::of(&creation::zeros::<T>(&[len])?)?;
    let group = backend.group();
    with_numbers!(&mut values, numbers => group.recv_timeout(numbers, src_rank, TAG, timeout))
        .map_err(told)?;
    values.into_tensor(shape.to_vec())
}

/// Puts a new tensor in the place of `out`, of its shape, with the elements that `src_rank` sends.
///
/// # Errors
/// As for [`recv`]; `out` is as it was then.
#[track_caller]
pub fn recv_into<T: Float>(
    out: &mut Tensor<T>,
    src_rank: usize,
    backend: &dyn Backend,
) -> FerrotorchResult<()> {
    recv_into_with_timeout(out, src_rank, backend, DEFAULT_COLLECTIVE_TIMEOUT)
}

/// As [`recv_into`], within `timeout`.
///
/// # Errors
/// As for [`recv_with_timeout`]; `out` is as it was then.
#[track_caller]
pub fn recv_into_with_timeout<T: Float>(
    out: &mut Tensor<T>,
    src_rank: usize,
    backend: &dyn Backend,
    timeout: Duration,
) -> FerrotorchResult<()> {
    *out = recv_with_timeout(out.shape(), src_rank, backend, timeout)?;
    Ok(())
}

/// Exchanges tensors with `peer`: sends one, and returns the one that comes, of shape `recv_shape`. Neither waits for the other to receive.
///
/// # Errors
/// As for [`send`] and [`recv`].
///
/// # Examples
/// ```
/// use ferrotorch_core::creation;
/// use phalanx_ferrotorch::{Backend, SimulatedBackend, sendrecv};
///
/// std::thread::scope(|scope| {
///     for backend in SimulatedBackend::create_group(2).unwrap() {
///         scope.spawn(move || {
///             let mine = creation::full(&[3], backend.rank() as f64).unwrap();
///             let theirs = sendrecv(&mine, &[3], 1 - backend.rank(), &backend).unwrap();
///             assert_eq!(theirs.data().unwrap(), [1.0 - backend.rank() as f64; 3]);
///         });
///     }
/// });
/// ```
#[track_caller]
pub fn sendrecv<T: Float>(
    send_tensor: &Tensor<T>,
    recv_shape: &[usize],
    peer: usize,
    backend: &dyn Backend,
) -> FerrotorchResult<Tensor<T>> {
    let values = Values::of(send_tensor)?;
    let sending =
        with_numbers!(values, numbers => backend.group().send_async(numbers, peer, TAG).map(Sending::of));
    let sending = sending.map_err(told)?;
    let received = recv(recv_shape, peer, backend)?;
    sending.wait().map_err(told)?;
    Ok(received)
}

/// A message under way, whatever its type.
struct Sending(Box<dyn FnOnce() -> phalanx::Result<()>>);

impl Sending {
    fn of<R: Send + 'static>(work: phalanx::Work<R>) -> Self {
        Self(Box::new(move || work.wait().map(drop)))
    }

    fn wait(self) -> phalanx::Result<()> {
        (self.0)()
    }
}
