//! What ranks do until something goes wrong: operations in a random order, the same on all ranks. Each result is compared with the
//! oracle's.

use half::bf16;
use phalanx::{Element, Error, ProcessGroup, ReduceOp};
use phalanx_testkit::oracle::{self, Random, Sample};
use std::any::Any;

/// Sizes of operations: from 4 bytes to 4 MiB.
const SIZES: usize = 21;
/// After so many elements a buffer repeats itself: the oracle is slow, and a rank should spend its time in calls. A prime, so that
/// no chunk, slot or block looks like another.
const PERIOD: usize = 1009;

/// What a rank can call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    AllReduce,
    AllReduceAllocated,
    AllGather,
    AllGatherV,
    AllToAll,
    Async,
    Barrier,
    Broadcast,
    FromAny,
    Gather,
    Message,
    Reduce,
    ReduceScatter,
    Ring,
    Scatter,
    Split,
}

impl Op {
    pub(crate) const ALL: [Self; 16] = [
        Self::AllReduce,
        Self::AllReduceAllocated,
        Self::AllGather,
        Self::AllGatherV,
        Self::AllToAll,
        Self::Async,
        Self::Barrier,
        Self::Broadcast,
        Self::FromAny,
        Self::Gather,
        Self::Message,
        Self::Reduce,
        Self::ReduceScatter,
        Self::Ring,
        Self::Scatter,
        Self::Split,
    ];
}

/// Why a rank does not go on.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// An operation said so.
    Failed(Error),
    /// An operation said it was done, and its result is not what it must be.
    Wrong(String),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The operations of one rank.
pub(crate) struct Script<'a> {
    order: Random,
    /// Called while operations are in flight.
    meanwhile: &'a dyn Fn(),
    /// The latest subgroup and registered buffer: they live until the next, so that dropping them meets other operations.
    part: Option<ProcessGroup>,
    buffer: Option<Box<dyn Any>>,
}

impl<'a> Script<'a> {
    pub(crate) fn new(seed: u64, meanwhile: &'a dyn Fn()) -> Self {
        Self { order: Random::new(seed), meanwhile, part: None, buffer: None }
    }

    /// Performs the next operation, or the one that is insisted on in its place.
    pub(crate) fn step(&mut self, group: &ProcessGroup, insist: Option<Op>) -> Result<(), Trouble> {
        let drawn = Op::ALL[self.order.below(Op::ALL.len())];
        let (mut random, dtype) = (Random::new(self.order.bits()), self.order.below(5));
        let op = insist.unwrap_or(drawn);
        if op != Op::Split {
            return self.perform_as(dtype, group, op, &mut random);
        }
        // Two parts, or one without a rank.
        let (modulus, outside) = (1 + random.below(2), random.below(2 * group.world_size()));
        let color = (group.rank() != outside).then_some((group.rank() % modulus) as u32);
        let divided = group.split(color, -(group.rank() as i64)).map_err(Trouble::Failed);
        let outcome = divided.and_then(|part| {
            self.part = part;
            let Some(part) = self.part.clone() else { return Ok(()) };
            let op = Op::ALL[random.below(Op::ALL.len() - 1)]; // a split of a split teaches nothing new
            self.perform_as(dtype, &part, op, &mut random)
        });
        match outcome {
            // Which group fails first is chance; what became of the job, the group of all says next.
            Err(Trouble::Failed(error)) if !is_of(&error, group) => Ok(()),
            other => other,
        }
    }

    fn perform_as(
        &mut self,
        dtype: usize,
        group: &ProcessGroup,
        op: Op,
        random: &mut Random,
    ) -> Result<(), Trouble> {
        match dtype {
            0 => self.perform::<f32>(group, op, random),
            1 => self.perform::<f64>(group, op, random),
            2 => self.perform::<bf16>(group, op, random),
            3 => self.perform::<u8>(group, op, random),
            _ => self.perform::<i64>(group, op, random),
        }
    }

