//! The operations of a [`ProcessGroup`] that return at once with a [`Work`].

use crate::group::backend::{Address, Collective};
use crate::group::work::Buffer;
use crate::{ProcessGroup, Work};
use phalanx_core::{Element, Error, Layout, OpKind, ReduceOp, Result};

/// The asynchronous operations own their buffer until it is waited for. They run on the group's progress thread, in the
/// order of the calls, and count as called when these return: blocking calls that follow are performed after them.
impl ProcessGroup {
    /// Begins an [`all_reduce`](Self::all_reduce) of a `Vec`, or of what [`alloc`](Self::alloc) returned.
    ///
    /// # Examples
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
    pub fn all_reduce_async<B: Buffer>(&self, mut buffer: B, op: ReduceOp) -> Result<Work<B>> {
        let len = buffer.bytes().len() / size_of::<B::Element>();
        let call = self.all_reduce_call::<B::Element>(len, op, self.site())?;
        self.submit(call, buffer, |buffer| buffer)
    }

    /// Begins a [`broadcast`](Self::broadcast).
    ///
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    #[track_caller]
    pub fn broadcast_async<T: Element>(&self, buffer: Vec<T>, root: usize) -> Result<Work<Vec<T>>> {
        let call = self.broadcast_call::<T>(buffer.len(), root, self.site())?;
        self.submit(call, buffer, |buffer| buffer)
    }

    /// Begins an [`all_gather`](Self::all_gather); the result has P × n elements.
    ///
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    #[track_caller]
    pub fn all_gather_async<T: Element>(&self, input: &[T]) -> Result<Work<Vec<T>>> {
        let layout = Layout::even(self.world_size(), input.len() * self.world_size());
        let mut output = vec![T::zeroed(); layout.len()];
        output[layout.block(self.rank())].copy_from_slice(input);
        let signature =
            self.signature(OpKind::AllGather, Some(T::DTYPE), layout.len(), None, None, self.site())?;
        self.submit(Collective { signature, layout, recv_layout: None }, output, |output| output)
    }

    /// Begins a [`reduce_scatter`](Self::reduce_scatter); the result has a P-th of the input's elements.
    ///
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
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
        let layout = Layout::even(world_size, input.len());
        let own = layout.block(self.rank());
        let signature = self.signature(op, Some(T::DTYPE), layout.len(), Some(reduce), None, site)?;
        self.submit(Collective { signature, layout, recv_layout: None }, input, move |mut buffer: Vec<T>| {
            buffer.truncate(own.end);
            buffer.drain(..own.start);
            buffer
        })
    }

    /// Begins a [`barrier`](Self::barrier).
    ///
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    #[track_caller]
    pub fn barrier_async(&self) -> Result<Work<()>> {
        let call = self.barrier_call(OpKind::Barrier, self.site())?;
        self.submit(call, Vec::<u8>::new(), drop)
    }

    /// Begins a [`send`](Self::send).
    ///
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    #[track_caller]
    pub fn send_async<T: Element>(&self, buffer: Vec<T>, dst: usize, tag: u64) -> Result<Work<Vec<T>>> {
        let to = self.address::<T>(OpKind::Send, buffer.len(), dst, tag, self.site())?;
        self.submit_message(to, buffer)
    }

    /// Begins a [`recv`](Self::recv) of as many elements as `buffer` has.
    ///
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    #[track_caller]
    pub fn recv_async<T: Element>(&self, buffer: Vec<T>, src: usize, tag: u64) -> Result<Work<Vec<T>>> {
        let from = self.address::<T>(OpKind::Recv, buffer.len(), src, tag, self.site())?;
        self.submit_message(from, buffer)
    }

    pub(crate) fn submit<B: Buffer, R>(
        &self,
        call: Collective,
        buffer: B,
        finish: impl FnOnce(B) -> R + Send + 'static,
    ) -> Result<Work<R>> {
        let op = call.signature.op;
        let pending = self.backend.submit(call, Box::new(buffer), self.timeout())?;
        Ok(Work::new(pending, finish).of(self.in_flight(op)))
    }

    fn submit_message<T: Element>(&self, address: Address, buffer: Vec<T>) -> Result<Work<Vec<T>>> {
        let op = address.signature.op;
        let pending = self.backend.submit_message(address, Box::new(buffer), self.timeout())?;
        Ok(Work::new(pending, |buffer| buffer).of(self.in_flight(op)))
    }
}
