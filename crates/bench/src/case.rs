//! A case, one operation at one size: its buffers, how to perform it, and what must come out.

use crate::data::{Data, Value};
use crate::op::{Op, Place};
use crate::subject::Subject;
use crate::timing::Work;
use phalanx::{ProcessGroup, ReduceOp, RegisteredBuffer, Result};
use std::ops::{Deref, DerefMut, Range};

/// The rank that is special where one is.
const ROOT: usize = 0;

/// A case, ready to be performed again and again.
pub(crate) struct Case<'g, T> {
    op: Op,
    place: Place,
    group: &'g ProcessGroup,
    reduce: ReduceOp,
    /// Read by the operation, and overwritten where it works in place.
    input: Buffer<T>,
    /// Empty for operations in place, and on ranks that get nothing. What comes back to a rank that has sent comes here: in the buffer
    /// that it has sent, it would be right from before.
    output: Buffer<T>,
    data: Data<T>,
}

impl<'g, T: Value> Case<'g, T> {
    /// `count`: elements of one rank's part, as [`Op::count`] says. Collective.
    pub(crate) fn new(
        op: Op,
        place: Place,
        reduce: ReduceOp,
        count: usize,
        group: &'g ProcessGroup,
        subject: Subject,
    ) -> Result<Self> {
        let (world_size, is_root) = (group.world_size(), group.rank() == ROOT);
        let whole = count * world_size;
        let at_root = if is_root { whole } else { 0 };
        let comes_back = if partner(group).is_some_and(|peer| group.rank() < peer) { count } else { 0 };
        let (input, output) = match op {
            Op::AllGather | Op::ReduceScatter | Op::AllToAll if place == Place::InPlace => (whole, 0),
            Op::Gather | Op::Scatter if place == Place::InPlace => (if is_root { whole } else { count }, 0),
            Op::AllReduce | Op::Broadcast | Op::Reduce | Op::Barrier => (count, 0),
            Op::SendRecv => (count, comes_back),
            Op::AllGather => (count, whole),
            Op::ReduceScatter => (whole, count),
            Op::AllToAll => (whole, whole),
            Op::Gather => (count, at_root),
            Op::Scatter => (at_root, count),
        };
        let data = Data::new(op, reduce, world_size);
        let buffer = |len| match subject {
            // All ranks make buffers of equal length.
            Subject::Registered => Ok(Buffer::Registered(group.alloc(whole)?, len)),
            _ => Ok(Buffer::plain(len)),
        };
        Ok(Self { op, place, group, reduce, input: buffer(input)?, output: buffer(output)?, data })
    }

    /// This rank's block of a buffer that is dealt out.
    fn own_block(&self, buffer: &[T]) -> Range<usize> {
        let count = buffer.len() / self.group.world_size();
        let start = self.group.rank() * count;
        start..start + count
    }
}

