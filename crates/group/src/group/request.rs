//! A collective as one rank asks for it: what is performed, on which buffers.

use phalanx_core::{Layout, OpKind, ReduceOp};
use std::convert::Infallible;

/// A collective with its buffers: inputs are an `I`, outputs an `O`, and `R` says how values are combined.
///
/// The type is the same for every kind of memory: slices of the host, buffers that an operation [owns](crate::OwnedBuffer), raw memory
/// of a device. Lengths and blocks are in elements. What is performed may be called otherwise: a split of a group is an all_gather, and
/// its [`Signature`](phalanx_core::Signature) says split.
#[derive(Debug, Clone, PartialEq)]
pub enum Request<I, O, R = ReduceOp> {
    /// Every rank ends with the combination of all inputs.
    AllReduce {
        /// The whole, on every rank.
        buffers: Buffers<I, O>,
        /// How values are combined.
        reduce: R,
    },
    /// The root ends with the combination of all buffers; elsewhere the buffer holds anything afterwards.
    Reduce {
        /// The whole, on every rank.
        buffer: O,
        /// How values are combined.
        reduce: R,
        /// The rank that gets the result.
        root: usize,
    },
    /// Every rank ends with the buffer of the root.
    Broadcast {
        /// The whole, on every rank.
        buffer: O,
        /// The rank that has it.
        root: usize,
    },
    /// Every rank ends with the blocks of all.
    AllGather {
        /// The own block and the whole; or in place the whole, in which the own block stands.
        buffers: Buffers<I, O>,
        /// The block of each rank.
        blocks: Layout,
    },
    /// Every rank ends with its block of the combination of all inputs.
    ReduceScatter {
        /// The whole and the own block; or in place the whole, of which the own block is the result and the others hold anything afterwards.
        buffers: Buffers<I, O>,
        /// The block of each rank.
        blocks: Layout,
        /// How values are combined.
        reduce: R,
    },
    /// The root ends with the blocks of all.
    Gather {
        /// The own block. `None` on a root that has it in the output, where it belongs.
        input: Option<I>,
        /// The whole, on the root alone.
        output: Option<O>,
        /// The block of each rank.
        blocks: Layout,
        /// The rank that gets them.
        root: usize,
    },
    /// Every rank ends with its block of the input of the root.
    Scatter {
        /// The whole, on the root alone.
        input: Option<I>,
        /// The own block. `None` on a root that keeps it where it is in the input.
        output: Option<O>,
        /// The block of each rank.
        blocks: Layout,
        /// The rank that has them.
        root: usize,
    },
    /// Every rank ends with one block of the input of each.
    AllToAll {
        /// A block for each rank and a block from each rank, in their order. In place what comes from a rank is where what went to it was; the
        /// blocks are even then.
        buffers: Buffers<I, O>,
        /// Which blocks.
        blocks: BlockExchange,
    },
    /// Every rank ends with the combination of the inputs of ranks 0 to itself, in their order.
    Scan {
        /// The whole, on every rank.
        buffers: Buffers<I, O>,
        /// How values are combined; an average is that of as many ranks.
        reduce: R,
    },
    /// Every rank waits until all have come.
    Barrier,
}

/// The buffers of an operation that works in place as well as from one buffer to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffers<I, O> {
    /// Read and overwritten.
    InPlace(O),
    /// Read from the first, written to the second.
    Separate(I, O),
}

/// The blocks of an all_to_all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockExchange {
    /// Of one length between any two ranks, on which all agree.
    Even {
        /// Elements from each rank to each.
        count: usize,
    },
    /// Of any lengths, each of which only the two ranks know that exchange it.
    Uneven {
        /// In the input: block `r` goes to rank `r`.
        send: Layout,
        /// In the output: block `r` comes from rank `r`.
        recv: Layout,
    },
}

impl<I, O> Buffers<I, O> {
    #[inline(always)]
    fn try_map<J, P, E>(
        self,
        input: &mut impl FnMut(I) -> Result<J, E>,
        output: &mut impl FnMut(O) -> Result<P, E>,
    ) -> Result<Buffers<J, P>, E> {
        Ok(match self {
            Self::InPlace(buffer) => Buffers::InPlace(output(buffer)?),
            Self::Separate(from, to) => Buffers::Separate(input(from)?, output(to)?),
        })
    }

