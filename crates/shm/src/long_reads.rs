//! How a rank writes what it takes where that is longer than the caches: into them or past them.
//!
//! A store into the caches reads its line from memory first, only to overwrite it, and pushes out another one. Past them neither happens, and what was written is not found in them afterwards: of more
//! than they hold it would not be anyway. Which takes less time depends on the processor, on where its cores are, and on what else is in its caches. So each rank times a few pieces either way, and takes
//! the faster one for a while.

use crate::copy_clock::{TELLING_BYTES, nanos_for_64_kib};
use crate::span::Span;
use std::time::Instant;

/// Pieces at the beginning of a round that are timed, half of them either way.
const TIMED: usize = 16;
/// Pieces of a round. A prime, so that rounds do not begin where operations do.
const ROUND: usize = 251;

/// What a rank knows of its copies.
#[derive(Debug, Default)]
pub(crate) struct LongReads {
    /// Pieces of this round so far.
    pieces: usize,
    /// Nanoseconds for 64 KiB of each piece that was timed: first those into the caches, then those past them.
    costs: [u64; TIMED],
    /// Whether it is faster past them.
    past_caches: bool,
}

impl LongReads {
    /// Copies a piece of something long from shared memory: past the caches, or by `copy`, which copies into them. Short ones go into the caches.
    pub(crate) fn copy(&mut self, to: Span, from: Span, copy: impl FnOnce()) {
        if to.len() < TELLING_BYTES {
            return copy();
        }
        let piece = self.pieces;
        self.pieces = (piece + 1) % ROUND;
        let begun = (piece < TIMED).then(Instant::now);
        if self.goes_past(piece) {
            to.stream_from(from);
        } else {
            copy();
        }
        if let Some(begun) = begun {
            self.took(piece, nanos_for_64_kib(begun.elapsed(), to.len()));
        }
    }

    /// Whether this piece of a round goes past the caches.
    fn goes_past(&self, piece: usize) -> bool {
        // Of those that are timed one half after the other: several givers take turns, and each is to be read as often either way.
        if piece < TIMED { piece >= TIMED / 2 } else { self.past_caches }
    }

    /// A piece that is timed took so long.
    fn took(&mut self, piece: usize, cost: u64) {
        self.costs[piece] = cost;
        if piece == TIMED - 1 {
            // Medians, so that pieces don't count in which the rank was interrupted.
            let mut costs = self.costs;
            let (into, past) = costs.split_at_mut(TIMED / 2);
            let [into, past] = [into, past].map(|costs| *costs.select_nth_unstable(TIMED / 4).1);
            self.past_caches = past < into;
        }
    }

    /// Whether it has timed a piece.
    #[cfg(test)]
    pub(crate) fn have_timed(&self) -> bool {
        self.costs[0] > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round of pieces of so many givers in turn: how many go past the caches. `cost` has what a piece costs, by its giver and whether it goes past.
    fn round(reads: &mut LongReads, givers: usize, cost: impl Fn(usize, bool) -> u64) -> usize {
        let past_caches = (0..ROUND).filter(|&piece| {
            let goes_past = reads.goes_past(piece);
            if piece < TIMED {
                reads.took(piece, cost(piece % givers, goes_past));
            }
            goes_past
        });
        past_caches.count()
    }

    #[test]
    fn all_but_the_timed_pieces_go_the_faster_way() {
        let [past_is_faster, both_are_alike, past_is_slower] =
            [[30, 29], [29, 29], [29, 30]].map(|costs| move |_, past| costs[usize::from(past)]);
        let mut reads = LongReads::default();
        assert_eq!(round(&mut reads, 1, past_is_faster), ROUND - TIMED / 2);
        assert_eq!(round(&mut reads, 1, both_are_alike), TIMED / 2, "it has changed");
        assert_eq!(round(&mut reads, 1, past_is_slower), TIMED / 2);
        assert_eq!(round(&mut reads, 1, past_is_faster), ROUND - TIMED / 2);
    }

    #[test]
    fn givers_that_are_far_do_not_count_for_one_way() {
        for givers in 2..6 {
            for far in 0..givers {
                let cost = |giver, past| if giver == far { 100 } else { 30 } - u64::from(past);
                let past = round(&mut LongReads::default(), givers, cost);
                assert_eq!(past, ROUND - TIMED / 2, "{far} of {givers} is far");
            }
        }
    }

    #[test]
    fn pieces_that_were_interrupted_do_not_count() {
        let mut reads = LongReads::default();
        let interrupted = [2, 7, 13];
        for piece in 0..TIMED {
            let cost = if reads.goes_past(piece) { 29 } else { 30 };
            reads.took(piece, if interrupted.contains(&piece) { 1_000_000 } else { cost });
        }
        assert!(reads.past_caches);
    }

    #[test]
    fn bytes_arrive_either_way_and_few_are_not_timed() {
        for len in [TELLING_BYTES - 1, TELLING_BYTES, 3 * TELLING_BYTES + 5] {
            let mut reads = LongReads::default();
            for _ in 0..=ROUND {
                let (given, mut taken) = (vec![7u8; len], vec![0u8; len]);
                // SAFETY: borrowed until the end of this block, and only read.
                let from = unsafe { Span::new(given.as_ptr().cast_mut(), len) };
                // SAFETY: borrowed until the end of this block, and used through this span alone.
                let to = unsafe { Span::new(taken.as_mut_ptr(), len) };
                reads.copy(to, from, || to.copy_from(from));
                assert_eq!(taken, given);
            }
            assert_eq!(reads.have_timed(), len >= TELLING_BYTES);
            assert_eq!(reads.pieces, usize::from(len >= TELLING_BYTES), "a round begins anew");
        }
    }
}
