//! What the host does with a chunk that has come to it.

use phalanx_core::{Element, Error, OpKind, ReduceOp, Result};
use phalanx_group::ProcessGroup;

/// What is to be done with a chunk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task {
    pub(crate) op: OpKind,
    pub(crate) reduce: Option<ReduceOp>,
    /// The root, or the other end of a message.
    pub(crate) peer: usize,
}

/// Performs an operation of the group on one chunk: on this rank's input and output in the host's memory. What is done in place is done in the output.
pub(crate) type Perform = fn(&ProcessGroup, Task, input: &[u8], output: &mut [u8]) -> Result<()>;

/// See [`Perform`].
pub(crate) fn perform<T: Element>(
    group: &ProcessGroup,
    task: Task,
    input: &[u8],
    output: &mut [u8],
) -> Result<()> {
    let (input, output): (&[T], &mut [T]) = (bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
    let Task { op, reduce, peer } = task;
    let is_root = group.rank() == peer;
    match (op, reduce) {
        (OpKind::AllReduce, Some(op)) => group.all_reduce(output, op),
        (OpKind::Reduce, Some(op)) => group.reduce(output, op, peer),
        (OpKind::Broadcast, _) => group.broadcast(output, peer),
        (OpKind::AllGather, _) => group.all_gather(input, output),
        (OpKind::ReduceScatter, Some(op)) => group.reduce_scatter(input, output, op),
        (OpKind::AllToAll, _) => group.all_to_all(input, output),
        (OpKind::Gather, _) => group.gather(input, is_root.then_some(output), peer),
        (OpKind::Scatter, _) => group.scatter(is_root.then_some(input), output, peer),
        (OpKind::Send, _) => group.send(input, peer, 0),
        (OpKind::Recv, _) => group.recv(output, peer, 0),
        (op, _) => Err(Error::Internal { what: format!("a {op} over the host") }),
    }
}