impl<T: Value> Work for Case<'_, T> {
    fn op(&self) -> Op {
        self.op
    }

    fn place(&self) -> Place {
        self.place
    }

    fn group(&self) -> &ProcessGroup {
        self.group
    }

    fn spoil(&mut self) {
        Data::spoil(&mut self.input);
        Data::spoil(&mut self.output);
    }

    fn touch(&mut self) {
        let contribution = match (self.op, self.place) {
            (Op::AllGather, Place::InPlace) => self.own_block(&self.input),
            (Op::Gather, Place::InPlace) if self.group.rank() == ROOT => self.own_block(&self.input),
            // What comes from the root is written over it.
            (Op::Scatter, Place::InPlace) if self.group.rank() != ROOT => 0..0,
            _ => 0..self.input.len(),
        };
        self.data.write(self.group.rank(), &mut self.input[contribution]);
    }

    fn perform(&mut self) -> Result<()> {
        let Self { op, place, group, reduce, input, output, .. } = self;
        let is_root = group.rank() == ROOT;
        match op {
            Op::ReduceScatter if *place == Place::InPlace => group.reduce_scatter_in_place(input, *reduce),
            Op::AllGather if *place == Place::InPlace => group.all_gather_in_place(input),
            Op::Gather if *place == Place::InPlace => group.gather_in_place(input, ROOT),
            Op::Scatter if *place == Place::InPlace => group.scatter_in_place(input, ROOT),
            Op::AllToAll if *place == Place::InPlace => group.all_to_all_in_place(input),
            Op::AllReduce => group.all_reduce(input, *reduce),
            Op::ReduceScatter => group.reduce_scatter(input, output, *reduce),
            Op::AllGather => group.all_gather(input, output),
            Op::Broadcast => group.broadcast(input, ROOT),
            Op::Reduce => group.reduce(input, *reduce, ROOT),
            Op::Gather => group.gather(input, is_root.then_some(&mut output[..]), ROOT),
            Op::Scatter => group.scatter(is_root.then_some(&input[..]), output, ROOT),
            Op::AllToAll => group.all_to_all(input, output),
            Op::SendRecv => ping_pong(group, input, output),
            Op::Barrier => group.barrier(),
        }
    }

    fn wrong(&self) -> u64 {
        let (rank, world_size) = (self.group.rank(), self.group.world_size());
        let result = if self.place == Place::InPlace { &self.input } else { &self.output };
        let blocks = || result.chunks((result.len() / world_size).max(1)).enumerate();
        let data = &self.data;
        match self.op {
            Op::AllReduce => data.wrong_combined(0, &self.input),
            Op::Reduce if rank == ROOT => data.wrong_combined(0, &self.input),
            Op::ReduceScatter if self.place == Place::InPlace => {
                let own = self.own_block(result);
                data.wrong_combined(own.start, &result[own])
            }
            Op::ReduceScatter => data.wrong_combined(rank * self.output.len(), &self.output),
            Op::Broadcast => data.wrong(ROOT, 0, &self.input),
            Op::Gather if rank != ROOT => 0,
            Op::AllGather | Op::Gather => blocks().map(|(from, block)| data.wrong(from, 0, block)).sum(),
            Op::AllToAll => blocks().map(|(from, block)| data.wrong(from, rank * block.len(), block)).sum(),
            Op::Scatter if self.place == Place::InPlace => {
                let own = if rank == ROOT { self.own_block(result) } else { 0..result.len() };
                data.wrong(ROOT, rank * own.len(), &result[own])
            }
            Op::Scatter => data.wrong(ROOT, rank * self.output.len(), &self.output),
            Op::SendRecv => partner(self.group).map_or(0, |peer| {
                let got = if rank < peer { &self.output } else { &self.input };
                data.wrong(rank.min(peer), 0, got)
            }),
            Op::Reduce | Op::Barrier => 0,
        }
    }
}

/// Buffers begin at a multiple of so many bytes, as those of the MPI libraries' programs do: where they begin changes what a copy takes.
const PAGE: usize = 4096;

/// Elements in memory of a rank's own, from a page's first byte on, or in memory that the group has made, of which the beginning is used.
enum Buffer<T> {
    Plain(Vec<T>, Range<usize>),
    Registered(RegisteredBuffer<T>, usize),
}

impl<T: Value> Buffer<T> {
    fn plain(len: usize) -> Self {
        let memory = vec![T::of(0); len + PAGE / size_of::<T>()];
        let start = memory.as_ptr().align_offset(PAGE);
        Self::Plain(memory, start..start + len)
    }
}

impl<T: Value> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Plain(memory, elements) => &memory[elements.clone()],
            Self::Registered(elements, len) => &elements[..*len],
        }
    }
}

impl<T: Value> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Plain(memory, elements) => &mut memory[elements.clone()],
            Self::Registered(elements, len) => &mut elements[..*len],
        }
    }
}

/// The neighbour with whom a rank plays [`ping_pong`], unless it is the last of an odd number.
fn partner(group: &ProcessGroup) -> Option<usize> {
    Some(group.rank() ^ 1).filter(|&peer| peer < group.world_size())
}