    fn each(&mut self) -> Buffers<&mut I, &mut O> {
        match self {
            Self::InPlace(buffer) => Buffers::InPlace(buffer),
            Self::Separate(input, output) => Buffers::Separate(input, output),
        }
    }
}

impl BlockExchange {
    /// Where the blocks lie in the input and in the output, among so many ranks.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::BlockExchange;
    /// let (send, recv) = BlockExchange::Even { count: 3 }.layouts(2);
    /// assert_eq!((send.block(1), recv.len()), (3..6, 6));
    /// ```
    pub fn layouts(self, world_size: usize) -> (Layout, Layout) {
        match self {
            Self::Even { count } => {
                let layout = Layout::even(world_size, count.saturating_mul(world_size));
                (layout.clone(), layout)
            }
            Self::Uneven { send, recv } => (send, recv),
        }
    }
}

impl<I, O, R> Request<I, O, R> {
    /// The operation that is performed.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::{Buffers, BlockExchange, ReduceOp, Request};
    /// # use phalanx_core::{Layout, OpKind};
    /// assert_eq!(Request::<&[u8], &mut [u8]>::Barrier.kind(), OpKind::Barrier);
    /// ```
    #[inline(always)]
    pub fn kind(&self) -> OpKind {
        match self {
            Self::AllReduce { .. } => OpKind::AllReduce,
            Self::Reduce { .. } => OpKind::Reduce,
            Self::Broadcast { .. } => OpKind::Broadcast,
            Self::AllGather { .. } => OpKind::AllGather,
            Self::ReduceScatter { .. } => OpKind::ReduceScatter,
            Self::Gather { .. } => OpKind::Gather,
            Self::Scatter { .. } => OpKind::Scatter,
            Self::AllToAll { .. } => OpKind::AllToAll,
            Self::Scan { .. } => OpKind::Scan,
            Self::Barrier => OpKind::Barrier,
        }
    }

    /// How values are combined, where they are.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::{Buffers, BlockExchange, ReduceOp, Request};
    /// # use phalanx_core::{Layout, OpKind};
    /// let mut values = [1.0f32, 2.0];
    /// let request = Request::<&[f32], _>::AllReduce { buffers: Buffers::InPlace(&mut values[..]), reduce: ReduceOp::Sum };
    /// assert_eq!(request.reduce(), Some(&ReduceOp::Sum));
    /// ```
    #[inline(always)]
    pub fn reduce(&self) -> Option<&R> {
        match self {
            Self::AllReduce { reduce, .. }
            | Self::Scan { reduce, .. }
            | Self::Reduce { reduce, .. }
            | Self::ReduceScatter { reduce, .. } => Some(reduce),
            Self::Broadcast { .. }
            | Self::AllGather { .. }
            | Self::Gather { .. }
            | Self::Scatter { .. }
            | Self::AllToAll { .. }
            | Self::Barrier => None,
        }
    }

    /// The special rank, where there is one.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::{Buffers, BlockExchange, ReduceOp, Request};
    /// # use phalanx_core::{Layout, OpKind};
    /// let request = Request::<&[u8], _>::Broadcast { buffer: &mut [0u8; 4][..], root: 1 };
    /// assert_eq!(request.root(), Some(1));
    /// ```
    #[inline(always)]
    pub fn root(&self) -> Option<usize> {
        match self {
            Self::Reduce { root, .. }
            | Self::Broadcast { root, .. }
            | Self::Gather { root, .. }
            | Self::Scatter { root, .. } => Some(*root),
            Self::AllReduce { .. }
            | Self::AllGather { .. }
            | Self::ReduceScatter { .. }
            | Self::AllToAll { .. }
            | Self::Scan { .. }
            | Self::Barrier => None,
        }
    }

