//! A request as schedules perform it: they see the whole buffer of an operation, of which a rank may have only its block.

use crate::engine::collective::Memory;
use crate::engine::scratch::Scratch;
use crate::group::call::element;
use crate::group::derived::fold_scan;
use crate::group::memory::{Changed, OwnedBuffer, Readable, Writable};
use crate::group::pending::Bytes;
use crate::group::request::{BlockExchange, Buffers, Request};
use phalanx_core::{DType, Layout, OpKind, ReduceOp};
use phalanx_kernels::copy_slice;
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
    /// Sent from a copy of the buffer that is received into.
    Exchanges(Scratch, O),
    /// The schedule only sends; this block of the first becomes the output, if there is one, when all others have theirs, who wait for this rank.
    Sends(I, Range<usize>, Option<O>),
    /// This block is given to others; what comes is for others, too.
    Gives(I, Range<usize>, Rest),
    /// This block becomes the output; what else comes is for others.
    Takes(O, Range<usize>, Rest),
    /// The whole is combined, of which this block becomes the output.
    Reduces(O, Range<usize>, Scratch),
    /// All ranks gather the whole, of which what those up to this rank gave is combined to the output.
    Scans(O, Scratch, Scan),
    /// Nothing is moved.
    Nothing,
}

/// The blocks of others that pass through a rank, with its own between them.
#[derive(Debug)]
pub(crate) enum Rest {
    /// There are none: the schedule works on the caller's block.
    Nothing,
    /// From this byte of the whole on.
    Kept(usize, Scratch),
}

