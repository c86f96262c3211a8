//! A request as schedules perform it: they see the whole buffer of an operation, of which a rank may have only its block.

use crate::engine::collective::Memory;
use crate::engine::scratch::Scratch;
use crate::group::call::element;
use crate::group::derived::fold_scan;
use crate::group::memory::{Changed, OwnedBuffer, Readable, Writable, keep};
use crate::group::pending::Bytes;
use crate::group::request::{BlockExchange, Buffers, Request};
use phalanx_core::{DType, Layout, OpKind, ReduceOp};
use std::ops::Range;

/// What an algorithm is chosen and planned by. The same on all ranks, but for the layouts of an uneven all_to_all.
#[derive(Debug, Clone)]
pub(crate) struct Pattern {
    pub(crate) kind: OpKind,
    pub(crate) reduce: Option<ReduceOp>,
    /// Of an operation that has one.
    pub(crate) root: usize,
    /// The block of each rank. Operations on one undivided buffer split it evenly.
    pub(crate) layout: Layout,
    /// The block from each rank in the output of an all_to_all, where only the two ranks know it.
    pub(crate) recv_layout: Option<Layout>,
}

impl Pattern {
    /// Of a call that is performed as what it is called.
    #[cfg(any(test, feature = "__fuzz"))]
    pub(crate) fn of_call(signature: &phalanx_core::Signature, layout: Layout) -> Self {
        let &phalanx_core::Signature { op, reduce, root, .. } = signature;
        Self { kind: op, reduce, root: root.unwrap_or(0) as usize, layout, recv_layout: None }
    }
}

/// The memory in which a schedule is performed.
#[derive(Debug)]
pub(crate) enum Workspace<I, O> {
    /// Sent from and received into one buffer.
    InPlace(O),
    /// Sent from the first, received into the second.
    Separate(I, O),
    /// The schedule only sends; this block of the first becomes the output, if there is one, when all others have theirs, who wait for this rank.
    Sends(I, Range<usize>, Option<O>),
    /// What comes is for others.
    PassesOn(I, Scratch),
    /// This block becomes the output.
    Takes(O, Range<usize>, Scratch),
    /// All ranks gather the whole, of which what those up to this rank gave is combined to the output.
    Scans(O, Scratch, Scan),
    /// Nothing is moved.
    Nothing,
}

/// How the blocks of a whole that was gathered become the result of a scan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scan {
    reduce: ReduceOp,
    dtype: Option<DType>,
    rank: usize,
}

