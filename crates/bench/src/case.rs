//! One operation at one size: its buffers, how to perform it, and what must come out.

use crate::data::{Data, Value};
use crate::op::Op;
use phalanx::{ProcessGroup, ReduceOp, Result};

/// The rank that is special where one is.
const ROOT: usize = 0;

/// A case, ready to be performed again and again.
pub(crate) struct Case<'g, T> {
    pub(crate) op: Op,
    pub(crate) group: &'g ProcessGroup,
    reduce: ReduceOp,
    /// Read by the operation, and overwritten where it works in place.
    input: Vec<T>,
    /// Empty for operations in place, and on ranks that get nothing.
    output: Vec<T>,
    data: Data<T>,
}

impl<'g, T: Value> Case<'g, T> {
    /// `count`: elements of one rank's part, as [`Op::count`] says.
    pub(crate) fn new(op: Op, reduce: ReduceOp, count: usize, group: &'g ProcessGroup) -> Self {
        let (world_size, is_root) = (group.world_size(), group.rank() == ROOT);
        let whole = count * world_size;
        let at_root = if is_root { whole } else { 0 };
        let (input, output) = match op {
            Op::AllReduce | Op::Broadcast | Op::Reduce | Op::SendRecv | Op::Barrier => (count, 0),
            Op::AllGather => (count, whole),
            Op::ReduceScatter => (whole, count),
            Op::AllToAll => (whole, whole),
            Op::Gather => (count, at_root),
            Op::Scatter => (at_root, count),
        };
        let data = Data::new(op, reduce, world_size);
        Self { op, group, reduce, input: vec![T::of(0); input], output: vec![T::of(0); output], data }
    }

    /// Writes this rank's contribution, as a program would between two operations.
    pub(crate) fn touch(&mut self) {
        self.data.write(self.group.rank(), &mut self.input);
    }

    pub(crate) fn perform(&mut self) -> Result<()> {
        let Self { op, group, reduce, input, output, .. } = self;
        let is_root = group.rank() == ROOT;
        match op {
            Op::AllReduce => group.all_reduce(input, *reduce),
            Op::ReduceScatter => group.reduce_scatter(input, output, *reduce),
            Op::AllGather => group.all_gather(input, output),
            Op::Broadcast => group.broadcast(input, ROOT),
            Op::Reduce => group.reduce(input, *reduce, ROOT),
            Op::Gather => group.gather(input, is_root.then_some(output.as_mut_slice()), ROOT),
            Op::Scatter => group.scatter(is_root.then_some(input.as_slice()), output, ROOT),
            Op::AllToAll => group.all_to_all(input, output),
            Op::SendRecv => ping_pong(group, input),
            Op::Barrier => group.barrier(),
        }
    }

    /// How many elements of this rank the last [`perform`](Self::perform) after a [`touch`](Self::touch) got wrong.
    pub(crate) fn wrong(&self) -> u64 {
        let (rank, world_size) = (self.group.rank(), self.group.world_size());
        let blocks = || self.output.chunks((self.output.len() / world_size).max(1)).enumerate();
        let data = &self.data;
        match self.op {
            Op::AllReduce => data.wrong_combined(0, &self.input),
            Op::Reduce if rank == ROOT => data.wrong_combined(0, &self.input),
            Op::ReduceScatter => data.wrong_combined(rank * self.output.len(), &self.output),
            Op::Broadcast => data.wrong(ROOT, 0, &self.input),
            Op::AllGather | Op::Gather => blocks().map(|(from, block)| data.wrong(from, 0, block)).sum(),
            Op::AllToAll => blocks().map(|(from, block)| data.wrong(from, rank * block.len(), block)).sum(),
            Op::Scatter => data.wrong(ROOT, rank * self.output.len(), &self.output),
            Op::SendRecv if rank ^ 1 < world_size => data.wrong(rank & !1, 0, &self.input),
            Op::Reduce | Op::SendRecv | Op::Barrier => 0,
        }
    }
}

/// Even ranks send to their neighbours and get it back.
fn ping_pong<T: Value>(group: &ProcessGroup, buffer: &mut [T]) -> Result<()> {
    let (rank, peer) = (group.rank(), group.rank() ^ 1);
    if peer >= group.world_size() {
        return Ok(());
    }
    if rank < peer {
        group.send(buffer, peer, 0)?;
        group.recv(buffer, peer, 0)
    } else {
        group.recv(buffer, peer, 0)?;
        group.send(buffer, peer, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use phalanx::SimulatedBackend;
    use std::thread;

    /// Runs `body` on three ranks, one of which has no partner to send to.
    fn on_three_ranks(body: impl Fn(&ProcessGroup) + Sync) {
        thread::scope(|scope| {
            for group in SimulatedBackend::create_group(3) {
                let body = &body;
                scope.spawn(move || body(&group));
            }
        });
    }

    #[test]
    fn every_operation_passes_its_own_check() {
        on_three_ranks(|group| {
            for (&op, reduce) in Op::value_variants().iter().zip(ReduceOp::ALL.iter().cycle()) {
                let mut case = Case::<i16>::new(op, *reduce, 1250, group);
                case.touch();
                case.perform().unwrap();
                assert_eq!(case.wrong(), 0, "{op} on rank {}", group.rank());
            }
        });
    }

    #[test]
    fn what_was_not_performed_does_not_pass() {
        on_three_ranks(|group| {
            let rank = group.rank();
            for &op in Op::value_variants() {
                let idle = match op {
                    Op::Barrier => true,
                    Op::Broadcast => rank == ROOT,
                    Op::Reduce | Op::Gather => rank != ROOT,
                    Op::SendRecv => rank != 1,
                    _ => false,
                };
                let mut case = Case::<f32>::new(op, ReduceOp::Sum, 1250, group);
                case.touch();
                assert_eq!(case.wrong() == 0, idle, "{op} on rank {rank}");
            }
        });
    }
}