/// Even ranks send to their neighbours and get it back.
fn ping_pong<T: Value>(group: &ProcessGroup, buffer: &mut [T], back: &mut [T]) -> Result<()> {
    match partner(group) {
        None => Ok(()),
        Some(peer) if group.rank() < peer => {
            group.send(buffer, peer, 0)?;
            group.recv(back, peer, 0)
        }
        Some(peer) => {
            group.recv(buffer, peer, 0)?;
            group.send(buffer, peer, 0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timing::checked;
    use clap::ValueEnum;
    use phalanx::threads;
    use std::thread;

    const BUFFERS: [Subject; 2] = [Subject::Plain, Subject::Registered];

    /// Runs `body` on three ranks, one of which has no partner to send to.
    fn on_three_ranks(body: impl Fn(&ProcessGroup) + Sync) {
        thread::scope(|scope| {
            for group in threads(3) {
                let body = &body;
                scope.spawn(move || body(&group));
            }
        });
    }

    #[test]
    fn plain_buffers_begin_at_pages() {
        for len in [0, 1, 5000] {
            let buffer = Buffer::<f32>::plain(len);
            assert_eq!((buffer.as_ptr().addr() % PAGE, buffer.len()), (0, len));
        }
    }

    #[test]
    fn every_operation_passes_its_own_check() {
        on_three_ranks(|group| {
            for (&op, &reduce) in Op::value_variants().iter().zip(ReduceOp::ALL.iter().cycle()) {
                for (&place, subject) in op.places().iter().flat_map(|place| BUFFERS.map(|of| (place, of))) {
                    let mut case = Case::<i16>::new(op, place, reduce, 1250, group, subject).unwrap();
                    case.touch();
                    case.perform().unwrap();
                    assert_eq!(case.wrong(), 0, "{op} {place:?} {subject:?} on rank {}", group.rank());
                }
            }
        });
    }

    /// What does nothing when it is told to perform.
    struct Lazy<'g>(Case<'g, f32>, bool);

    impl Work for Lazy<'_> {
        fn op(&self) -> Op {
            self.0.op()
        }
        fn place(&self) -> Place {
            self.0.place()
        }
        fn group(&self) -> &ProcessGroup {
            self.0.group()
        }
        fn spoil(&mut self) {
            self.0.spoil();
        }
        fn touch(&mut self) {
            self.0.touch();
        }
        fn perform(&mut self) -> Result<()> {
            if self.1 { Ok(()) } else { self.0.perform() }
        }
        fn wrong(&self) -> u64 {
            self.0.wrong()
        }
    }

    #[test]
    fn an_operation_that_stops_working_does_not_pass_with_its_earlier_result() {
        on_three_ranks(|group| {
            for &op in Op::value_variants().iter().filter(|op| **op != Op::Barrier) {
                for &place in op.places() {
                    let case = Case::new(op, place, ReduceOp::Sum, 1250, group, Subject::Plain).unwrap();
                    let mut case = Lazy(case, false);
                    assert_eq!(checked(&mut case).unwrap(), 0, "{op} {place:?}");
                    case.1 = true;
                    assert!(checked(&mut case).unwrap() > 0, "{op} {place:?}");
                }
            }
        });
    }

    #[test]
    fn what_was_not_performed_does_not_pass() {
        on_three_ranks(|group| {
            let rank = group.rank();
            for &op in Op::value_variants() {
                for &place in op.places() {
                    let idle = match (op, place) {
                        (Op::Barrier, _) => true,
                        (Op::Broadcast, _) | (Op::Scatter, Place::InPlace) => rank == ROOT,
                        (Op::Reduce | Op::Gather, _) => rank != ROOT,
                        (Op::SendRecv, _) => rank == 2,
                        _ => false,
                    };
                    let (sum, plain) = (ReduceOp::Sum, Subject::Plain);
                    let mut case = Case::<f32>::new(op, place, sum, 1250, group, plain).unwrap();
                    case.touch();
                    assert_eq!(case.wrong() == 0, idle, "{op} {place:?} on rank {rank}");
                }
            }
        });
    }
}
