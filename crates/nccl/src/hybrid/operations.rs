//! The operations of a [`HybridGroup`], alike for all places.

use super::HybridGroup;
use super::place::{Asked, Place};
use crate::group::Work;
use phalanx_core::{CallSite, Layout, ReduceOp, Result};
use phalanx_group::{BlockExchange, Buffers, Request};

/// Each takes slices of the host's memory (`&mut x[..]`) and [`DeviceBuffer`](crate::DeviceBuffer)s alike, and sends them by the half that reaches them. All data of
/// a call is in one place. Shapes are those of a [`ProcessGroup`](phalanx_group::ProcessGroup), errors those of the [contract](Self#contract).
///
/// On memory of the host, and over it, a call returns when the operation is over; else the [`Work`] says when.
impl HybridGroup {
    /// Every rank ends with the combination of all.
    ///
    /// # Errors
    /// See above.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let all = phalanx_nccl::HybridGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (all.rank(), all.stream());
    /// let mut buffer = DeviceBuffer::from_host(stream, &[rank as f32, 1.0])?;
    /// all.all_reduce(&mut buffer, ReduceOp::Sum)?.wait()?;
    /// assert_eq!(buffer.to_host(stream, limit)?, [1.0, 2.0]);
    /// # all.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn all_reduce<P: Place + ?Sized>(&self, buffer: &mut P, op: ReduceOp) -> Result<Work> {
        let request = Request::AllReduce { buffers: Buffers::InPlace(buffer), reduce: op };
        P::perform(Asked::Collective(request), self, CallSite::caller())
    }

    /// `root` ends with the combination of all. What the others have afterwards is not specified.
    ///
    /// # Errors
    /// See above.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let all = phalanx_nccl::HybridGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (all.rank(), all.stream());
    /// let mut buffer = DeviceBuffer::from_host(stream, &[rank as f32, 1.0])?;
    /// all.reduce(&mut buffer, ReduceOp::Sum, 0)?.wait()?;
    /// if rank == 0 {
    ///     assert_eq!(buffer.to_host(stream, limit)?, [1.0, 2.0]);
    /// }
    /// # all.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn reduce<P: Place + ?Sized>(&self, buffer: &mut P, op: ReduceOp, root: usize) -> Result<Work> {
        let request = Request::Reduce { buffer, reduce: op, root };
        P::perform(Asked::Collective(request), self, CallSite::caller())
    }

    /// Every rank ends with what `root` has.
    ///
    /// # Errors
    /// See above.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let all = phalanx_nccl::HybridGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (all.rank(), all.stream());
    /// let mut buffer = DeviceBuffer::from_host(stream, &[rank as f32; 3])?;
    /// all.broadcast(&mut buffer, 1)?.wait()?;
    /// assert_eq!(buffer.to_host(stream, limit)?, [1.0; 3]); // what rank 1 has
    /// # all.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn broadcast<P: Place + ?Sized>(&self, buffer: &mut P, root: usize) -> Result<Work> {
        P::perform(Asked::Collective(Request::Broadcast { buffer, root }), self, CallSite::caller())
    }

    /// Every rank ends with the inputs of all.
    ///
    /// # Errors
    /// See above.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let all = phalanx_nccl::HybridGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (all.rank(), all.stream());
    /// let input = DeviceBuffer::from_host(stream, &[rank as f32])?;
    /// let mut output = DeviceBuffer::zeros(stream, 2)?;
    /// all.all_gather(&input, &mut output)?.wait()?;
    /// assert_eq!(output.to_host(stream, limit)?, [0.0, 1.0]);
    /// # all.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn all_gather<P: Place + ?Sized>(&self, input: &P, output: &mut P) -> Result<Work> {
        let blocks = self.blocks_of(input.count());
        let request = Request::AllGather { buffers: Buffers::Separate(input, output), blocks };
        P::perform(Asked::Collective(request), self, CallSite::caller())
    }

    /// Every rank ends with its part of the combination of all.
    ///
    /// # Errors
    /// See above.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::ReduceOp;
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let all = phalanx_nccl::HybridGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (all.rank(), all.stream());
    /// let input = DeviceBuffer::from_host(stream, &[1.0f32, 2.0])?;
    /// let mut output = DeviceBuffer::zeros(stream, 1)?;
    /// all.reduce_scatter(&input, &mut output, ReduceOp::Sum)?.wait()?;
    /// assert_eq!(output.to_host(stream, limit)?, [[2.0], [4.0]][rank]);
    /// # all.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn reduce_scatter<P: Place + ?Sized>(&self, input: &P, output: &mut P, op: ReduceOp) -> Result<Work> {
        let blocks = self.blocks_of(output.count());
        let buffers = Buffers::Separate(input, output);
        let request = Request::ReduceScatter { buffers, blocks, reduce: op };
        P::perform(Asked::Collective(request), self, CallSite::caller())
    }

    /// Every rank ends with its part of the input of each.
    ///
    /// # Errors
    /// See above.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let all = phalanx_nccl::HybridGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (all.rank(), all.stream());
    /// let input = DeviceBuffer::from_host(stream, &[[1.0f32, 2.0], [3.0, 4.0]][rank])?;
    /// let mut output = DeviceBuffer::zeros(stream, 2)?;
    /// all.all_to_all(&input, &mut output)?.wait()?;
    /// assert_eq!(output.to_host(stream, limit)?, [[1.0, 3.0], [2.0, 4.0]][rank]);
    /// # all.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn all_to_all<P: Place + ?Sized>(&self, input: &P, output: &mut P) -> Result<Work> {
        let blocks = BlockExchange::Even { count: input.count() / self.world_size() };
        let request = Request::AllToAll { buffers: Buffers::Separate(input, output), blocks };
        P::perform(Asked::Collective(request), self, CallSite::caller())
    }

    /// `root` ends with the inputs of all in its output, which the others lack.
    ///
    /// # Errors
    /// See above.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let all = phalanx_nccl::HybridGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (all.rank(), all.stream());
    /// let input = DeviceBuffer::from_host(stream, &[rank as f32])?;
    /// let mut output = (rank == 0).then(|| DeviceBuffer::zeros(stream, 2)).transpose()?;
    /// all.gather(&input, output.as_mut(), 0)?.wait()?;
    /// if let Some(output) = output {
    ///     assert_eq!(output.to_host(stream, limit)?, [0.0, 1.0]);
    /// }
    /// # all.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn gather<P: Place + ?Sized>(&self, input: &P, output: Option<&mut P>, root: usize) -> Result<Work> {
        let blocks = self.blocks_of(input.count());
        let request = Request::Gather { input: Some(input), output, blocks, root };
        P::perform(Asked::Collective(request), self, CallSite::caller())
    }

    /// Every rank ends with its part of the input of `root`, which the others lack.
    ///
    /// # Errors
    /// See above.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let all = phalanx_nccl::HybridGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (all.rank(), all.stream());
    /// let input = (rank == 0).then(|| DeviceBuffer::from_host(stream, &[1.0f32, 2.0])).transpose()?;
    /// let mut output = DeviceBuffer::zeros(stream, 1)?;
    /// all.scatter(input.as_ref(), &mut output, 0)?.wait()?;
    /// assert_eq!(output.to_host(stream, limit)?, [[1.0], [2.0]][rank]);
    /// # all.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn scatter<P: Place + ?Sized>(&self, input: Option<&P>, output: &mut P, root: usize) -> Result<Work> {
        let blocks = self.blocks_of(output.count());
        let request = Request::Scatter { input, output: Some(output), blocks, root };
        P::perform(Asked::Collective(request), self, CallSite::caller())
    }

    /// Sends to `dst`, another rank, which receives. Messages between two ranks arrive in order, those of the host apart from those of the devices;
    /// messages with tags are for the [host](Self::host).
    ///
    /// # Errors
    /// See above.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let all = phalanx_nccl::HybridGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (all.rank(), all.stream());
    /// let mut buffer = DeviceBuffer::from_host(stream, &[rank as f32; 3])?;
    /// match rank {
    ///     0 => all.send(&buffer, 1)?.wait()?,
    ///     _ => all.recv(&mut buffer, 0)?.wait()?,
    /// }
    /// assert_eq!(buffer.to_host(stream, limit)?, [0.0; 3]);
    /// # all.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn send<P: Place + ?Sized>(&self, buffer: &P, dst: usize) -> Result<Work> {
        P::perform(Asked::Send(buffer, dst), self, CallSite::caller())
    }

    /// Receives what `src` sends next to this rank, in a place of the same kind.
    ///
    /// # Errors
    /// See above.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let limit = std::time::Duration::from_secs(60);
    /// # let all = phalanx_nccl::HybridGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (all.rank(), all.stream());
    /// let mut buffer = DeviceBuffer::from_host(stream, &[rank as f32; 3])?;
    /// match rank {
    ///     0 => all.send(&buffer, 1)?.wait()?,
    ///     _ => all.recv(&mut buffer, 0)?.wait()?,
    /// }
    /// assert_eq!(buffer.to_host(stream, limit)?, [0.0; 3]);
    /// # all.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn recv<P: Place + ?Sized>(&self, buffer: &mut P, src: usize) -> Result<Work> {
        P::perform(Asked::Recv(buffer, src), self, CallSite::caller())
    }

    /// Receives into memory of the host what whichever rank sends first from its own, and returns that rank, as
    /// [`ProcessGroup::recv_any`](phalanx_group::ProcessGroup::recv_any) does; it waits for that.
    ///
    /// # Errors
    /// [`Unsupported`](phalanx_core::Error::Unsupported) for memory of a device: NCCL receives only from a rank that is named. Nothing was begun then. Others:
    /// see above.
    ///
    /// # Examples
    /// ```
    /// use phalanx_nccl::DeviceBuffer;
    ///
    /// # phalanx_nccl_double::stand_in();
    /// # phalanx_group::on_threads(2, |group| {
    /// # let all = phalanx_nccl::HybridGroup::new(&group, group.rank())?;
    /// # let (rank, stream) = (all.rank(), all.stream());
    /// if rank == 1 {
    ///     all.send(&[2.5f32][..], 0)?.wait()?;
    /// } else {
    ///     let mut loss = [0f32];
    ///     assert_eq!(all.recv_any(&mut loss[..])?, 1);
    ///     assert_eq!(loss, [2.5]);
    ///     let refused = all.recv_any(&mut DeviceBuffer::<f32>::zeros(stream, 1)?).unwrap_err();
    ///     assert!(refused.to_string().contains("NCCL receives only from a rank that is named"), "{refused}");
    /// }
    /// # all.finalize()
    /// # })?;
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    #[track_caller]
    pub fn recv_any<P: Place + ?Sized>(&self, buffer: &mut P) -> Result<usize> {
        buffer.recv_any(self, CallSite::caller())
    }

    /// A block of `count` elements for each rank.
    fn blocks_of(&self, count: usize) -> Layout {
        Layout::even(self.world_size(), count * self.world_size())
    }
}
