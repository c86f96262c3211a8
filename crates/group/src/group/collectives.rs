//! The collectives of a [`ProcessGroup`], for a caller that waits.

use crate::ProcessGroup;
use crate::group::perform::{equal, wrong};
use crate::group::request::{BlockExchange, Buffers, Request};
use phalanx_core::{CallSite, Element, OpKind, ReduceOp, Result, Signature};

/// All of these are *collective*: every rank of the group calls the same one, in the same order, with the same element type,
/// lengths, operator and root. Lengths are in elements. Errors: see the [contract](ProcessGroup#contract).
impl ProcessGroup {
    /// Combines `buffer` across the group; every rank ends with the same result.
    ///
    /// # Shape
    /// `buffer`: n elements, read and overwritten.
    /// # Cost
    /// Small buffers: about log₂ P messages of n elements a rank. Large ones: each rank sends 2n(P−1)/P elements.
    /// # Determinism
    /// Same bits on every rank, whatever the state of the threads' floats. From run to run: see [reproducibility](ProcessGroup#reproducibility).
    /// # Errors
    /// See the [contract](ProcessGroup#contract); [`Misuse`](phalanx_core::Error::Misuse) for bit operators on floats.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::ReduceOp;
    /// # phalanx_group::on_threads(2, |group| {
    /// let mut buffer = [1.0, group.rank() as f32];
    /// group.all_reduce(&mut buffer, ReduceOp::Avg)?;
    /// assert_eq!(buffer, [1.0, 0.5]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn all_reduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let request = Request::AllReduce { buffers: Buffers::InPlace(buffer), reduce: op };
        self.perform(OpKind::AllReduce, request, 0, self.site())
    }

    /// Combines `input` across the group and leaves each rank its block of the result.
    ///
    /// # Shape
    /// `input`: P × n elements. `output`: n elements, block `rank` of the combined input.
    /// # Cost
    /// Each rank sends about n(P−1) elements; scratch: P × n elements, kept for the next call.
    /// # Determinism
    /// From run to run: see [reproducibility](ProcessGroup#reproducibility). The bits need not be those of an [`all_reduce`](Self::all_reduce), which
    /// may add in another order.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::ReduceOp;
    /// # phalanx_group::on_threads(2, |group| {
    /// let mut own = [0];
    /// group.reduce_scatter(&[10, 20], &mut own, ReduceOp::Sum)?;
    /// assert_eq!(own, [[20], [40]][group.rank()]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn reduce_scatter<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        let blocks = equal(self.world_size(), output.len());
        let request =
            Request::ReduceScatter { buffers: Buffers::Separate(input, output), blocks, reduce: op };
        self.perform(OpKind::ReduceScatter, request, 0, self.site())
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), with a block of `counts[r]` elements for rank `r`.
    ///
    /// # Shape
    /// `counts`: P numbers. `input`: their sum of elements. `output`: `counts[rank]` elements.
    /// # Determinism
    /// As of [`reduce_scatter`](Self::reduce_scatter), for the same counts.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::ReduceOp;
    /// # phalanx_group::on_threads(2, |group| {
    /// let counts = [1, 2]; // elements of the result for rank 0 and for rank 1
    /// let mut own = vec![0; counts[group.rank()]];
    /// group.reduce_scatter_v(&[1, 2, 3], &mut own, &counts, ReduceOp::Sum)?;
    /// assert_eq!(own, [&[2][..], &[4, 6]][group.rank()]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn reduce_scatter_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<()> {
        let site = self.site();
        let blocks = self.layout(OpKind::ReduceScatter, counts, &site)?;
        let request =
            Request::ReduceScatter { buffers: Buffers::Separate(input, output), blocks, reduce: op };
        self.perform(OpKind::ReduceScatter, request, Signature::detail_of(counts), site)
    }

    /// As [`reduce_scatter`](Self::reduce_scatter) with equal blocks, in place: block `rank` of `buffer` becomes the result, the
    /// contents of the others are unspecified afterwards.
    ///
    /// # Shape
    /// `buffer`: P × n elements.
    /// # Determinism
    /// As of [`reduce_scatter`](Self::reduce_scatter).
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::ReduceOp;
    /// # phalanx_group::on_threads(2, |group| {
    /// let mut buffer = [10, 20];
    /// group.reduce_scatter_in_place(&mut buffer, ReduceOp::Sum)?;
    /// assert_eq!(buffer[group.rank()], [20, 40][group.rank()]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn reduce_scatter_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let site = self.site();
        let blocks = self.equal_blocks(OpKind::ReduceScatter, buffer.len(), &site)?;
        let request = Request::ReduceScatter { buffers: Buffers::InPlace(buffer), blocks, reduce: op };
        self.perform(OpKind::ReduceScatter, request, 0, site)
    }

    /// Collects the ranks' inputs, in rank order, on every rank.
    ///
    /// # Shape
    /// `input`: n elements. `output`: P × n elements.
    /// # Cost
    /// Each rank sends n(P−1) elements.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let mut all = [0; 4];
    /// let rank = group.rank() as u64;
    /// group.all_gather(&[rank, 10 * rank], &mut all)?;
    /// assert_eq!(all, [0, 0, 1, 10]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.all_gather_at(OpKind::AllGather, input, output, self.site())
    }

    /// As [`all_gather`](Self::all_gather), in place: block `rank` of `buffer` is this rank's input.
    ///
    /// # Shape
    /// `buffer`: P × n elements.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let mut all = [0; 2];
    /// all[group.rank()] = 7 + group.rank() as u64;
    /// group.all_gather_in_place(&mut all)?;
    /// assert_eq!(all, [7, 8]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let site = self.site();
        let blocks = self.equal_blocks(OpKind::AllGather, buffer.len(), &site)?;
        let request = Request::AllGather { buffers: Buffers::InPlace(buffer), blocks };
        self.perform(OpKind::AllGather, request, 0, site)
    }

    /// As [`all_gather`](Self::all_gather), with `counts[r]` elements from rank `r`. All ranks give the same counts.
    ///
    /// # Shape
    /// `counts`: P numbers. `input`: `counts[rank]` elements. `output`: the sum of the counts.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let counts = [1, 2]; // elements from rank 0 and from rank 1
    /// let input = vec![group.rank() as u8; counts[group.rank()]];
    /// let mut all = [9; 3];
    /// group.all_gather_v(&input, &mut all, &counts)?;
    /// assert_eq!(all, [0, 1, 1]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn all_gather_v<T: Element>(&self, input: &[T], output: &mut [T], counts: &[usize]) -> Result<()> {
        let site = self.site();
        let blocks = self.layout(OpKind::AllGather, counts, &site)?;
        let request = Request::AllGather { buffers: Buffers::Separate(input, output), blocks };
        self.perform(OpKind::AllGather, request, Signature::detail_of(counts), site)
    }

    /// An all_gather under another name in errors: splits and objects are made of it.
    pub(crate) fn all_gather_at<T: Element>(
        &self,
        op: OpKind,
        input: &[T],
        output: &mut [T],
        site: CallSite,
    ) -> Result<()> {
        let blocks = equal(self.world_size(), input.len());
        self.perform(op, Request::AllGather { buffers: Buffers::Separate(input, output), blocks }, 0, site)
    }

    /// Copies the root's `buffer` to every rank.
    ///
    /// # Shape
    /// `buffer`: n elements, read on `root`, overwritten elsewhere.
    /// # Cost
    /// Small buffers: log₂ P rounds. Large ones: no rank sends more than about 2n elements.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let mut weights = if group.rank() == 0 { [0.5, 1.5] } else { [0.0; 2] };
    /// group.broadcast(&mut weights, 0)?;
    /// assert_eq!(weights, [0.5, 1.5]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<()> {
        self.perform(OpKind::Broadcast, Request::Broadcast { buffer, root }, 0, self.site())
    }

    /// Combines `buffer` across the group on `root`.
    ///
    /// # Shape
    /// `buffer`: n elements, read; the result on `root`, unspecified elsewhere.
    /// # Cost
    /// Small buffers: log₂ P rounds. Large ones: each rank sends about 2n(P−1)/P elements.
    /// # Determinism
    /// From run to run: see [reproducibility](ProcessGroup#reproducibility). The bits need not be those of an [`all_reduce`](Self::all_reduce), nor those of
    /// another root.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::ReduceOp;
    /// # phalanx_group::on_threads(2, |group| {
    /// let mut loss = [group.rank() as f32 + 1.0];
    /// group.reduce(&mut loss, ReduceOp::Max, 0)?;
    /// if group.rank() == 0 {
    ///     assert_eq!(loss, [2.0]);
    /// }
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn reduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp, root: usize) -> Result<()> {
        self.perform(OpKind::Reduce, Request::Reduce { buffer, reduce: op, root }, 0, self.site())
    }

    /// Collects the ranks' inputs, in rank order, on `root`.
    ///
    /// # Shape
    /// `input`: n elements. `output`: P × n elements on `root`, `None` elsewhere.
    /// # Cost
    /// `root` receives n(P−1) elements.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let mut all = [0; 2];
    /// let output = (group.rank() == 0).then_some(&mut all[..]);
    /// group.gather(&[group.rank() as u64 + 1], output, 0)?;
    /// assert_eq!(all, if group.rank() == 0 { [1, 2] } else { [0, 0] });
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn gather<T: Element>(&self, input: &[T], output: Option<&mut [T]>, root: usize) -> Result<()> {
        let blocks = equal(self.world_size(), input.len());
        self.perform(
            OpKind::Gather,
            Request::Gather { input: Some(input), output, blocks, root },
            0,
            self.site(),
        )
    }

    /// As [`gather`](Self::gather), in one buffer: the block of `root` stands in its place from the start, and is not copied.
    ///
    /// All ranks may call this, or some of them [`gather`](Self::gather).
    ///
    /// # Shape
    /// `buffer`: P × n elements on `root`; n elsewhere, which stay as they are.
    /// # Cost
    /// As for [`gather`](Self::gather), less a copy of n elements on `root`.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let mut buffer = if group.rank() == 0 { vec![1, 0] } else { vec![2] };
    /// group.gather_in_place(&mut buffer, 0)?;
    /// assert_eq!(buffer, if group.rank() == 0 { vec![1, 2] } else { vec![2] });
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn gather_in_place<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<()> {
        let site = self.site();
        let request = if self.rank() == root {
            let blocks = self.equal_blocks(OpKind::Gather, buffer.len(), &site)?;
            Request::Gather { input: None, output: Some(buffer), blocks, root }
        } else {
            let blocks = equal(self.world_size(), buffer.len());
            Request::Gather { input: Some(&*buffer), output: None, blocks, root }
        };
        self.perform(OpKind::Gather, request, 0, site)
    }

    /// As [`gather`](Self::gather), with `counts[r]` elements from rank `r`. All ranks give the same counts.
    ///
    /// # Shape
    /// `counts`: P numbers. `input`: `counts[rank]` elements. `output`: the sum of the counts on `root`, `None` elsewhere.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let counts = [1, 2]; // elements from rank 0 and from rank 1
    /// let input = vec![group.rank() as u64; counts[group.rank()]];
    /// let mut all = [9; 3];
    /// let output = (group.rank() == 0).then_some(&mut all[..]);
    /// group.gather_v(&input, output, &counts, 0)?;
    /// assert_eq!(all, if group.rank() == 0 { [0, 1, 1] } else { [9; 3] });
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn gather_v<T: Element>(
        &self,
        input: &[T],
        output: Option<&mut [T]>,
        counts: &[usize],
        root: usize,
    ) -> Result<()> {
        let site = self.site();
        let blocks = self.layout(OpKind::Gather, counts, &site)?;
        let request = Request::Gather { input: Some(input), output, blocks, root };
        self.perform(OpKind::Gather, request, Signature::detail_of(counts), site)
    }

    /// Deals the root's input out to the ranks, in rank order.
    ///
    /// # Shape
    /// `input`: P × n elements on `root`, `None` elsewhere. `output`: n elements.
    /// # Cost
    /// `root` sends n(P−1) elements.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let input = (group.rank() == 0).then_some(&[1, 2, 3, 4][..]);
    /// let mut own = [0; 2];
    /// group.scatter(input, &mut own, 0)?;
    /// assert_eq!(own, [[1, 2], [3, 4]][group.rank()]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn scatter<T: Element>(&self, input: Option<&[T]>, output: &mut [T], root: usize) -> Result<()> {
        let blocks = equal(self.world_size(), output.len());
        self.perform(
            OpKind::Scatter,
            Request::Scatter { input, output: Some(output), blocks, root },
            0,
            self.site(),
        )
    }

    /// As [`scatter`](Self::scatter), in one buffer: the block of `root` stays in its place, and is not copied.
    ///
    /// All ranks may call this, or some of them [`scatter`](Self::scatter).
    ///
    /// # Shape
    /// `buffer`: P × n elements on `root`, which stay as they are; n elsewhere.
    /// # Cost
    /// As for [`scatter`](Self::scatter), less a copy of n elements on `root`.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let mut buffer = if group.rank() == 0 { vec![1, 2] } else { vec![0] };
    /// group.scatter_in_place(&mut buffer, 0)?;
    /// assert_eq!(buffer, if group.rank() == 0 { vec![1, 2] } else { vec![2] });
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn scatter_in_place<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<()> {
        let site = self.site();
        let request = if self.rank() == root {
            let blocks = self.equal_blocks(OpKind::Scatter, buffer.len(), &site)?;
            Request::Scatter { input: Some(&*buffer), output: None, blocks, root }
        } else {
            let blocks = equal(self.world_size(), buffer.len());
            Request::Scatter { input: None, output: Some(buffer), blocks, root }
        };
        self.perform(OpKind::Scatter, request, 0, site)
    }

    /// As [`scatter`](Self::scatter), with `counts[r]` elements for rank `r`. All ranks give the same counts.
    ///
    /// # Shape
    /// `counts`: P numbers. `input`: the sum of the counts on `root`, `None` elsewhere. `output`: `counts[rank]` elements.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let counts = [1, 2]; // elements for rank 0 and for rank 1
    /// let input = (group.rank() == 0).then_some(&[1, 2, 3][..]);
    /// let mut own = vec![0; counts[group.rank()]];
    /// group.scatter_v(input, &mut own, &counts, 0)?;
    /// assert_eq!(own, [&[1][..], &[2, 3]][group.rank()]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn scatter_v<T: Element>(
        &self,
        input: Option<&[T]>,
        output: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<()> {
        let site = self.site();
        let blocks = self.layout(OpKind::Scatter, counts, &site)?;
        let request = Request::Scatter { input, output: Some(output), blocks, root };
        self.perform(OpKind::Scatter, request, Signature::detail_of(counts), site)
    }

    /// Sends block `r` of `input` to rank `r`, and collects what the others sent, in rank order.
    ///
    /// # Shape
    /// `input`, `output`: P × n elements each.
    /// # Cost
    /// P−1 rounds; each rank sends n(P−1) elements.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let input = [[1, 2], [3, 4]][group.rank()]; // for rank 0, for rank 1
    /// let mut output = [0; 2];
    /// group.all_to_all(&input, &mut output)?;
    /// assert_eq!(output, [[1, 3], [2, 4]][group.rank()]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let (site, op, world_size) = (self.site(), OpKind::AllToAll, self.world_size());
        if !input.len().is_multiple_of(world_size) {
            let what = format!(
                "input has {} elements, expected a multiple of {world_size} (the ranks)",
                input.len()
            );
            return Err(wrong(op, &site, what));
        }
        let blocks = BlockExchange::Even { count: input.len() / world_size };
        self.perform(op, Request::AllToAll { buffers: Buffers::Separate(input, output), blocks }, 0, site)
    }

    /// As [`all_to_all`](Self::all_to_all), in place: what comes from rank `r` replaces the block that went to it, and block `rank` stays as it is.
    ///
    /// All ranks may call this, or some of them [`all_to_all`](Self::all_to_all).
    ///
    /// # Shape
    /// `buffer`: P × n elements.
    /// # Cost
    /// As for [`all_to_all`](Self::all_to_all), less a copy of n elements, where ranks share memory. Where the data go over links, where ranks read each
    /// other's memory (parts of 512 KiB or more, on some machines), and in groups with [registered buffers](Self::alloc) P × n elements are copied
    /// first, to memory that is kept for the next call: a second buffer is faster there.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let mut buffer = [[1, 2], [3, 4]][group.rank()]; // for rank 0, for rank 1
    /// group.all_to_all_in_place(&mut buffer)?;
    /// assert_eq!(buffer, [[1, 3], [2, 4]][group.rank()]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn all_to_all_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let (site, op) = (self.site(), OpKind::AllToAll);
        let count = self.equal_blocks(op, buffer.len(), &site)?.block(0).len();
        let (buffers, blocks) = (Buffers::InPlace(buffer), BlockExchange::Even { count });
        self.perform(op, Request::AllToAll { buffers, blocks }, 0, site)
    }

    /// As [`all_to_all`](Self::all_to_all), with `send_counts[r]` elements to rank `r` and `recv_counts[r]` from it.
    /// What one rank sends to another, that one must expect.
    ///
    /// # Shape
    /// `send_counts`, `recv_counts`: P numbers each. `input`, `output`: their sums of elements.
    /// # Errors
    /// See the [contract](ProcessGroup#contract); [`Protocol`](phalanx_core::Error::Protocol) where counts don't meet.
    ///
    /// # Examples
    /// Rank 0 has one element for itself and two for rank 1, which has none for rank 0 and one for itself:
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let (input, send, recv) = match group.rank() {
    ///     0 => (vec![1, 2, 3], [1, 2], [1, 0]),
    ///     _ => (vec![4], [0, 1], [2, 1]),
    /// };
    /// let mut output = vec![0; recv.iter().sum()];
    /// group.all_to_all_v(&input, &send, &mut output, &recv)?;
    /// assert_eq!(output, [&[1][..], &[2, 3, 4]][group.rank()]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn all_to_all_v<T: Element>(
        &self,
        input: &[T],
        send_counts: &[usize],
        output: &mut [T],
        recv_counts: &[usize],
    ) -> Result<()> {
        let (site, op) = (self.site(), OpKind::AllToAll);
        let send = self.layout(op, send_counts, &site)?;
        let recv = self.layout(op, recv_counts, &site)?;
        let blocks = BlockExchange::Uneven { send, recv };
        // Counts differ from rank to rank, but all call this and not the even one.
        self.perform(op, Request::AllToAll { buffers: Buffers::Separate(input, output), blocks }, 1, site)
    }

    /// Combines `buffer` with those of the ranks before: rank `r` ends with the combination of ranks 0 to `r`. An average is that of these ranks.
    ///
    /// # Shape
    /// `buffer`: n elements, read and overwritten.
    /// # Cost
    /// An all_gather of n elements; scratch: P × n elements.
    /// # Determinism
    /// Values are combined in the order of the ranks, whatever the backend: the same bits in every run. Half types are rounded once.
    /// # Errors
    /// See the [contract](ProcessGroup#contract); [`Misuse`](phalanx_core::Error::Misuse) for bit operators on floats.
    /// # Examples
    /// Where each rank's share begins in a file that all write:
    /// ```
    /// # use phalanx_group::{ReduceOp, threads};
    /// # std::thread::scope(|s| { for group in threads(3) { s.spawn(move || -> phalanx_core::Result<()> {
    /// let own = 10 * (group.rank() as u64 + 1);
    /// let mut end = [own];
    /// group.scan(&mut end, ReduceOp::Sum)?;
    /// assert_eq!(end[0] - own, [0, 10, 30][group.rank()]);
    /// # Ok(()) }); } });
    /// ```
    #[track_caller]
    pub fn scan<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let request = Request::Scan { buffers: Buffers::InPlace(buffer), reduce: op };
        self.perform(OpKind::Scan, request, 0, self.site())
    }
}
