//! An operation made of one other, for backends that do not have it.
//!
//! all_reduce, all_gather and all_to_all are what the others are made of. A new collective needs an arm here; each backend then passes it on to
//! this, or performs it itself in a faster way.

use crate::engine::scratch::Scratch;
use crate::group::call::{HostCall, HostRequest, element};
use crate::group::request::{BlockExchange, Buffers, Request};
use phalanx_core::{DType, Error, Layout, ReduceOp, Result};
use phalanx_kernels::{Kernel, copy_slice};
use std::ops::Range;

impl HostCall<'_> {
    /// For a backend of this name that does not have the operation: performs the call by one other, an all_reduce, all_gather or all_to_all, which `perform` is given.
    /// That has the signature of this one, so all that is said of it names what the program called.
    ///
    /// # Errors
    /// Those of `perform`; [`Unsupported`](Error::Unsupported) of what others are made of.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::{CallSite, OpKind, Result, Signature};
    /// # use phalanx_group::{HostCall, Request};
    /// fn perform(call: HostCall<'_>) -> Result<()> {
    ///     match call.request() {
    ///         Request::AllGather { .. } => Ok(()), // … what this backend has …
    ///         _ => call.perform_derived("mine", perform),
    ///     }
    /// }
    /// # let signature = Signature::bare(OpKind::Barrier, CallSite::caller());
    /// # assert!(perform(HostCall::new(&signature, Request::Barrier, 0, 2)?).is_ok());
    /// # Ok::<(), phalanx_group::Error>(())
    /// ```
    pub fn perform_derived(
        self,
        backend: &'static str,
        perform: impl FnOnce(HostCall<'_>) -> Result<()>,
    ) -> Result<()> {
        let (rank, world_size) = self.place();
        let (signature, request) = self.into_parts();
        if request.is_basic() {
            let rule = "a backend performs all_reduce, all_gather and all_to_all itself, for the other collectives are made of them";
            let hint = match request.kind() {
                kind if kind == signature.op => rule.to_owned(),
                kind => format!("it is an {kind} of the ranks' answers, and {rule}"),
            };
            return Err(Error::Unsupported { op: signature.op, backend, hint });
        }
        let dtype = signature.carries();
        derived(request, dtype, rank, world_size, |part| {
            perform(HostCall::new(signature, part, rank, world_size)?)
        })
    }
}

impl<I, O, R> Request<I, O, R> {
    /// Whether others are made of it, and a backend must have it: all_reduce, all_gather, and all_to_all from one buffer to another.
    pub(crate) fn is_basic(&self) -> bool {
        match self {
            Self::AllReduce { .. } | Self::AllGather { .. } => true,
            Self::AllToAll { buffers, .. } => matches!(buffers, Buffers::Separate(..)),
            _ => false,
        }
    }
}

/// Performs `request` by one other, which `perform` is given; what others are made of as it is.
pub(crate) fn derived<E>(
    request: HostRequest<'_>,
    dtype: Option<DType>,
    rank: usize,
    world_size: usize,
    perform: impl FnOnce(HostRequest<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let element = element(dtype);
    let bytes = |elements: Range<usize>| elements.start * element..elements.end * element;
    // One block, of one rank.
    let only = |of: usize, len: usize| {
        let counts: Vec<usize> = (0..world_size).map(|rank| if rank == of { len } else { 0 }).collect();
        Layout::from_counts(&counts)
    };
    match request {
        Request::AllToAll { buffers: Buffers::InPlace(buffer), blocks } => {
            let sent = buffer.to_vec();
            perform(Request::AllToAll { buffers: Buffers::Separate(&sent, buffer), blocks })
        }
        Request::AllReduce { .. } | Request::AllGather { .. } | Request::AllToAll { .. } => perform(request),
        Request::Reduce { buffer, reduce, .. } => {
            perform(Request::AllReduce { buffers: Buffers::InPlace(buffer), reduce })
        }
        Request::ReduceScatter { buffers: Buffers::InPlace(buffer), reduce, .. } => {
            perform(Request::AllReduce { buffers: Buffers::InPlace(buffer), reduce })
        }
        Request::ReduceScatter { buffers: Buffers::Separate(input, output), blocks, reduce } => {
            let mut whole = Scratch::new(input.len());
            let buffers = Buffers::Separate(input, whole.bytes_mut());
            perform(Request::AllReduce { buffers, reduce })?;
            copy_slice(output, &whole.bytes()[bytes(blocks.block(rank))]);
            Ok(())
        }
        Request::Broadcast { buffer, root } => {
            let blocks = only(root, buffer.len() / element);
            perform(Request::AllGather { buffers: Buffers::InPlace(buffer), blocks })
        }
        Request::Gather { input, output, blocks, root } => {
            let output = output.unwrap_or_default();
            let Some(input) = input else {
                let own = output[bytes(blocks.block(rank))].to_vec();
                let send = only(root, own.len() / element);
                let blocks = BlockExchange::Uneven { send, recv: blocks };
                return perform(Request::AllToAll { buffers: Buffers::Separate(&own, output), blocks });
            };
            let send = only(root, input.len() / element);
            let recv = if rank == root { blocks } else { only(root, 0) };
            let blocks = BlockExchange::Uneven { send, recv };
            perform(Request::AllToAll { buffers: Buffers::Separate(input, output), blocks })
        }
        Request::Scatter { input, output, blocks, root } => {
            let mut unused = Vec::new();
            let output = output.unwrap_or_else(|| {
                unused.resize(bytes(blocks.block(rank)).len(), 0);
                &mut unused
            });
            let recv = only(root, output.len() / element);
            let send = if rank == root { blocks } else { only(root, 0) };
            let blocks = BlockExchange::Uneven { send, recv };
            let buffers = Buffers::Separate(input.unwrap_or_default(), output);
            perform(Request::AllToAll { buffers, blocks })
        }
        Request::Scan { mut buffers, reduce } => {
            let buffer = buffers.whole();
            let (len, count) = (buffer.len(), buffer.len() / element);
            let mut all = Scratch::new(len * world_size);
            let (buffers, blocks) =
                (Buffers::Separate(&*buffer, all.bytes_mut()), Layout::even(world_size, count * world_size));
            perform(Request::AllGather { buffers, blocks })?;
            fold_scan(buffer, all.bytes(), reduce, dtype, rank);
            Ok(())
        }
        Request::Barrier => {
            let (buffers, blocks) = (Buffers::InPlace(&mut [][..]), Layout::even(world_size, 0));
            perform(Request::AllGather { buffers, blocks })
        }
    }
}

/// The result of a scan on rank `rank`, of all inputs one after the other.
pub(crate) fn fold_scan(
    output: &mut [u8],
    inputs: &[u8],
    reduce: ReduceOp,
    dtype: Option<DType>,
    rank: usize,
) {
    let len = output.len();
    let sources: Vec<_> = (0..=rank).map(|rank| Some(&inputs[rank * len..(rank + 1) * len])).collect();
    let kernel = dtype.and_then(|dtype| Kernel::new(reduce, dtype));
    kernel.expect("a call's values can be combined").fold(output, &sources, rank + 1);
}
