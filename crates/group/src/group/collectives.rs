//! The collectives of a [`ProcessGroup`], for a caller that waits.

use crate::ProcessGroup;
use crate::group::backend::{Buffers, Collective};
use phalanx_core::{CallSite, Element, Error, Layout, OpKind, ReduceOp, Result, Signature};
use std::time::Duration;

fn wrong(op: OpKind, site: &CallSite, what: impl std::fmt::Display) -> Error {
    Error::misuse(op, format!("{what}, at {site}"))
}

/// Why a buffer must have the length it must have.
enum Why<'a> {
    Block,
    Because(&'static str),
    /// It holds all blocks.
    Blocks(&'a Layout),
    /// It is for this root alone.
    OnlyAt(usize),
}

impl std::fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Block => Ok(()),
            Self::Because(why) => write!(f, " ({why})"),
            Self::OnlyAt(root) => write!(f, " (the root is rank {root})"),
            Self::Blocks(layout) => {
                let (ranks, own) = (layout.world_size(), layout.block(0).len());
                if (0..ranks).all(|rank| layout.block(rank).len() == own) {
                    write!(f, " ({own} × {ranks} ranks)")
                } else {
                    f.write_str(" (the sum of the counts)")
                }
            }
        }
    }
}

/// A buffer's name, its length and the length it must have: `None` where there is, or must be, none.
type Length<'a> = (&'static str, Option<usize>, Option<usize>, Why<'a>);

/// Refuses buffers that have not the lengths they must have, in words.
fn check_lengths(op: OpKind, site: &CallSite, buffers: &[Length<'_>]) -> Result<()> {
    if buffers.iter().all(|(_, got, expected, _)| got == expected) {
        return Ok(());
    }
    let words = |(name, got, expected, why): &Length<'_>| {
        let got = got.map_or("is missing".to_owned(), |len| format!("has {len} elements"));
        let expected = expected.map_or("none".to_owned(), |len| len.to_string());
        format!("{name} {got}, expected {expected}{why}")
    };
    let wrong: Vec<String> =
        buffers.iter().filter(|(_, got, expected, _)| got != expected).map(words).collect();
    Err(self::wrong(op, site, wrong.join("; ")))
}

/// The layout of equal blocks of `len` elements.
fn equal(world_size: usize, len: usize) -> Layout {
    Layout::even(world_size, len * world_size)
}