impl Rest {
    /// For a schedule that touches these bytes of the whole; `own` is the caller's block.
    fn of(touched: &Range<usize>, own: &Range<usize>) -> Self {
        let is_own = touched.is_empty() || own.start <= touched.start && touched.end <= own.end;
        if is_own {
            return Self::Nothing;
        }
        // The own block may be empty, anywhere.
        let own = if own.is_empty() { touched } else { own };
        let start = touched.start.min(own.start);
        Self::Kept(start, Scratch::new(touched.end.max(own.end) - start))
    }
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
                        copy_slice(output.write()?, input.read()?);
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
                        copy_slice(&mut output.write()?[bytes(blocks.block(rank))], input.read()?);
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
                copy_slice(whole.bytes_mut(), input.read()?);
                let own = bytes(blocks.block(rank));
                (blocks, Self::Reduces(output, own, whole))
            }
            Request::Gather { input, output: Some(mut output), blocks, .. } => {
                if let Some(mut input) = input {
                    copy_slice(&mut output.write()?[bytes(blocks.block(rank))], input.read()?);
                }
                (blocks, Self::InPlace(output))
            }
            Request::Gather { input: Some(input), output: None, blocks, .. } => {
                let own = bytes(blocks.block(rank));
                (blocks, Self::Gives(input, own, Rest::Nothing))
            }
            Request::Scatter { input: Some(input), output, blocks, .. } => {
                let own = bytes(blocks.block(rank));
                (blocks, Self::Sends(input, own, output))
            }
            Request::Scatter { input: None, output: Some(output), blocks, .. } => {
                let own = bytes(blocks.block(rank));
                (blocks, Self::Takes(output, own, Rest::Nothing))
            }
            // Of no call: one of its buffers is on every rank.
            Request::Gather { input: None, output: None, blocks, .. }
            | Request::Scatter { input: None, output: None, blocks, .. } => (blocks, Self::Nothing),
            Request::AllToAll { buffers: Buffers::InPlace(mut buffer), blocks } => {
                let (send, _) = blocks.layouts(world_size);
                if world_size == 1 {
                    return Ok((
                        Pattern { kind, reduce, root, layout: send, recv_layout },
                        Self::InPlace(buffer),
                    ));
                }
                let mut sent = whole(&send);
                copy_slice(sent.bytes_mut(), buffer.write()?);
                (send, Self::Exchanges(sent, buffer))
            }
            Request::AllToAll { buffers: Buffers::Separate(mut input, mut output), blocks } => {
                let is_even = matches!(blocks, BlockExchange::Even { .. });
                let (send, recv) = blocks.layouts(world_size);
                let own = &input.read()?[bytes(send.block(rank))];
                copy_slice(&mut output.write()?[bytes(recv.block(rank))], own);
                recv_layout = (!is_even).then_some(recv);
                (send, Self::Separate(input, output))
            }
            Request::Scan { buffers, reduce: by } => {
                (kind, reduce) = (OpKind::AllGather, None);
                let blocks = Layout::even(world_size, even.len() * world_size);
                let (mut whole, own) = (whole(&blocks), bytes(blocks.block(rank)));
                let output = match buffers {
                    Buffers::InPlace(mut buffer) => {
                        copy_slice(&mut whole.bytes_mut()[own], buffer.write()?);
                        buffer
                    }
                    Buffers::Separate(mut input, output) => {
                        copy_slice(&mut whole.bytes_mut()[own], input.read()?);
                        output
                    }
                };
                (blocks, Self::Scans(output, whole, Scan { reduce: by, dtype, rank }))
            }
            Request::Barrier => (even, Self::Nothing),
        };
        Ok((Pattern { kind, reduce, root, layout, recv_layout }, workspace))
    }

    /// Provides what a schedule needs, of which the messages touch these bytes of the whole.
    ///
    /// # Errors
    /// [`Changed`]: a buffer of the program's own making.
    pub(crate) fn settle(&mut self, touched: &Range<usize>) -> Result<(), Changed> {
        match self {
            Self::Gives(input, own, rest) => {
                *rest = Rest::of(touched, own);
                if let Rest::Kept(start, kept) = rest {
                    copy_slice(&mut kept.bytes_mut()[within(own, *start)], input.read()?);
                }
            }
            Self::Takes(_, own, rest) => *rest = Rest::of(touched, own),
            _ => {}
        }
        Ok(())
    }

    /// What the schedule works on.
    ///
    /// # Errors
    /// [`Changed`]: a buffer of the program's own making.
    pub(crate) fn memory(&mut self) -> Result<Memory<'_>, Changed> {
        Ok(match self {
            Self::InPlace(buffer) => Memory::in_place(buffer.write()?),
            Self::Separate(input, output) => Memory::separate(input.read()?, output.write()?),
            Self::Exchanges(sent, buffer) => Memory::separate(sent.bytes(), buffer.write()?),
            Self::Sends(input, ..) => Memory::separate(input.read()?, &mut []),
            Self::Gives(input, own, Rest::Nothing) => {
                Memory::separate(input.read()?, &mut []).beginning_at(own.start)
            }
            Self::Takes(output, own, Rest::Nothing) => {
                Memory::in_place(output.write()?).beginning_at(own.start)
            }
            Self::Gives(.., Rest::Kept(start, kept)) | Self::Takes(.., Rest::Kept(start, kept)) => {
                Memory::in_place(kept.bytes_mut()).beginning_at(*start)
            }
            Self::Reduces(_, _, whole) | Self::Scans(_, whole, _) => Memory::in_place(whole.bytes_mut()),
            Self::Nothing => Memory::in_place(&mut []),
        })
    }

    /// The schedule has been performed: the output is where it belongs then.
    ///
    /// # Errors
    /// [`Changed`]: a buffer of the program's own making.
    pub(crate) fn finish(&mut self) -> Result<(), Changed> {
        match self {
            Self::Reduces(output, own, whole) => copy_slice(output.write()?, &whole.bytes()[own.clone()]),
            Self::Takes(output, own, Rest::Kept(start, kept)) => {
                copy_slice(output.write()?, &kept.bytes()[within(own, *start)]);
            }
            Self::Scans(output, whole, Scan { reduce, dtype, rank }) => {
                fold_scan(output.write()?, whole.bytes(), *reduce, *dtype, *rank);
            }
            Self::Sends(input, own, Some(output)) => copy_slice(output.write()?, &input.read()?[own.clone()]),
            Self::Sends(.., None)
            | Self::InPlace(_)
            | Self::Separate(..)
            | Self::Exchanges(..)
            | Self::Gives(..)
            | Self::Takes(.., Rest::Nothing)
            | Self::Nothing => {}
        }
        Ok(())
    }
}

