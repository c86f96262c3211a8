//! Messages that are performed together.

use crate::ProcessGroup;
use crate::group::backend::{HostMessage, Payload};
use phalanx_core::{Element, OpKind, Result};

/// Messages to and from any ranks, which [`perform`](Self::perform) sends and receives side by side: `batch_isend_irecv` of PyTorch, `MPI_Isend`
/// and `MPI_Irecv` with `MPI_Waitall`, `ncclSend` and `ncclRecv` in a group. Made by [`ProcessGroup::batch`].
///
/// It borrows the buffers, so that none is in it twice unless it is only read.
#[derive(Debug)]
#[must_use = "nothing is sent before `perform`"]
pub struct MessageBatch<'a> {
    group: &'a ProcessGroup,
    messages: Vec<HostMessage<'a>>,
}

impl ProcessGroup {
    /// Messages to be sent and received together; none yet. In a ring, where each rank sends to the next and receives from the one before, no rank
    /// waits for another to receive first, however long the buffers are.
    ///
    /// # Examples
    /// Each rank gives its buffer to the next:
    /// ```
    /// # phalanx_group::on_threads(3, |group| {
    /// let (rank, ranks) = (group.rank(), group.world_size());
    /// let (mine, mut theirs) = (vec![rank as u64; 100_000], vec![0; 100_000]);
    /// let mut batch = group.batch();
    /// batch.send(&mine, (rank + 1) % ranks, 0)?;
    /// batch.recv(&mut theirs, (rank + ranks - 1) % ranks, 0)?;
    /// batch.perform()?;
    /// assert_eq!(theirs[99_999], (rank as u64 + 2) % 3);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn batch(&self) -> MessageBatch<'_> {
        MessageBatch { group: self, messages: Vec::new() }
    }
}

impl<'a> MessageBatch<'a> {
    /// Adds a message of all elements of `buffer` to `dst`. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Misuse`](crate::Error::Misuse): no such rank, or this one. The batch is as before then.
    ///
    /// # Examples
    /// ```
    /// let group = &phalanx_group::threads(1)[0];
    /// let error = group.batch().send(&[1.0f32], 1, 0).unwrap_err();
    /// assert!(error.to_string().contains("rank 1 is out of range: the ranks of this group are 0..1"));
    /// ```
    #[track_caller]
    pub fn send<T: Element>(&mut self, buffer: &'a [T], dst: usize, tag: u64) -> Result<()> {
        let address = self.group.address(OpKind::Send, T::DTYPE, buffer.len(), dst, tag)?;
        self.messages.push(HostMessage { address, payload: Payload::Out(bytemuck::cast_slice(buffer)) });
        Ok(())
    }

    /// Adds the message with `tag` from `src`, which must have exactly the length and the element type of `buffer`. Nothing is received yet.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let (peer, mut theirs) = (1 - group.rank(), [0u8; 2]);
    /// let mut batch = group.batch();
    /// batch.recv(&mut theirs, peer, 5)?;
    /// batch.send(&[1u8, 2], peer, 5)?;
    /// batch.perform()?;
    /// assert_eq!(theirs, [1, 2]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn recv<T: Element>(&mut self, buffer: &'a mut [T], src: usize, tag: u64) -> Result<()> {
        let address = self.group.address(OpKind::Recv, T::DTYPE, buffer.len(), src, tag)?;
        self.messages.push(HostMessage { address, payload: Payload::In(bytemuck::cast_slice_mut(buffer)) });
        Ok(())
    }

    /// Performs all messages side by side, on this thread, and returns when all are done: all within the [limit](ProcessGroup::with_timeout) of the
    /// group's handle. Those to one peer, and those from one peer with one tag, keep the order in which they were added; they match the other rank's
    /// messages whether that rank sends and receives in a batch or by single calls. An empty batch returns at once.
    ///
    /// # Cost
    /// Nothing is copied, but for short messages whose receivers are late, as for [`send`](ProcessGroup::send). In a group over several hosts, a batch
    /// with messages both inside this host and across starts a thread.
    /// # Determinism
    /// In which order messages to several peers move is not specified; what they bring is.
    /// # Errors
    /// As for [`ProcessGroup::send`] and [`ProcessGroup::recv`]: the error tells of one message that could not be done, with its peer, its tag and the
    /// line that added it. The group is in error then, and buffers that were to be received into hold unspecified values.
    ///
    /// # Examples
    /// The neighbours of a rank in a line exchange their edges:
    /// ```
    /// # phalanx_group::on_threads(3, |group| {
    /// let (rank, last) = (group.rank(), group.world_size() - 1);
    /// let edges = [rank as f32; 2];
    /// let (mut left, mut right) = ([-1.0f32], [-1.0f32]);
    /// let mut batch = group.batch();
    /// if rank > 0 {
    ///     batch.send(&edges[..1], rank - 1, 0)?;
    ///     batch.recv(&mut left, rank - 1, 0)?;
    /// }
    /// if rank < last {
    ///     batch.send(&edges[1..], rank + 1, 0)?;
    ///     batch.recv(&mut right, rank + 1, 0)?;
    /// }
    /// batch.perform()?;
    /// assert_eq!((left, right), [([-1.0], [1.0]), ([0.0], [2.0]), ([1.0], [-1.0])][rank]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn perform(self) -> Result<()> {
        self.group.backend.perform_messages(self.messages, self.group.timeout())
    }
}