/// What a rank gives itself.
fn keep<T: Element>(output: &mut [T], input: &[T]) {
    phalanx_kernels::copy_slice(bytemuck::cast_slice_mut(output), bytemuck::cast_slice(input));
}

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
    /// See the [contract](ProcessGroup#contract); [`Misuse`](Error::Misuse) for bit operators on floats.
    #[track_caller]
    pub fn all_reduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let call = self.all_reduce_call::<T>(buffer.len(), op, self.site())?;
        self.in_place(call, buffer)
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
    #[track_caller]
    pub fn reduce_scatter<T: Element>(&self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        self.reduce_scatter_at(input, output, equal(self.world_size(), output.len()), op, 0, self.site())
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), with a block of `counts[r]` elements for rank `r`.
    ///
    /// # Determinism
    /// As of [`reduce_scatter`](Self::reduce_scatter), for the same counts.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    #[track_caller]
    pub fn reduce_scatter_v<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        op: ReduceOp,
    ) -> Result<()> {
        let site = self.site();
        let layout = self.layout(OpKind::ReduceScatter, counts, &site)?;
        self.reduce_scatter_at(input, output, layout, op, Signature::detail_of(counts), site)
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
    #[track_caller]
    pub fn reduce_scatter_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let site = self.site();
        let layout = self.equal_blocks(OpKind::ReduceScatter, buffer.len(), &site)?;
        let signature =
            self.signature(OpKind::ReduceScatter, Some(T::DTYPE), buffer.len(), Some(op), None, site)?;
        self.in_place(Collective { signature, layout, recv_layout: None }, buffer)
    }

    fn equal_blocks(&self, op: OpKind, len: usize, site: &CallSite) -> Result<Layout> {
        if !len.is_multiple_of(self.world_size()) {
            return Err(wrong(op, site, format!("{len} elements for {} ranks", self.world_size())));
        }
        Ok(Layout::even(self.world_size(), len))
    }

    fn reduce_scatter_at<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        layout: Layout,
        reduce: ReduceOp,
        detail: u64,
        site: CallSite,
    ) -> Result<()> {
        let op = OpKind::ReduceScatter;
        let own = layout.block(self.rank());
        let lengths = [
            ("input", Some(input.len()), Some(layout.len()), Why::Blocks(&layout)),
            ("output", Some(output.len()), Some(own.len()), Why::Block),
        ];
        check_lengths(op, &site, &lengths)?;
        let mut signature = self.signature(op, Some(T::DTYPE), layout.len(), Some(reduce), None, site)?;
        signature.detail = detail;
        self.separate(Collective { signature, layout, recv_layout: None }, input, output)
    }

    /// Collects the ranks' inputs, in rank order, on every rank.
    ///
    /// # Shape
    /// `input`: n elements. `output`: P × n elements.
    /// # Cost
    /// Each rank sends n(P−1) elements.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
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
    #[track_caller]
    pub fn all_gather_in_place<T: Element>(&self, buffer: &mut [T]) -> Result<()> {
        let site = self.site();
        let layout = self.equal_blocks(OpKind::AllGather, buffer.len(), &site)?;
        let signature = self.signature(OpKind::AllGather, Some(T::DTYPE), buffer.len(), None, None, site)?;
        self.in_place(Collective { signature, layout, recv_layout: None }, buffer)
    }

    /// As [`all_gather`](Self::all_gather), with `counts[r]` elements from rank `r`. All ranks give the same counts.
    ///
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    #[track_caller]
    pub fn all_gather_v<T: Element>(&self, input: &[T], output: &mut [T], counts: &[usize]) -> Result<()> {
        let site = self.site();
        let layout = self.layout(OpKind::AllGather, counts, &site)?;
        self.all_gather_in(OpKind::AllGather, input, output, layout, Signature::detail_of(counts), site)
    }

    /// An all_gather under another name in errors: splits and objects are made of it.
    pub(crate) fn all_gather_at<T: Element>(
        &self,
        op: OpKind,
        input: &[T],
        output: &mut [T],
        site: CallSite,
    ) -> Result<()> {
        self.all_gather_in(op, input, output, equal(self.world_size(), input.len()), 0, site)
    }

    fn all_gather_in<T: Element>(
        &self,
        op: OpKind,
        input: &[T],
        output: &mut [T],
        layout: Layout,
        detail: u64,
        site: CallSite,
    ) -> Result<()> {
        let own = layout.block(self.rank());
        let lengths = [
            ("input", Some(input.len()), Some(own.len()), Why::Block),
            ("output", Some(output.len()), Some(layout.len()), Why::Blocks(&layout)),
        ];
        check_lengths(op, &site, &lengths)?;
        let mut signature = self.signature(op, Some(T::DTYPE), layout.len(), None, None, site)?;
        signature.detail = detail;
        keep(&mut output[own], input);
        self.in_place(Collective { signature, layout, recv_layout: None }, output)
    }

    /// Copies the root's `buffer` to every rank.
    ///
    /// # Shape
    /// `buffer`: n elements, read on `root`, overwritten elsewhere.
    /// # Cost
    /// Small buffers: log₂ P rounds. Large ones: no rank sends more than about 2n elements.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    #[track_caller]
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<()> {
        let call = self.broadcast_call::<T>(buffer.len(), root, self.site())?;
        self.in_place(call, buffer)
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
    #[track_caller]
    pub fn reduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp, root: usize) -> Result<()> {
        let site = self.site();
        let signature =
            self.signature(OpKind::Reduce, Some(T::DTYPE), buffer.len(), Some(op), Some(root), site)?;
        self.in_place(self.undivided(signature), buffer)
    }

    /// Collects the ranks' inputs, in rank order, on `root`.
    ///
    /// # Shape
    /// `input`: n elements. `output`: P × n elements on `root`, `None` elsewhere.
    /// # Cost
    /// `root` receives n(P−1) elements.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    #[track_caller]
    pub fn gather<T: Element>(&self, input: &[T], output: Option<&mut [T]>, root: usize) -> Result<()> {
        self.gather_at(input, output, equal(self.world_size(), input.len()), root, 0, self.site())
    }

    /// As [`gather`](Self::gather), with `counts[r]` elements from rank `r`. All ranks give the same counts.
    ///
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    #[track_caller]
    pub fn gather_v<T: Element>(
        &self,
        input: &[T],
        output: Option<&mut [T]>,
        counts: &[usize],
        root: usize,
    ) -> Result<()> {
        let site = self.site();
        let layout = self.layout(OpKind::Gather, counts, &site)?;
        self.gather_at(input, output, layout, root, Signature::detail_of(counts), site)
    }

    /// What the buffer with all blocks must have: on the root, and elsewhere; and why.
    fn at_root<'a>(&self, root: usize, layout: &'a Layout) -> (Option<usize>, Why<'a>) {
        if self.rank() == root {
            (Some(layout.len()), Why::Blocks(layout))
        } else {
            (None, Why::OnlyAt(root))
        }
    }

    fn gather_at<T: Element>(
        &self,
        input: &[T],
        output: Option<&mut [T]>,
        layout: Layout,
        root: usize,
        detail: u64,
        site: CallSite,
    ) -> Result<()> {
        let op = OpKind::Gather;
        let mut signature = self.signature(op, Some(T::DTYPE), layout.len(), None, Some(root), site)?;
        signature.detail = detail;
        let own = layout.block(self.rank());
        let given = output.as_ref().map(|o| o.len());
        let (expected, why) = self.at_root(root, &layout);
        let lengths =
            [("input", Some(input.len()), Some(own.len()), Why::Block), ("output", given, expected, why)];
        check_lengths(op, &signature.site, &lengths)?;
        let call = Collective { signature, layout, recv_layout: None };
        if let Some(output) = output {
            keep(&mut output[own], input);
            return self.in_place(call, output);
        }
        self.separate(call, input, &mut [])
    }

    /// Deals the root's input out to the ranks, in rank order.
    ///
    /// # Shape
    /// `input`: P × n elements on `root`, `None` elsewhere. `output`: n elements.
    /// # Cost
    /// `root` sends n(P−1) elements.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    #[track_caller]
    pub fn scatter<T: Element>(&self, input: Option<&[T]>, output: &mut [T], root: usize) -> Result<()> {
        self.scatter_at(input, output, equal(self.world_size(), output.len()), root, 0, self.site())
    }

    /// As [`scatter`](Self::scatter), with `counts[r]` elements for rank `r`. All ranks give the same counts.
    ///
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    #[track_caller]
    pub fn scatter_v<T: Element>(
        &self,
        input: Option<&[T]>,
        output: &mut [T],
        counts: &[usize],
        root: usize,
    ) -> Result<()> {
        let site = self.site();
        let layout = self.layout(OpKind::Scatter, counts, &site)?;
        self.scatter_at(input, output, layout, root, Signature::detail_of(counts), site)
    }

    fn scatter_at<T: Element>(
        &self,
        input: Option<&[T]>,
        output: &mut [T],
        layout: Layout,
        root: usize,
        detail: u64,
        site: CallSite,
    ) -> Result<()> {
        let op = OpKind::Scatter;
        let mut signature = self.signature(op, Some(T::DTYPE), layout.len(), None, Some(root), site)?;
        signature.detail = detail;
        let own = layout.block(self.rank());
        let given = input.map(<[T]>::len);
        let (expected, why) = self.at_root(root, &layout);
        let lengths =
            [("input", given, expected, why), ("output", Some(output.len()), Some(own.len()), Why::Block)];
        check_lengths(op, &signature.site, &lengths)?;
        let call = Collective { signature, layout, recv_layout: None };
        if let Some(input) = input {
            self.separate(call, input, &mut [])?;
            keep(output, &input[own]);
            return Ok(());
        }
        self.separate(call, &[], output)
    }

    /// Sends block `r` of `input` to rank `r`, and collects what the others sent, in rank order.
    ///
    /// # Shape
    /// `input`, `output`: P × n elements each.
    /// # Cost
    /// P−1 rounds; each rank sends n(P−1) elements.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    #[track_caller]
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let (site, op, world_size) = (self.site(), OpKind::AllToAll, self.world_size());
        let why = Why::Because("as many as input has");
        check_lengths(op, &site, &[("output", Some(output.len()), Some(input.len()), why)])?;
        if !input.len().is_multiple_of(world_size) {
            let what = format!(
                "input has {} elements, expected a multiple of {world_size} (the ranks)",
                input.len()
            );
            return Err(wrong(op, &site, what));
        }
        let signature = self.signature(op, Some(T::DTYPE), input.len(), None, None, site)?;
        let layout = Layout::even(world_size, input.len());
        self.all_to_all_in(signature, input, layout.clone(), output, layout)
    }

    /// As [`all_to_all`](Self::all_to_all), with `send_counts[r]` elements to rank `r` and `recv_counts[r]` from it.
    /// What one rank sends to another, that one must expect.
    ///
    /// # Errors
    /// See the [contract](ProcessGroup#contract); [`Protocol`](Error::Protocol) where counts don't meet.
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
        let rank = self.rank();
        let (to, from) = (send_counts[rank], recv_counts[rank]);
        let lengths = [
            ("input", Some(input.len()), Some(send.len()), Why::Because("the sum of send_counts")),
            ("output", Some(output.len()), Some(recv.len()), Why::Because("the sum of recv_counts")),
        ];
        check_lengths(op, &site, &lengths)?;
        if to != from {
            let what = format!("this rank sends {to} elements to itself, and expects {from} from itself");
            return Err(wrong(op, &site, what));
        }
        let mut signature = self.signature(op, Some(T::DTYPE), 0, None, None, site)?;
        signature.detail = 1; // counts differ from rank to rank, but all call this and not the even one
        self.all_to_all_in(signature, input, send, output, recv)
    }

    fn all_to_all_in<T: Element>(
        &self,
        signature: Signature,
        input: &[T],
        send: Layout,
        output: &mut [T],
        recv: Layout,
    ) -> Result<()> {
        let rank = self.rank();
        keep(&mut output[recv.block(rank)], &input[send.block(rank)]);
        self.separate(Collective { signature, layout: send, recv_layout: Some(recv) }, input, output)
    }

    /// Returns on every rank after all ranks have called it.
    ///
    /// # Cost
    /// ⌈log₂ P⌉ rounds of empty messages.
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        self.barrier_at(OpKind::Barrier, self.timeout(), self.site())
    }

    /// As [`barrier`](Self::barrier), with a time limit of its own. The [`Timeout`](Error::Timeout) names every rank that did not come.
    ///
    /// # Errors
    /// See the [contract](ProcessGroup#contract).
    #[track_caller]
    pub fn monitored_barrier(&self, timeout: Duration) -> Result<()> {
        self.barrier_at(OpKind::Barrier, timeout, self.site())
    }

    pub(crate) fn barrier_at(&self, op: OpKind, timeout: Duration, site: CallSite) -> Result<()> {
        let call = self.barrier_call(op, site)?;
        self.backend.perform(&call, Buffers::InPlace(&mut []), timeout)
    }

    pub(crate) fn barrier_call(&self, op: OpKind, site: CallSite) -> Result<Collective> {
        Ok(self.undivided(self.signature(op, None, 0, None, None, site)?))
    }

    pub(crate) fn all_reduce_call<T: Element>(
        &self,
        len: usize,
        op: ReduceOp,
        site: CallSite,
    ) -> Result<Collective> {
        Ok(self.undivided(self.signature(OpKind::AllReduce, Some(T::DTYPE), len, Some(op), None, site)?))
    }

    pub(crate) fn broadcast_call<T: Element>(
        &self,
        len: usize,
        root: usize,
        site: CallSite,
    ) -> Result<Collective> {
        Ok(self.undivided(self.signature(OpKind::Broadcast, Some(T::DTYPE), len, None, Some(root), site)?))
    }

    /// A call on one buffer that all ranks have whole.
    fn undivided(&self, signature: Signature) -> Collective {
        let layout = Layout::even(self.world_size(), signature.count as usize);
        Collective { signature, layout, recv_layout: None }
    }

    fn in_place<T: Element>(&self, call: Collective, buffer: &mut [T]) -> Result<()> {
        self.backend.perform(&call, Buffers::InPlace(bytemuck::cast_slice_mut(buffer)), self.timeout())
    }

    fn separate<T: Element>(&self, call: Collective, input: &[T], output: &mut [T]) -> Result<()> {
        let buffers = Buffers::Separate(bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
        self.backend.perform(&call, buffers, self.timeout())
    }

    fn layout(&self, op: OpKind, counts: &[usize], site: &CallSite) -> Result<Layout> {
        if counts.len() != self.world_size() {
            let (n, world_size) = (counts.len(), self.world_size());
            return Err(wrong(op, site, format!("{n} counts for {world_size} ranks")));
        }
        if counts.iter().try_fold(0usize, |sum, &n| sum.checked_add(n)).is_none() {
            return Err(wrong(op, site, "counts whose sum does not fit"));
        }
        Ok(Layout::from_counts(counts))
    }
}
