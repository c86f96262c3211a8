//! Asynchronous operations that collect blocks or deal them out, and the variants with counts.

use crate::group::request::{BlockExchange, Buffers, Request};
use crate::{ProcessGroup, Work};
use phalanx_core::{CallSite, Element, Error, Layout, OpKind, ReduceOp, Result, Signature};

/// As those of all ranks, these own their buffers until they are waited for. Memory for what they return is taken when they are called.
impl ProcessGroup {
    /// Begins a [`gather`](Self::gather).
    ///
    /// # Shape
    /// `input`: n elements. The result: P × n elements on `root`, `None` elsewhere.
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let work = group.gather_async(vec![group.rank() as u64], 0)?;
    /// assert_eq!(work.wait()?, (group.rank() == 0).then_some(vec![0, 1]));
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn gather_async<T: Element>(&self, input: Vec<T>, root: usize) -> Result<Work<Option<Vec<T>>>> {
        let blocks = self.equal(input.len());
        self.gather_blocks(input, blocks, root, 0, self.site())
    }

    /// Begins a [`gather_v`](Self::gather_v).
    ///
    /// # Shape
    /// `counts`: P numbers. `input`: `counts[rank]` elements. The result: the sum of the counts on `root`, `None` elsewhere.
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let counts = [1, 2]; // elements from rank 0 and from rank 1
    /// let work = group.gather_v_async(vec![0.5; counts[group.rank()]], &counts, 1)?;
    /// assert_eq!(work.wait()?, (group.rank() == 1).then_some(vec![0.5; 3]));
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn gather_v_async<T: Element>(
        &self,
        input: Vec<T>,
        counts: &[usize],
        root: usize,
    ) -> Result<Work<Option<Vec<T>>>> {
        let site = self.site();
        let blocks = self.layout(OpKind::Gather, counts, &site)?;
        self.gather_blocks(input, blocks, root, Signature::detail_of(counts), site)
    }

    fn gather_blocks<T: Element>(
        &self,
        input: Vec<T>,
        blocks: Layout,
        root: usize,
        detail: u64,
        site: CallSite,
    ) -> Result<Work<Option<Vec<T>>>> {
        let is_root = self.rank() == root;
        let output = is_root.then(|| zeroed(OpKind::Gather, blocks.len(), &site)).transpose()?;
        let request = Request::Gather { input: Some(input), output, blocks, root };
        self.submit_of(OpKind::Gather, request, detail, site, move |buffer| is_root.then_some(buffer))
    }

