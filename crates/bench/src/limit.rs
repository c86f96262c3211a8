//! The limit of an all_reduce in shared memory: what reading and writing alone takes.

use crate::data::Data;
use crate::op::Op;
use crate::timing::Work;
use phalanx::{ProcessGroup, ReduceOp, Result};

/// Elements that are added up at a time where there are more than two blocks: they stay in the nearest cache.
const SEGMENT: usize = 1024;

/// The work that no all_reduce in place can do without: each rank reads its share of the buffer, n / P elements, from P places,
/// and writes the sums to P places. Here these are in memory of its own, without a word between ranks.
pub(crate) struct Limit<'g> {
    group: &'g ProcessGroup,
    /// P blocks; some elements at the end may belong to none.
    buffer: Vec<f32>,
    data: Data<f32>,
}

impl<'g> Limit<'g> {
    /// `count`: elements of the whole buffer.
    pub(crate) fn new(count: usize, group: &'g ProcessGroup) -> Self {
        let data = Data::new(Op::AllReduce, ReduceOp::Sum, group.world_size());
        Self { group, buffer: vec![0.0; count], data }
    }
}

impl Work for Limit<'_> {
    fn op(&self) -> Op {
        Op::AllReduce
    }

    fn group(&self) -> &ProcessGroup {
        self.group
    }

    /// Spoils nothing: all of the buffer is this rank's contribution, and no result.
    fn spoil(&mut self) {}

    fn touch(&mut self) {
        self.data.write(self.group.rank(), &mut self.buffer);
    }

    fn perform(&mut self) -> Result<()> {
        add_up(&mut self.buffer, self.group.world_size());
        Ok(())
    }

    /// Blocks that differ from the first, in elements.
    fn wrong(&self) -> u64 {
        let len = self.buffer.len() / self.group.world_size();
        let mut blocks = self.buffer.chunks_exact(len.max(1)).take(self.group.world_size());
        let first = blocks.next().unwrap_or_default();
        blocks.map(|block| block.iter().zip(first).filter(|(a, b)| a != b).count() as u64).sum()
    }
}

/// Replaces each of `blocks` equal blocks by the sum of all.
fn add_up(buffer: &mut [f32], blocks: usize) {
    let len = buffer.len() / blocks;
    if blocks == 2 {
        let (a, b) = buffer.split_at_mut(len);
        for (a, b) in a.iter_mut().zip(b) {
            let sum = *a + *b;
            (*a, *b) = (sum, sum);
        }
        return;
    }
    let mut sums = [0.0; SEGMENT];
    for start in (0..len).step_by(SEGMENT) {
        let sums = &mut sums[..SEGMENT.min(len - start)];
        sums.fill(0.0);
        let segment = |block| block * len + start..block * len + start + sums.len();
        let segments: Vec<_> = (0..blocks).map(segment).collect();
        for segment in &segments {
            sums.iter_mut().zip(&buffer[segment.clone()]).for_each(|(sum, value)| *sum += value);
        }
        for segment in segments {
            buffer[segment].copy_from_slice(sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_becomes_the_sum() {
        for (blocks, len) in [(2, 1), (2, 5000), (3, SEGMENT), (5, 2 * SEGMENT + 7)] {
            let mut buffer: Vec<f32> = (0..blocks * len).map(|i| (i % 251) as f32).collect();
            let sums: Vec<f32> =
                (0..len).map(|i| (0..blocks).map(|block| buffer[block * len + i]).sum()).collect();
            add_up(&mut buffer, blocks);
            for block in buffer.chunks(len) {
                assert_eq!(block, sums);
            }
        }
    }
}