    fn perform<T: Sample>(
        &mut self,
        group: &ProcessGroup,
        op: Op,
        random: &mut Random,
    ) -> Result<(), Trouble> {
        let (rank, ranks, root) = (group.rank(), group.world_size(), random.below(group.world_size()));
        let len = ((4 << random.below(SIZES)) / size_of::<T>()).max(1);
        let block = (len / ranks).max(1);
        let operators: Vec<_> = oracle::operators(T::DTYPE).collect();
        let reduce = operators[random.below(operators.len())];
        let mut inputs = |len| Inputs::<T>::new(ranks, len, reduce, random);
        match op {
            Op::AllReduce => {
                let inputs = inputs(len);
                let mut buffer = inputs.rows[rank].clone();
                group.all_reduce(&mut buffer, reduce)?;
                check(op, &buffer, &inputs.reduced(reduce))
            }
            Op::AllReduceAllocated => {
                let inputs = inputs(len);
                let mut buffer = group.alloc::<T>(len)?;
                buffer.copy_from_slice(&inputs.rows[rank]);
                group.all_reduce(&mut buffer, reduce)?;
                check(op, &buffer, &inputs.reduced(reduce))?;
                self.buffer = Some(Box::new(buffer));
                Ok(())
            }
            Op::AllGather => {
                let inputs = inputs(block);
                let mut all = vec![T::zeroed(); block * ranks];
                group.all_gather(&inputs.rows[rank], &mut all)?;
                check(op, &all, &oracle::gather(&inputs.rows))
            }
            Op::AllGatherV => {
                let counts: Vec<_> = (0..ranks).map(|r| block * r / ranks).collect();
                let mut inputs = inputs(block);
                inputs.rows.iter_mut().zip(&counts).for_each(|(input, &count)| input.truncate(count));
                let mut all = vec![T::zeroed(); counts.iter().sum()];
                group.all_gather_v(&inputs.rows[rank], &mut all, &counts)?;
                check(op, &all, &oracle::gather(&inputs.rows))
            }
            Op::AllToAll => {
                let inputs = inputs(block * ranks);
                let mut received = vec![T::zeroed(); block * ranks];
                group.all_to_all(&inputs.rows[rank], &mut received)?;
                check(
                    op,
                    &received,
                    &oracle::all_to_all(&inputs.rows, &vec![vec![block; ranks]; ranks])[rank],
                )
            }
            Op::Async => {
                let (ours, theirs) = (inputs(len), inputs(block));
                let reducing = group.all_reduce_async(ours.rows[rank].clone(), reduce)?;
                let casting = group.broadcast_async(theirs.rows[rank].clone(), root)?;
                (self.meanwhile)();
                check(op, &casting.wait()?, &theirs.rows[root])?;
                check(op, &reducing.wait()?, &ours.reduced(reduce))
            }
            Op::Barrier => Ok(group.barrier()?),
            Op::Broadcast => {
                let inputs = inputs(len);
                let mut buffer = inputs.rows[rank].clone();
                group.broadcast(&mut buffer, root)?;
                check(op, &buffer, &inputs.rows[root])
            }
            Op::Gather => {
                let inputs = inputs(block);
                let mut all = vec![T::zeroed(); block * ranks];
                group.gather(&inputs.rows[rank], (rank == root).then_some(&mut all[..]), root)?;
                if rank == root { check(op, &all, &oracle::gather(&inputs.rows)) } else { Ok(()) }
            }
            Op::FromAny | Op::Message | Op::Ring if ranks == 1 => Ok(()),
            Op::Message => {
                let (message, dst) = (inputs(len).rows.swap_remove(root), (root + 1) % ranks);
                if rank == root {
                    group.send(&message, dst, 7)?;
                } else if rank == dst {
                    check(op, &group.recv_async(vec![T::zeroed(); len], root, 7)?.wait()?, &message)?;
                }
                Ok(())
            }
            Op::FromAny => {
                let inputs = inputs(len);
                // Each call has its own tag: a message of a rank that is ahead must not be taken for one that is late.
                let tag = random.bits();
                if rank != root {
                    return Ok(group.send(&inputs.rows[rank], root, tag)?);
                }
                let mut senders = Vec::new();
                for _ in 1..ranks {
                    let mut received = vec![T::zeroed(); len];
                    senders.push(group.recv_any(&mut received, tag)?);
                    check(op, &received, &inputs.rows[senders[senders.len() - 1]])?;
                }
                senders.sort_unstable();
                if senders.iter().copied().eq((0..ranks).filter(|&r| r != root)) {
                    return Ok(());
                }
                Err(Trouble::Wrong(format!("{op:?}: messages of ranks {senders:?} came to rank {root}")))
            }
            Op::Reduce => {
                let inputs = inputs(len);
                let mut buffer = inputs.rows[rank].clone();
                group.reduce(&mut buffer, reduce, root)?;
                if rank == root { check(op, &buffer, &inputs.reduced(reduce)) } else { Ok(()) }
            }
            Op::ReduceScatter => {
                let inputs = inputs(block * ranks);
                let mut own = vec![T::zeroed(); block];
                group.reduce_scatter(&inputs.rows[rank], &mut own, reduce)?;
                check(op, &own, &inputs.reduced(reduce)[rank * block..][..block])
            }
            Op::Ring => {
                let inputs = inputs(len);
                let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
                let mut received = vec![T::zeroed(); len];
                let sending = group.send_async(inputs.rows[rank].clone(), next, 8)?;
                (self.meanwhile)();
                group.recv(&mut received, previous, 8)?;
                check(op, &received, &inputs.rows[previous])?;
                check(op, &sending.wait()?, &inputs.rows[rank])
            }
            Op::Scatter => {
                let all = inputs(block * ranks).rows.swap_remove(root);
                let mut own = vec![T::zeroed(); block];
                group.scatter((rank == root).then_some(&all[..]), &mut own, root)?;
                check(op, &own, &all[rank * block..][..block])
            }
            Op::Split => unreachable!("its parts do something else"),
        }
    }
}