impl<I: Readable, O: Writable> Workspace<I, O> {
    /// `request` of elements of type `dtype`, or of bytes, for rank `rank` of `world_size`; what a rank gives itself is where it belongs then, or is brought there in the end.
    ///
    /// # Errors
    /// [`Changed`]: a buffer of the program's own making.
    pub(crate) fn of(
        request: Request<I, O>,
        dtype: Option<DType>,
        rank: usize,
        world_size: usize,
    ) -> Result<(Pattern, Self), Changed> {
        let element = element(dtype);
        let bytes = |elements: Range<usize>| elements.start * element..elements.end * element;
        let whole = |blocks: &Layout| Scratch::new(blocks.len() * element);
        let (mut kind, mut reduce) = (request.kind(), request.reduce().copied());
        let root = request.root().unwrap_or(0);
        let even = Layout::even(world_size, request.count(element));
        let mut recv_layout = None;
        let (layout, workspace) = match request {
            Request::AllReduce { buffers, .. } => {
                let output = match buffers {
                    Buffers::InPlace(buffer) => buffer,
                    Buffers::Separate(mut input, mut output) => {
                        keep(output.write()?, input.read()?);
                        output
                    }
                };
                (even, Self::InPlace(output))
            }
            Request::Reduce { buffer, .. } | Request::Broadcast { buffer, .. } => {
                (even, Self::InPlace(buffer))
            }
            Request::AllGather { buffers, blocks } => {
                let output = match buffers {
                    Buffers::InPlace(buffer) => buffer,
                    Buffers::Separate(mut input, mut output) => {
                        keep(&mut output.write()?[bytes(blocks.block(rank))], input.read()?);
                        output
                    }
                };
                (blocks, Self::InPlace(output))
            }
            Request::ReduceScatter { buffers: Buffers::InPlace(buffer), blocks, .. } => {
                (blocks, Self::InPlace(buffer))
            }
            Request::ReduceScatter { buffers: Buffers::Separate(mut input, output), blocks, .. } => {
                let mut whole = whole(&blocks);
                whole.bytes_mut().copy_from_slice(input.read()?);
                let own = bytes(blocks.block(rank));
                (blocks, Self::Takes(output, own, whole))
            }
            Request::Gather { input, output: Some(mut output), blocks, .. } => {
                if let Some(mut input) = input {
                    keep(&mut output.write()?[bytes(blocks.block(rank))], input.read()?);
                }
                (blocks, Self::InPlace(output))
            }
            Request::Gather { input: Some(mut input), output: None, blocks, .. } => {
                let mut whole = whole(&blocks);
                whole.bytes_mut()[bytes(blocks.block(rank))].copy_from_slice(input.read()?);
                (blocks, Self::PassesOn(input, whole))
            }
            Request::Scatter { input: Some(input), output, blocks, .. } => {
                let own = bytes(blocks.block(rank));
                (blocks, Self::Sends(input, own, output))
            }
            Request::Scatter { input: None, output: Some(output), blocks, .. } => {
                let (own, whole) = (bytes(blocks.block(rank)), whole(&blocks));
                (blocks, Self::Takes(output, own, whole))
            }
            // Of no call: one of its buffers is on every rank.
            Request::Gather { input: None, output: None, blocks, .. }
            | Request::Scatter { input: None, output: None, blocks, .. } => (blocks, Self::Nothing),
            Request::AllToAll { mut input, mut output, blocks } => {
                let is_even = matches!(blocks, BlockExchange::Even { .. });
                let (send, recv) = blocks.layouts(world_size);
                let own = &input.read()?[bytes(send.block(rank))];
                keep(&mut output.write()?[bytes(recv.block(rank))], own);
                recv_layout = (!is_even).then_some(recv);
                (send, Self::Separate(input, output))
            }
            Request::Scan { buffers, reduce: by } => {
                (kind, reduce) = (OpKind::AllGather, None);
                let blocks = Layout::even(world_size, even.len() * world_size);
                let (mut whole, own) = (whole(&blocks), bytes(blocks.block(rank)));
                let output = match buffers {
                    Buffers::InPlace(mut buffer) => {
                        whole.bytes_mut()[own].copy_from_slice(buffer.write()?);
                        buffer
                    }
                    Buffers::Separate(mut input, output) => {
                        whole.bytes_mut()[own].copy_from_slice(input.read()?);
                        output
                    }
                };
                (blocks, Self::Scans(output, whole, Scan { reduce: by, dtype, rank }))
            }
            Request::Barrier => (even, Self::Nothing),
        };
        Ok((Pattern { kind, reduce, root, layout, recv_layout }, workspace))
    }

    /// What the schedule works on.
    ///
    /// # Errors
    /// [`Changed`]: a buffer of the program's own making.
    pub(crate) fn memory(&mut self) -> Result<Memory<'_>, Changed> {
        Ok(match self {
            Self::InPlace(buffer) => Memory::InPlace(buffer.write()?),
            Self::Separate(input, output) => Memory::Separate(input.read()?, output.write()?),
            Self::Sends(input, ..) => Memory::Separate(input.read()?, &mut []),
            Self::PassesOn(_, whole) | Self::Takes(_, _, whole) | Self::Scans(_, whole, _) => {
                Memory::InPlace(whole.bytes_mut())
            }
            Self::Nothing => Memory::InPlace(&mut []),
        })
    }

    /// The schedule has been performed: the output is where it belongs then.
    ///
    /// # Errors
    /// [`Changed`]: a buffer of the program's own making.
    pub(crate) fn finish(&mut self) -> Result<(), Changed> {
        match self {
            Self::Takes(output, own, whole) => keep(output.write()?, &whole.bytes()[own.clone()]),
            Self::Scans(output, whole, Scan { reduce, dtype, rank }) => {
                fold_scan(output.write()?, whole.bytes(), *reduce, *dtype, *rank);
            }
            Self::Sends(input, own, Some(output)) => keep(output.write()?, &input.read()?[own.clone()]),
            Self::Sends(.., None)
            | Self::InPlace(_)
            | Self::Separate(..)
            | Self::PassesOn(..)
            | Self::Nothing => {}
        }
        Ok(())
    }
}

impl Workspace<OwnedBuffer, OwnedBuffer> {
    /// The buffer with which the operation is completed: that of [`Request::into_result`]; an empty one where it had none.
    pub(crate) fn into_buffer(self) -> Box<dyn Bytes> {
        match self {
            Self::InPlace(output)
            | Self::Separate(_, output)
            | Self::Sends(.., Some(output))
            | Self::Sends(output, _, None)
            | Self::Takes(output, ..)
            | Self::Scans(output, ..)
            | Self::PassesOn(output, _) => output.into_inner(),
            Self::Nothing => Box::new(Vec::<u8>::new()),
        }
    }
}