    /// The block of each rank, of operations that all agree on them.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::{Buffers, BlockExchange, ReduceOp, Request};
    /// # use phalanx_core::{Layout, OpKind};
    /// let mut all = [0u8; 4];
    /// let buffers = Buffers::<&[u8], _>::InPlace(&mut all[..]);
    /// let request = Request::<_, _, ReduceOp>::AllGather { buffers, blocks: Layout::even(2, 4) };
    /// assert_eq!(request.blocks().map(Layout::len), Some(4));
    /// ```
    pub fn blocks(&self) -> Option<&Layout> {
        match self {
            Self::AllGather { blocks, .. }
            | Self::ReduceScatter { blocks, .. }
            | Self::Gather { blocks, .. }
            | Self::Scatter { blocks, .. } => Some(blocks),
            Self::AllReduce { .. }
            | Self::Reduce { .. }
            | Self::Broadcast { .. }
            | Self::AllToAll { .. }
            | Self::Scan { .. }
            | Self::Barrier => None,
        }
    }

    /// The same on other memory, with values that are combined as `combine` says.
    ///
    /// # Errors
    /// The first that `input` or `output` returns.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::{Buffers, BlockExchange, ReduceOp, Request};
    /// # use phalanx_core::{Layout, OpKind};
    /// let mut values = [1.0f32, 2.0];
    /// let request = Request::<&[f32], _>::AllReduce { buffers: Buffers::InPlace(&mut values[..]), reduce: ReduceOp::Sum };
    /// let lengths = request.try_map(|input| Ok::<_, String>(input.len()), |output| Ok(output.len()), |reduce| reduce)?;
    /// assert_eq!(lengths.into_result(), Some(2));
    /// # Ok::<(), String>(())
    /// ```
    #[inline(always)]
    pub fn try_map<J, P, S, E>(
        self,
        mut input: impl FnMut(I) -> Result<J, E>,
        mut output: impl FnMut(O) -> Result<P, E>,
        combine: impl FnOnce(R) -> S,
    ) -> Result<Request<J, P, S>, E> {
        Ok(match self {
            Self::AllReduce { buffers, reduce } => {
                let buffers = buffers.try_map(&mut input, &mut output)?;
                Request::AllReduce { buffers, reduce: combine(reduce) }
            }
            Self::Reduce { buffer, reduce, root } => {
                Request::Reduce { buffer: output(buffer)?, reduce: combine(reduce), root }
            }
            Self::Broadcast { buffer, root } => Request::Broadcast { buffer: output(buffer)?, root },
            Self::AllGather { buffers, blocks } => {
                Request::AllGather { buffers: buffers.try_map(&mut input, &mut output)?, blocks }
            }
            Self::ReduceScatter { buffers, blocks, reduce } => {
                let buffers = buffers.try_map(&mut input, &mut output)?;
                Request::ReduceScatter { buffers, blocks, reduce: combine(reduce) }
            }
            Self::Gather { input: own, output: whole, blocks, root } => {
                let own = own.map(&mut input).transpose()?;
                Request::Gather { input: own, output: whole.map(&mut output).transpose()?, blocks, root }
            }
            Self::Scatter { input: whole, output: own, blocks, root } => {
                let whole = whole.map(&mut input).transpose()?;
                Request::Scatter { input: whole, output: own.map(&mut output).transpose()?, blocks, root }
            }
            Self::AllToAll { buffers, blocks } => {
                Request::AllToAll { buffers: buffers.try_map(&mut input, &mut output)?, blocks }
            }
            Self::Scan { buffers, reduce } => {
                let buffers = buffers.try_map(&mut input, &mut output)?;
                Request::Scan { buffers, reduce: combine(reduce) }
            }
            Self::Barrier => Request::Barrier,
        })
    }

    /// The same on other memory.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::{Buffers, BlockExchange, ReduceOp, Request};
    /// # use phalanx_core::{Layout, OpKind};
    /// let mut values = [1.0f32, 2.0];
    /// let request = Request::<&[f32], _>::AllReduce { buffers: Buffers::InPlace(&mut values[..]), reduce: ReduceOp::Sum };
    /// let lengths = request.map(<[f32]>::len, |values| values.len());
    /// assert_eq!(lengths.into_result(), Some(2));
    /// ```
    #[inline(always)]
    pub fn map<J, P>(
        self,
        mut input: impl FnMut(I) -> J,
        mut output: impl FnMut(O) -> P,
    ) -> Request<J, P, R> {
        let mapped = self.try_map(|i| Ok::<_, Infallible>(input(i)), |o| Ok(output(o)), |reduce| reduce);
        mapped.unwrap_or_else(|never| match never {})
    }