/// Whether it is this group that has failed.
fn is_of(error: &Error, group: &ProcessGroup) -> bool {
    match error {
        Error::PeerLost { at, .. } | Error::Timeout { at, .. } | Error::Aborted { at, .. } => {
            at.group == group.id()
        }
        _ => true,
    }
}

/// What each rank contributes.
struct Inputs<T> {
    rows: Vec<Vec<T>>,
    /// Of which the rows are made.
    periods: Vec<Vec<T>>,
}

impl<T: Sample> Inputs<T> {
    fn new(ranks: usize, len: usize, reduce: ReduceOp, random: &mut Random) -> Self {
        let periods: Vec<_> = (0..ranks).map(|_| random.exact(len.min(PERIOD), reduce)).collect();
        Self { rows: periods.iter().map(|period| repeat(period, len)).collect(), periods }
    }

    fn reduced(&self, reduce: ReduceOp) -> Vec<T> {
        repeat(&oracle::reduce(&self.periods, reduce), self.rows[0].len())
    }
}

fn repeat<T: Element>(period: &[T], len: usize) -> Vec<T> {
    let mut row = period.repeat(len.div_ceil(period.len()));
    row.truncate(len);
    row
}

fn check<T: Element>(op: Op, found: &[T], expected: &[T]) -> Result<(), Trouble> {
    if bytemuck::cast_slice::<T, u8>(found) == bytemuck::cast_slice::<T, u8>(expected) {
        return Ok(());
    }
    let differs = |(a, b): (&T, &T)| bytemuck::bytes_of(a) != bytemuck::bytes_of(b);
    let (at, of) = (found.iter().zip(expected).position(differs), expected.len());
    let (is, must_be) = (at.map(|i| found[i]), at.map(|i| expected[i]));
    Err(Trouble::Wrong(format!(
        "{op:?} of {of} x {}, from element {at:?} on: {is:?}, not {must_be:?}",
        T::DTYPE
    )))
}
