//! One operation at one size: its buffers, how to perform it, and what must come out.

use crate::op::Op;
use phalanx::{Error, ProcessGroup, ReduceOp, Result};

/// Contributions repeat after so many elements.
const PERIOD: usize = 128;

/// A case, ready to be performed again and again.
pub(crate) struct Case<'g> {
    pub(crate) op: Op,
    group: &'g ProcessGroup,
    /// Read by the operation, and overwritten where it works in place.
    input: Vec<f32>,
    /// Empty for operations in place.
    output: Vec<f32>,
    /// What this rank contributes, as far as it does not repeat.
    pattern: [f32; PERIOD],
}

impl<'g> Case<'g> {
    /// `None` where `bytes` are too few to be dealt out.
    pub(crate) fn new(op: Op, bytes: usize, group: &'g ProcessGroup) -> Option<Self> {
        let (len, world_size) = (bytes / size_of::<f32>(), group.world_size());
        let block = len / world_size;
        let (input, output) = match op {
            Op::AllReduce | Op::Broadcast | Op::SendRecv => (len, 0),
            Op::AllGather => (block, block * world_size),
            Op::ReduceScatter => (block * world_size, block),
            Op::AllToAll => (block * world_size, block * world_size),
            Op::Barrier => (0, 0),
        };
        let fits = op == Op::Barrier || input > 0;
        let pattern = std::array::from_fn(|i| contribution(group.rank(), i));
        fits.then(|| Self { op, group, input: vec![0.0; input], output: vec![0.0; output], pattern })
    }

    /// Writes this rank's contribution, as a program would between two operations.
    pub(crate) fn touch(&mut self) {
        for chunk in self.input.chunks_mut(PERIOD) {
            chunk.copy_from_slice(&self.pattern[..chunk.len()]);
        }
    }

    pub(crate) fn perform(&mut self) -> Result<()> {
        let Self { op, group, input, output, .. } = self;
        match op {
            Op::AllReduce => group.all_reduce(input, ReduceOp::Sum),
            Op::Broadcast => group.broadcast(input, 0),
            Op::AllGather => group.all_gather(input, output),
            Op::ReduceScatter => group.reduce_scatter(input, output, ReduceOp::Sum),
            Op::AllToAll => group.all_to_all(input, output),
            Op::SendRecv => ping_pong(group, input),
            Op::Barrier => group.barrier(),
        }
    }

    /// Whether the last [`perform`](Self::perform) after a [`touch`](Self::touch) came out right.
    ///
    /// # Errors
    /// `Internal`, with the first wrong element.
    pub(crate) fn check(&self) -> Result<()> {
        let (rank, world_size) = (self.group.rank(), self.group.world_size());
        let block = self.input.len() / world_size;
        let sum = |i| (0..world_size).map(|r| contribution(r, i)).sum();
        let wrong = match self.op {
            Op::AllReduce => first_wrong(&self.input, sum),
            Op::Broadcast => first_wrong(&self.input, |i| contribution(0, i)),
            Op::AllGather => {
                first_wrong(&self.output, |i| contribution(i / self.input.len(), i % self.input.len()))
            }
            Op::ReduceScatter => first_wrong(&self.output, |i| sum(rank * block + i)),
            Op::AllToAll => first_wrong(&self.output, |i| contribution(i / block, rank * block + i % block)),
            Op::SendRecv if rank ^ 1 < world_size => first_wrong(&self.input, |i| contribution(rank & !1, i)),
            Op::SendRecv | Op::Barrier => None,
        };
        wrong.map_or(Ok(()), |i| {
            Err(Error::Internal { what: format!("rank {rank}, {}: wrong at element {i}", self.op.name()) })
        })
    }
}

/// What `rank` contributes at index `i`. Small whole numbers: sums are exact in any order.
fn contribution(rank: usize, i: usize) -> f32 {
    (i % PERIOD + rank) as f32
}

fn first_wrong(buffer: &[f32], expected: impl Fn(usize) -> f32) -> Option<usize> {
    buffer.iter().enumerate().position(|(i, &value)| value != expected(i))
}

/// Even ranks send to their neighbours and get it back.
fn ping_pong(group: &ProcessGroup, buffer: &mut [f32]) -> Result<()> {
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

    const OPS: [Op; 7] = [
        Op::AllReduce,
        Op::Broadcast,
        Op::AllGather,
        Op::ReduceScatter,
        Op::AllToAll,
        Op::SendRecv,
        Op::Barrier,
    ];

    #[test]
    fn every_operation_passes_its_own_check() {
        on_three_ranks(|group| {
            for op in OPS {
                let mut case = Case::new(op, 5000, group).unwrap();
                case.touch();
                case.perform().unwrap();
                case.check().unwrap();
            }
        });
    }

    #[test]
    fn what_was_not_performed_does_not_pass() {
        on_three_ranks(|group| {
            for op in OPS {
                let idle = op == Op::Barrier
                    || (op == Op::Broadcast && group.rank() == 0)
                    || (op == Op::SendRecv && group.rank() != 1);
                let mut case = Case::new(op, 5000, group).unwrap();
                case.touch();
                assert_eq!(case.check().is_ok(), idle, "{op:?} on rank {}", group.rank());
            }
        });
    }

    #[test]
    fn a_buffer_too_small_to_deal_out_is_no_case() {
        on_three_ranks(|group| {
            assert!(Case::new(Op::AllGather, 8, group).is_none());
            assert!(Case::new(Op::AllReduce, 8, group).is_some());
        });
    }
}
