//! Messages from one rank of a group to another.

use crate::ProcessGroup;
use crate::group::backend::OnTimeout;
use phalanx_core::{Element, OpKind, Result};
use std::time::Duration;

/// Messages go on beside collectives, and need no other ranks than the two. Lengths are in elements.
impl ProcessGroup {
    /// Sends `buffer` to `dst`. Messages to one peer with one tag arrive in the order in which they were sent.
    ///
    /// A message of at most [`EAGER_LIMIT`](crate::EAGER_LIMIT) bytes needs no receiver: `send` returns when its bytes are on their way or
    /// copied, as long as `dst` has not left more than that unreceived. It must be received within the timeout nevertheless, or the
    /// group fails. A longer `send` may wait until `dst` receives: two ranks that both send such messages first wait for
    /// each other. Use [`send_async`](Self::send_async) or [`recv_async`](Self::recv_async) there.
    ///
    /// # Errors
    /// [`Misuse`](crate::Error::Misuse): no such rank, or this one. [`PeerLost`](crate::Error::PeerLost), [`Timeout`](crate::Error::Timeout): see the [contract](Self#contract).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// const LOSS: u64 = 1; // a tag
    /// match group.rank() {
    ///     0 => group.send(&[0.25, 0.5], 1, LOSS)?,
    ///     _ => {
    ///         let mut loss = [0.0; 2];
    ///         group.recv(&mut loss, 0, LOSS)?;
    ///         assert_eq!(loss, [0.25, 0.5]);
    ///     }
    /// }
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn send<T: Element>(&self, buffer: &[T], dst: usize, tag: u64) -> Result<()> {
        let to = self.address(OpKind::Send, T::DTYPE, buffer.len(), dst, tag)?;
        self.backend.send(to, bytemuck::cast_slice(buffer), self.timeout())
    }

    /// Receives the message with `tag` that `src` sent; it must have exactly this length and element type. Messages
    /// with other tags, or from others, are left for later calls.
    ///
    /// # Errors
    /// [`Misuse`](crate::Error::Misuse): no such rank, or this one. [`Mismatch`](crate::Error::Mismatch): the message has another
    /// type or length. [`PeerLost`](crate::Error::PeerLost), [`Timeout`](crate::Error::Timeout): see the [contract](Self#contract).
    ///
    /// # Examples
    /// Messages with other tags wait:
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// if group.rank() == 0 {
    ///     group.send(&[1], 1, 10)?;
    ///     group.send(&[2], 1, 20)?;
    /// } else {
    ///     let (mut first, mut second) = ([0], [0]);
    ///     group.recv(&mut second, 0, 20)?;
    ///     group.recv(&mut first, 0, 10)?;
    ///     assert_eq!((first, second), ([1], [2]));
    /// }
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn recv<T: Element>(&self, buffer: &mut [T], src: usize, tag: u64) -> Result<()> {
        let from = self.address(OpKind::Recv, T::DTYPE, buffer.len(), src, tag)?;
        self.backend.recv(from, bytemuck::cast_slice_mut(buffer), self.timeout(), OnTimeout::FailGroup)
    }

    /// As [`recv`](Self::recv), but not to get a message within `timeout` is no failure of the group.
    ///
    /// # Errors
    /// [`NoMessage`](crate::Error::NoMessage): nothing came in time; the message may still come. The others as for [`recv`](Self::recv).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::Error;
    /// # use std::time::Duration;
    /// # phalanx_group::on_threads(2, |group| {
    /// let other = 1 - group.rank();
    /// let error = group.recv_timeout(&mut [0], other, 0, Duration::from_millis(1)).unwrap_err();
    /// assert!(matches!(error, Error::NoMessage { .. }) && error.group_is_usable());
    /// group.barrier()?;
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn recv_timeout<T: Element>(
        &self,
        buffer: &mut [T],
        src: usize,
        tag: u64,
        timeout: Duration,
    ) -> Result<()> {
        let from = self.address(OpKind::Recv, T::DTYPE, buffer.len(), src, tag)?;
        self.backend.recv(from, bytemuck::cast_slice_mut(buffer), timeout, OnTimeout::ReturnNoMessage)
    }
}