    /// Begins a [`scatter`](Self::scatter) of `count` elements to each rank.
    ///
    /// # Shape
    /// `input`: P × `count` elements on `root`, `None` elsewhere. The result: `count` elements.
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let input = (group.rank() == 0).then(|| vec![1, 2, 3, 4]);
    /// let work = group.scatter_async(input, 2, 0)?;
    /// assert_eq!(work.wait()?, [[1, 2], [3, 4]][group.rank()]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn scatter_async<T: Element>(
        &self,
        input: Option<Vec<T>>,
        count: usize,
        root: usize,
    ) -> Result<Work<Vec<T>>> {
        self.scatter_blocks(input, self.equal(count), root, 0, self.site())
    }

    /// Begins a [`scatter_v`](Self::scatter_v).
    ///
    /// # Shape
    /// `counts`: P numbers. `input`: the sum of the counts on `root`, `None` elsewhere. The result: `counts[rank]` elements.
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let input = (group.rank() == 0).then(|| vec![1, 2, 3]);
    /// let work = group.scatter_v_async(input, &[1, 2], 0)?;
    /// assert_eq!(work.wait()?, [&[1][..], &[2, 3]][group.rank()]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn scatter_v_async<T: Element>(
        &self,
        input: Option<Vec<T>>,
        counts: &[usize],
        root: usize,
    ) -> Result<Work<Vec<T>>> {
        let site = self.site();
        let blocks = self.layout(OpKind::Scatter, counts, &site)?;
        self.scatter_blocks(input, blocks, root, Signature::detail_of(counts), site)
    }

    fn scatter_blocks<T: Element>(
        &self,
        input: Option<Vec<T>>,
        blocks: Layout,
        root: usize,
        detail: u64,
        site: CallSite,
    ) -> Result<Work<Vec<T>>> {
        let output = zeroed(OpKind::Scatter, blocks.block(self.rank()).len(), &site)?;
        let request = Request::Scatter { input, output: Some(output), blocks, root };
        self.submit_of(OpKind::Scatter, request, detail, site, |output| output)
    }

    /// Begins an [`all_to_all`](Self::all_to_all).
    ///
    /// # Shape
    /// `input`, and the result: P × n elements each.
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let input = [vec![1, 2], vec![3, 4]][group.rank()].clone(); // for rank 0, for rank 1
    /// let work = group.all_to_all_async(input)?;
    /// assert_eq!(work.wait()?, [[1, 3], [2, 4]][group.rank()]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn all_to_all_async<T: Element>(&self, input: Vec<T>) -> Result<Work<Vec<T>>> {
        let (site, op) = (self.site(), OpKind::AllToAll);
        let count = self.equal_blocks(op, input.len(), &site)?.block(0).len();
        let output = vec![T::zeroed(); input.len()];
        let (buffers, blocks) = (Buffers::Separate(input, output), BlockExchange::Even { count });
        let request = Request::AllToAll { buffers, blocks };
        self.submit_of(op, request, 0, site, |output| output)
    }

    /// Begins an [`all_to_all_v`](Self::all_to_all_v).
    ///
    /// # Shape
    /// `send_counts`, `recv_counts`: P numbers each. `input`: the sum of the first. The result: the sum of the second.
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Examples
    /// Rank 0 has one element for itself and two for rank 1, which has none for rank 0 and one for itself:
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let (input, send, recv) = match group.rank() {
    ///     0 => (vec![1, 2, 3], [1, 2], [1, 0]),
    ///     _ => (vec![4], [0, 1], [2, 1]),
    /// };
    /// let work = group.all_to_all_v_async(input, &send, &recv)?;
    /// assert_eq!(work.wait()?, [&[1][..], &[2, 3, 4]][group.rank()]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn all_to_all_v_async<T: Element>(
        &self,
        input: Vec<T>,
        send_counts: &[usize],
        recv_counts: &[usize],
    ) -> Result<Work<Vec<T>>> {
        let (site, op) = (self.site(), OpKind::AllToAll);
        let send = self.layout(op, send_counts, &site)?;
        let recv = self.layout(op, recv_counts, &site)?;
        let output = zeroed(op, recv.len(), &site)?;
        let (buffers, blocks) = (Buffers::Separate(input, output), BlockExchange::Uneven { send, recv });
        let request = Request::AllToAll { buffers, blocks };
        // As for the blocking one: counts differ from rank to rank, but all call this and not the even one.
        self.submit_of(op, request, 1, site, |output| output)
    }

    /// Begins an [`all_gather_v`](Self::all_gather_v).
    ///
    /// # Shape
    /// `counts`: P numbers. `input`: `counts[rank]` elements. The result: the sum of the counts.
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let counts = [1, 2]; // elements from rank 0 and from rank 1
    /// let work = group.all_gather_v_async(vec![group.rank() as u8; counts[group.rank()]], &counts)?;
    /// assert_eq!(work.wait()?, [0, 1, 1]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn all_gather_v_async<T: Element>(&self, input: Vec<T>, counts: &[usize]) -> Result<Work<Vec<T>>> {
        let (site, op) = (self.site(), OpKind::AllGather);
        let blocks = self.layout(op, counts, &site)?;
        let output = zeroed(op, blocks.len(), &site)?;
        let request = Request::AllGather { buffers: Buffers::Separate(input, output), blocks };
        self.submit_of(op, request, Signature::detail_of(counts), site, |output| output)
    }

    /// Begins a [`reduce_scatter_v`](Self::reduce_scatter_v).
    ///
    /// # Shape
    /// `counts`: P numbers. `input`: their sum of elements. The result: `counts[rank]` elements.
    /// # Determinism
    /// As of [`reduce_scatter_v`](Self::reduce_scatter_v).
    /// # Errors
    /// As for [`all_reduce_async`](Self::all_reduce_async).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::ReduceOp;
    /// # phalanx_group::on_threads(2, |group| {
    /// let work = group.reduce_scatter_v_async(vec![1, 2, 3], &[1, 2], ReduceOp::Sum)?;
    /// assert_eq!(work.wait()?, [&[2][..], &[4, 6]][group.rank()]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn reduce_scatter_v_async<T: Element>(
        &self,
        input: Vec<T>,
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<Work<Vec<T>>> {
        let site = self.site();
        let blocks = self.layout(OpKind::ReduceScatter, counts, &site)?;
        let output = zeroed(OpKind::ReduceScatter, blocks.block(self.rank()).len(), &site)?;
        let buffers = Buffers::Separate(input, output);
        let request = Request::ReduceScatter { buffers, blocks, reduce: op };
        self.submit_of(OpKind::ReduceScatter, request, Signature::detail_of(counts), site, |output| output)
    }

    /// The layout of equal blocks of `len` elements.
    fn equal(&self, len: usize) -> Layout {
        Layout::even(self.world_size(), len.saturating_mul(self.world_size()))
    }
}

/// A buffer of `len` elements. Counts that nobody has the memory for are an error of the caller, not the end of the process.
pub(super) fn zeroed<T: Element>(op: OpKind, len: usize, site: &CallSite) -> Result<Vec<T>> {
    let mut buffer = Vec::new();
    buffer
        .try_reserve_exact(len)
        .map_err(|_| Error::misuse(op, format!("no memory for an output of {len} elements, at {site}")))?;
    buffer.resize(len, T::zeroed());
    Ok(buffer)
}