/// Where a block of the whole is in memory that begins with byte `start` of it.
fn within(block: &Range<usize>, start: usize) -> Range<usize> {
    // An empty one may be before it.
    if block.is_empty() { 0..0 } else { block.start - start..block.end - start }
}

impl Workspace<OwnedBuffer, OwnedBuffer> {
    /// The buffer with which the operation is completed: that of [`Request::into_result`]; an empty one where it had none.
    pub(crate) fn into_buffer(self) -> Box<dyn Bytes> {
        match self {
            Self::InPlace(output)
            | Self::Separate(_, output)
            | Self::Exchanges(_, output)
            | Self::Sends(.., Some(output))
            | Self::Sends(output, _, None)
            | Self::Takes(output, ..)
            | Self::Scans(output, ..)
            | Self::Reduces(output, ..)
            | Self::Gives(output, ..) => output.into_inner(),
            Self::Nothing => Box::new(Vec::<u8>::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The workspace of rank 2 of 4, for messages that touch these bytes.
    fn settled<'a>(
        request: Request<&'a [u8], &'a mut [u8]>,
        touched: Range<usize>,
    ) -> Workspace<&'a [u8], &'a mut [u8]> {
        let (_, mut workspace) = Workspace::of(request, None, 2, 4).unwrap();
        workspace.settle(&touched).unwrap();
        workspace
    }

    #[test]
    fn a_rank_that_passes_nothing_on_works_in_the_callers_memory() {
        let blocks = Layout::even(4, 40);
        let gather =
            Request::Gather { input: Some(&[7; 10][..]), output: None, blocks: blocks.clone(), root: 0 };
        assert!(matches!(settled(gather, 20..30), Workspace::Gives(_, _, Rest::Nothing)));
        let mut block = [0; 10];
        let output = Some(&mut block[..]);
        let scatter = Request::Scatter { input: None, output, blocks, root: 0 };
        assert!(matches!(settled(scatter, 20..30), Workspace::Takes(_, _, Rest::Nothing)));
    }

    #[test]
    fn a_rank_that_passes_blocks_on_holds_those_and_its_own() {
        let blocks = Layout::even(4, 40);
        let gather =
            Request::Gather { input: Some(&[7; 10][..]), output: None, blocks: blocks.clone(), root: 0 };
        let Workspace::Gives(_, _, Rest::Kept(20, kept)) = settled(gather, 20..40) else {
            panic!("not kept")
        };
        assert_eq!((kept.bytes().len(), &kept.bytes()[..10]), (20, &[7; 10][..]));

        let mut block = [0; 10];
        let output = Some(&mut block[..]);
        let scatter = Request::Scatter { input: None, output, blocks, root: 0 };
        let mut workspace = settled(scatter, 10..30);
        let Workspace::Takes(_, _, Rest::Kept(10, kept)) = &mut workspace else { panic!("not kept") };
        kept.bytes_mut()[10..].fill(5);
        workspace.finish().unwrap();
        drop(workspace);
        assert_eq!(block, [5; 10]);
    }

    #[test]
    fn an_empty_block_is_anywhere() {
        let blocks = Layout::from_counts(&[10, 10, 0, 10]);
        let gather = Request::Gather { input: Some(&[][..]), output: None, blocks, root: 0 };
        assert!(matches!(settled(gather, 20..30), Workspace::Gives(_, _, Rest::Kept(20, _))));
    }
}
