//! The operations of a [`ProcessGroup`] that return at once with a [`Work`].

use crate::group::backend::Address;
use crate::group::request::{Buffers, Request};
use crate::group::work::Buffer;
use crate::{ProcessGroup, Work};
use phalanx_core::{Element, Error, Layout, OpKind, ReduceOp, Result};
use phalanx_kernels::copy_slice;

/// The asynchronous operations own their buffer until it is waited for. They are performed on the group's progress thread, or on a
/// thread that waits for one of them, in the order of the calls, and count as called when these return: blocking calls that follow are performed after them.
impl ProcessGroup {
    /// Begins an [`all_reduce`](Self::all_reduce) of a `Vec`, or of what [`alloc`](Self::alloc) returned.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::ReduceOp;
    /// # phalanx_group::on_threads(2, |group| {
    /// let work = group.all_reduce_async(vec![1.0f32, 2.0], ReduceOp::Sum)?;
    /// // … compute …
    /// assert_eq!(work.wait()?, [2.0, 4.0]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    /// While it runs, nobody else has the buffer:
    ///
    /// ```compile_fail,E0382
    /// use phalanx_core::{ReduceOp, Result};
    /// use phalanx_group::ProcessGroup;
    ///
    /// fn misuse(group: &ProcessGroup, buffer: Vec<f32>) -> Result<Vec<f32>> {
    ///     let work = group.all_reduce_async(buffer, ReduceOp::Sum)?;
    ///     println!("{}", buffer[0]);
    ///     work.wait()
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Misuse`](Error::Misuse), [`Poisoned`](Error::Poisoned); what goes wrong later comes from [`Work::wait`].
    #[track_caller]
    pub fn all_reduce_async<B: Buffer>(&self, buffer: B, op: ReduceOp) -> Result<Work<B>> {
        let request = Request::AllReduce { buffers: Buffers::InPlace(buffer), reduce: op };
        self.submit_of(OpKind::AllReduce, request, 0, self.site(), |buffer| buffer)
    }

    /// Begins a [`broadcast`](Self::broadcast).
    ///
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let weights = if group.rank() == 0 { vec![0.5, 1.5] } else { vec![0.0; 2] };
    /// let work = group.broadcast_async(weights, 0)?;
    /// // … compute …
    /// assert_eq!(work.wait()?, [0.5, 1.5]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn broadcast_async<T: Element>(&self, buffer: Vec<T>, root: usize) -> Result<Work<Vec<T>>> {
        self.submit_of(OpKind::Broadcast, Request::Broadcast { buffer, root }, 0, self.site(), |buffer| {
            buffer
        })
    }

    /// Begins a [`reduce`](Self::reduce).
    ///
    /// # Shape
    /// `buffer`: n elements. The result: as many; on `root` the combination, elsewhere unspecified values.
    /// # Determinism
    /// As of [`reduce`](Self::reduce).
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::ReduceOp;
    /// # phalanx_group::on_threads(2, |group| {
    /// let work = group.reduce_async(vec![1.0f32, 2.0], ReduceOp::Sum, 0)?;
    /// let sum = work.wait()?;
    /// assert!(group.rank() != 0 || sum == [2.0, 4.0]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn reduce_async<B: Buffer>(&self, buffer: B, op: ReduceOp, root: usize) -> Result<Work<B>> {
        let request = Request::Reduce { buffer, reduce: op, root };
        self.submit_of(OpKind::Reduce, request, 0, self.site(), |buffer| buffer)
    }

    /// Begins a [`scan`](Self::scan).
    ///
    /// # Shape
    /// `buffer`, and the result: n elements.
    /// # Determinism
    /// As of [`scan`](Self::scan).
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::ReduceOp;
    /// # phalanx_group::on_threads(2, |group| {
    /// let work = group.scan_async(vec![1.0f32, 2.0], ReduceOp::Sum)?;
    /// // … compute …
    /// assert_eq!(work.wait()?, [[1.0, 2.0], [2.0, 4.0]][group.rank()]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn scan_async<B: Buffer>(&self, buffer: B, op: ReduceOp) -> Result<Work<B>> {
        let request = Request::Scan { buffers: Buffers::InPlace(buffer), reduce: op };
        self.submit_of(OpKind::Scan, request, 0, self.site(), |buffer| buffer)
    }

    /// Begins an [`all_gather`](Self::all_gather); the result has P × n elements.
    ///
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let work = group.all_gather_async(&[group.rank() as u64])?;
    /// assert_eq!(work.wait()?, [0, 1]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn all_gather_async<T: Element>(&self, input: &[T]) -> Result<Work<Vec<T>>> {
        let blocks = Layout::even(self.world_size(), input.len() * self.world_size());
        let mut output = vec![T::zeroed(); blocks.len()];
        copy_slice(
            bytemuck::cast_slice_mut(&mut output[blocks.block(self.rank())]),
            bytemuck::cast_slice(input),
        );
        let request = Request::AllGather { buffers: Buffers::InPlace(output), blocks };
        self.submit_of(OpKind::AllGather, request, 0, self.site(), |output| output)
    }

    /// Begins a [`reduce_scatter`](Self::reduce_scatter); the result has a P-th of the input's elements.
    ///
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::ReduceOp;
    /// # phalanx_group::on_threads(2, |group| {
    /// let work = group.reduce_scatter_async(vec![10, 20], ReduceOp::Sum)?;
    /// assert_eq!(work.wait()?, [[20], [40]][group.rank()]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn reduce_scatter_async<T: Element>(&self, input: Vec<T>, reduce: ReduceOp) -> Result<Work<Vec<T>>> {
        let (site, op, world_size) = (self.site(), OpKind::ReduceScatter, self.world_size());
        if !input.len().is_multiple_of(world_size) {
            let len = input.len();
            let what = format!(
                "input has {len} elements, expected a multiple of {world_size} (the ranks), at {site}"
            );
            return Err(Error::misuse(op, what));
        }
        let blocks = Layout::even(world_size, input.len());
        let own = blocks.block(self.rank());
        let request = Request::ReduceScatter { buffers: Buffers::InPlace(input), blocks, reduce };
        self.submit_of(op, request, 0, site, move |mut buffer: Vec<T>| {
            buffer.truncate(own.end);
            buffer.drain(..own.start);
            buffer
        })
    }

    /// Begins a [`barrier`](Self::barrier).
    ///
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let all_are_here = group.barrier_async()?;
    /// // … write a checkpoint …
    /// all_are_here.wait()?;
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn barrier_async(&self) -> Result<Work<()>> {
        let call = self.call(OpKind::Barrier, None, Request::Barrier, 0, self.site())?;
        self.submit(call, |_: Vec<u8>| ())
    }

    /// Begins a [`send`](Self::send).
    ///
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let other = 1 - group.rank();
    /// let sent = group.send_async(vec![0.5, 1.5], other, 0)?; // both send first, and neither waits for the other
    /// let mut received = [0.0; 2];
    /// group.recv(&mut received, other, 0)?;
    /// assert_eq!(sent.wait()?, received);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn send_async<T: Element>(&self, buffer: Vec<T>, dst: usize, tag: u64) -> Result<Work<Vec<T>>> {
        let to = self.address(OpKind::Send, T::DTYPE, buffer.len(), dst, tag)?;
        self.submit_message(to, buffer)
    }

    /// Begins a [`recv`](Self::recv) of as many elements as `buffer` has.
    ///
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let other = 1 - group.rank();
    /// let coming = group.recv_async(vec![0.0; 2], other, 0)?;
    /// group.send(&[0.5, 1.5], other, 0)?;
    /// assert_eq!(coming.wait()?, [0.5, 1.5]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn recv_async<T: Element>(&self, buffer: Vec<T>, src: usize, tag: u64) -> Result<Work<Vec<T>>> {
        let from = self.address(OpKind::Recv, T::DTYPE, buffer.len(), src, tag)?;
        self.submit_message(from, buffer)
    }

    fn submit_message<T: Element>(&self, address: Address, buffer: Vec<T>) -> Result<Work<Vec<T>>> {
        let op = address.signature.op;
        let pending = self.backend.submit_message(address, Box::new(buffer), self.timeout())?;
        Ok(Work::new(pending, |buffer| buffer).of(self.in_flight(op)))
    }
}
