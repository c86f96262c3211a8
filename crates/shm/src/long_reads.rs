//! How a rank writes what it takes where that is longer than the caches: into them or past them.
//!
//! A store into the caches reads its line from memory first, only to overwrite it, and pushes out another one. Past them neither happens, and what was written is not found in them afterwards: of more
//! than they hold it would not be anyway. Which takes less time depends on the processor, on where its cores are, and on what else is in its caches. So each rank times a few pieces either way, and takes
//! the faster one for a while.

use crate::span::Span;
use std::time::Instant;

/// Pieces at the beginning of a round, which go either way in turn and are timed.
const TIMED: usize = 16;
/// Pieces of a round.
const ROUND: usize = 256;
/// Shorter pieces go into the caches, and don't count.
const TELLING_BYTES: usize = 8 << 10;

/// What a rank knows of its copies.
#[derive(Debug, Default)]
pub(crate) struct LongReads {
    /// Pieces of this round so far.
    pieces: usize,
    /// Picoseconds that a byte took, of each piece that was timed: into the caches, and past them.
    costs: [[u64; TIMED / 2]; 2],
    /// Whether it is faster past them.
    past_caches: bool,
}

impl LongReads {
    /// Copies a piece of something long from shared memory: past the caches, or by `copy`, which copies into them. If this rank `claims` what it reads, its lines are its own afterwards either way.
    pub(crate) fn copy(&mut self, to: Span, from: Span, claims: bool, copy: impl FnOnce()) {
        if to.len() < TELLING_BYTES {
            return copy();
        }
        let timed = self.next();
        let begun = timed.map(|_| Instant::now());
        if timed.map_or(self.past_caches, |(past, _)| past == 1) {
            if claims {
                from.claim();
            }
            to.stream_from(from);
        } else {
            copy();
        }
        if let (Some(timed), Some(begun)) = (timed, begun) {
            self.took(timed, begun.elapsed().as_nanos() as u64 * 1000 / to.len() as u64);
        }
    }

    /// Where the time of the next piece belongs in `costs`, if it is timed.
    fn next(&mut self) -> Option<(usize, usize)> {
        let piece = self.pieces;
        self.pieces = (piece + 1) % ROUND;
        (piece < TIMED).then_some((piece % 2, piece / 2))
    }

    /// A piece took so long.
    fn took(&mut self, (way, piece): (usize, usize), cost: u64) {
        self.costs[way][piece] = cost;
        if (way, piece) == (1, TIMED / 2 - 1) {
            // The median, so that pieces don't count in which the rank was interrupted.
            let [into, past] = self.costs.map(|mut costs| *costs.select_nth_unstable(TIMED / 4).1);
            self.past_caches = past < into;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round of pieces that take so long into the caches and past them: how many go past.
    fn round(reads: &mut LongReads, into: u64, past: u64) -> usize {
        let past_caches = (0..ROUND).filter(|_| match reads.next() {
            Some((way, piece)) => {
                reads.took((way, piece), [into, past][way]);
                way == 1
            }
            None => reads.past_caches,
        });
        past_caches.count()
    }

    #[test]
    fn all_but_the_timed_pieces_go_the_faster_way() {
        let mut reads = LongReads::default();
        assert_eq!(round(&mut reads, 30, 29), ROUND - TIMED / 2);
        assert_eq!(round(&mut reads, 29, 29), TIMED / 2, "it has changed");
        assert_eq!(round(&mut reads, 29, 30), TIMED / 2);
        assert_eq!(round(&mut reads, 30, 29), ROUND - TIMED / 2);
    }

    #[test]
    fn pieces_that_were_interrupted_do_not_count() {
        let mut reads = LongReads::default();
        for piece in 0..TIMED / 2 {
            let interrupted = piece % 3 == 0;
            reads.took((0, piece), 30);
            reads.took((1, piece), if interrupted { 1_000_000 } else { 29 });
        }
        assert!(reads.past_caches);
    }

    #[test]
    fn bytes_arrive_either_way_and_few_are_not_timed() {
        let mut reads = LongReads::default();
        for len in [TELLING_BYTES - 1, TELLING_BYTES, 3 * TELLING_BYTES + 5] {
            for n in 0..TIMED + 1 {
                let piece_claims = n % 3 == 0;
                let (given, mut taken) = (vec![7u8; len], vec![0u8; len]);
                // SAFETY: borrowed until the end of this block, and only read.
                let from = unsafe { Span::new(given.as_ptr().cast_mut(), len) };
                // SAFETY: borrowed until the end of this block, and used through this span alone.
                let to = unsafe { Span::new(taken.as_mut_ptr(), len) };
                reads.copy(to, from, piece_claims, || to.copy_from(from));
                assert_eq!(taken, given);
            }
            assert_eq!(reads.pieces == 0, len < TELLING_BYTES);
        }
    }
}
