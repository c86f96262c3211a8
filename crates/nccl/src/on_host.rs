//! The host's work on a chunk of device memory that has come to it.

use crate::action::Action;
use phalanx_core::{Element, Layout, Result};
use phalanx_group::{BlockExchange, Buffers, ProcessGroup, Request};

/// Performs an operation of the group on one chunk: on this rank's input and output in the host's memory. What is done in place is done in the output.
pub(crate) type Perform = fn(&ProcessGroup, &Action, input: &[u8], output: &mut [u8]) -> Result<()>;

/// See [`Perform`].
pub(crate) fn perform<T: Element>(
    group: &ProcessGroup,
    action: &Action,
    input: &[u8],
    output: &mut [u8],
) -> Result<()> {
    let (input, output): (&[T], &mut [T]) = (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
    let request = match action {
        Action::Collective(request) => request,
        Action::Send { dst, .. } => return group.send(input, *dst, 0),
        Action::Recv { src, .. } => return group.recv(output, *src, 0),
    };
    let (rank, world_size) = (group.rank(), group.world_size());
    // Of a chunk, every block has as many elements.
    let even = |len: usize| Layout::even(world_size, len);
    group.request(match *request {
        Request::AllReduce { reduce, .. } => Request::AllReduce { buffers: Buffers::InPlace(output), reduce },
        Request::Reduce { reduce, root, .. } => Request::Reduce { buffer: output, reduce, root },
        Request::Broadcast { root, .. } => Request::Broadcast { buffer: output, root },
        Request::AllGather { .. } => {
            let blocks = even(output.len());
            Request::AllGather { buffers: Buffers::Separate(input, output), blocks }
        }
        Request::ReduceScatter { reduce, .. } => {
            let blocks = even(input.len());
            Request::ReduceScatter { buffers: Buffers::Separate(input, output), blocks, reduce }
        }
        Request::Gather { root, .. } => {
            let blocks = even(input.len() * world_size);
            Request::Gather { input: Some(input), output: (rank == root).then_some(output), blocks, root }
        }
        Request::Scatter { root, .. } => {
            let blocks = even(output.len() * world_size);
            Request::Scatter { input: (rank == root).then_some(input), output: Some(output), blocks, root }
        }
        Request::AllToAll { .. } => {
            let blocks = BlockExchange::Even { count: input.len() / world_size };
            Request::AllToAll { buffers: Buffers::Separate(input, output), blocks }
        }
        Request::Scan { reduce, .. } => Request::Scan { buffers: Buffers::InPlace(output), reduce },
        Request::Barrier => Request::Barrier,
    })
}