    /// The same, with values that are combined as `combine` says.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::{Buffers, BlockExchange, ReduceOp, Request};
    /// # use phalanx_core::{Layout, OpKind};
    /// let mut values = [1.0f32, 2.0];
    /// let request = Request::<&[f32], _>::AllReduce { buffers: Buffers::InPlace(&mut values[..]), reduce: ReduceOp::Sum };
    /// let other = request.with(|_| "largest");
    /// assert_eq!(other.reduce(), Some(&"largest"));
    /// ```
    pub fn with<S>(self, combine: impl FnOnce(R) -> S) -> Request<I, O, S> {
        let mapped = self.try_map(Ok::<_, Infallible>, Ok, combine);
        mapped.unwrap_or_else(|never| match never {})
    }

    /// The same request, whose buffers stay here.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::{Buffers, BlockExchange, ReduceOp, Request};
    /// # use phalanx_core::{Layout, OpKind};
    /// let mut values = [1.0f32, 2.0];
    /// let mut request = Request::<&[f32], _>::AllReduce { buffers: Buffers::InPlace(&mut values[..]), reduce: ReduceOp::Sum };
    /// let lent = request.each();
    /// assert_eq!(lent.kind(), OpKind::AllReduce);
    /// assert_eq!(request.kind(), OpKind::AllReduce); // still here
    /// ```
    pub fn each(&mut self) -> Request<&mut I, &mut O, R>
    where
        R: Copy,
    {
        match self {
            Self::AllReduce { buffers, reduce } => {
                Request::AllReduce { buffers: buffers.each(), reduce: *reduce }
            }
            Self::Reduce { buffer, reduce, root } => Request::Reduce { buffer, reduce: *reduce, root: *root },
            Self::Broadcast { buffer, root } => Request::Broadcast { buffer, root: *root },
            Self::AllGather { buffers, blocks } => {
                Request::AllGather { buffers: buffers.each(), blocks: blocks.clone() }
            }
            Self::ReduceScatter { buffers, blocks, reduce } => {
                Request::ReduceScatter { buffers: buffers.each(), blocks: blocks.clone(), reduce: *reduce }
            }
            Self::Gather { input, output, blocks, root } => {
                let (input, output) = (input.as_mut(), output.as_mut());
                Request::Gather { input, output, blocks: blocks.clone(), root: *root }
            }
            Self::Scatter { input, output, blocks, root } => {
                let (input, output) = (input.as_mut(), output.as_mut());
                Request::Scatter { input, output, blocks: blocks.clone(), root: *root }
            }
            Self::AllToAll { buffers, blocks } => {
                Request::AllToAll { buffers: buffers.each(), blocks: blocks.clone() }
            }
            Self::Scan { buffers, reduce } => Request::Scan { buffers: buffers.each(), reduce: *reduce },
            Self::Barrier => Request::Barrier,
        }
    }
}

impl<B, R> Request<B, B, R> {
    /// The output; the input of a rank that has no output; nothing of a barrier.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::{Buffers, BlockExchange, ReduceOp, Request};
    /// # use phalanx_core::{Layout, OpKind};
    /// let buffers = Buffers::Separate(vec![1], vec![0]);
    /// let request = Request::AllReduce { buffers, reduce: ReduceOp::Sum };
    /// assert_eq!(request.into_result(), Some(vec![0])); // the output
    /// ```
    pub fn into_result(self) -> Option<B> {
        match self {
            Self::AllReduce { buffers, .. }
            | Self::AllGather { buffers, .. }
            | Self::ReduceScatter { buffers, .. }
            | Self::AllToAll { buffers, .. }
            | Self::Scan { buffers, .. } => match buffers {
                Buffers::InPlace(buffer) | Buffers::Separate(_, buffer) => Some(buffer),
            },
            Self::Reduce { buffer, .. } | Self::Broadcast { buffer, .. } => Some(buffer),
            Self::Gather { input, output, .. } | Self::Scatter { input, output, .. } => output.or(input),
            Self::Barrier => None,
        }
    }
}
