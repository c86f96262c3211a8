//! Counters of pieces: how a rank says how far it has come, and the rule by which slots are used again.

use crate::sync::{AtomicU64, Ordering};

/// How many pieces one rank has finished with. Zero at first; it only rises.
///
/// Of most pieces some counters hear nothing (only two phases are *combined*, only givers *post*), so one may be any number of pieces
/// behind. With 64 bits it never comes round, so none that is behind is ever taken for one that is ahead.
///
/// A rank that sees that it has reached a value sees all that its rank did before.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[cfg(all(test, loom))]
    fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Says that its rank has finished with `piece`, and with those before.
    pub(crate) fn publish(&self, piece: u64) {
        self.0.store(piece + 1, Ordering::Release);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn has_reached(&self, value: u64) -> bool {
        self.value() >= value
    }
}

/// With how many pieces all ranks must be done before one fills a slot for `piece`: it holds what was posted `slots`
/// pieces before.
pub(crate) fn needed(piece: u64, slots: u64) -> u64 {
    (piece + 1).saturating_sub(slots)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_first_pieces_need_nobody() {
        assert!((0..8).all(|piece| needed(piece, 8) == 0));
        assert_eq!(needed(8, 8), 1);
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    const SLOTS: usize = 2;
    const PIECES: u64 = 3;

    /// What one rank shares with the other.
    struct Rank {
        done: Counter,
        slots: [Slot; SLOTS],
    }

    struct Slot {
        posted: Counter,
        /// In the line of the flag.
        word: AtomicU64,
        /// Loom's cell panics when it is written while another reads or writes it.
        staging: UnsafeCell<u64>,
    }

    impl Rank {
        fn new() -> Self {
            let slot =
                || Slot { posted: Counter::new(), word: AtomicU64::new(0), staging: UnsafeCell::new(0) };
            Self { done: Counter::new(), slots: [slot(), slot()] }
        }

        /// Reserves, fills and posts a slot; `peer` is who reads it.
        fn post(&self, peer: &Self, piece: u64) {
            wait(&peer.done, needed(piece, SLOTS as u64));
            self.fill(piece % SLOTS as u64, piece);
        }

        fn fill(&self, slot: u64, piece: u64) {
            let slot = &self.slots[slot as usize];
            // SAFETY: loom checks what is claimed here.
            slot.staging.with_mut(|staging| unsafe { *staging = piece + 100 });
            slot.word.store(piece + 200, Ordering::Relaxed);
            slot.posted.publish(piece);
        }

        /// Waits for what `peer` posts, reads it, and is done with it.
        fn read(&self, peer: &Self, piece: u64) {
            peer.take(piece % SLOTS as u64, piece);
            self.done.publish(piece);
        }

        /// Waits for what this rank posts, and reads it.
        fn take(&self, slot: u64, piece: u64) {
            let slot = &self.slots[slot as usize];
            wait(&slot.posted, piece + 1);
            assert_eq!(slot.word.load(Ordering::Relaxed), piece + 200);
            // SAFETY: loom checks what is claimed here.
            assert_eq!(slot.staging.with(|staging| unsafe { *staging }), piece + 100);
        }
    }

    fn wait(counter: &Counter, value: u64) {
        while !counter.has_reached(value) {
            thread::yield_now();
        }
    }

    /// Two ranks work on `PIECES` pieces, one more than there are slots.
    fn check(one: fn(&Rank, &Rank, u64), two: fn(&Rank, &Rank, u64)) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let ranks = Arc::new([Rank::new(), Rank::new()]);
            let other = ranks.clone();
            let other = thread::spawn(move || (0..PIECES).for_each(|piece| two(&other[1], &other[0], piece)));
            (0..PIECES).for_each(|piece| one(&ranks[0], &ranks[1], piece));
            other.join().unwrap();
        });
    }

    /// As in an all_reduce.
    #[test]
    fn ranks_that_read_each_other_read_what_was_posted() {
        let both = |own: &Rank, peer: &Rank, piece| {
            own.post(peer, piece);
            own.read(peer, piece);
        };
        check(both, both);
    }

    /// As in a broadcast: nothing but `done` holds the root back.
    #[test]
    fn no_slot_is_filled_again_before_it_was_read() {
        check(Rank::post, Rank::read);
    }

    /// Each rank posts and reads every piece, each an operation of its own, and nobody looks at `done`: who has posted a piece has read those before it.
    fn check_posts(slots: u64) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let ranks = Arc::new([Rank::new(), Rank::new()]);
            let work = move |own: &Rank, peer: &Rank| {
                for piece in 0..PIECES {
                    own.fill(piece % slots, piece);
                    peer.take(piece % slots, piece);
                }
            };
            let other = ranks.clone();
            let other = thread::spawn(move || work(&other[1], &other[0]));
            work(&ranks[0], &ranks[1]);
            other.join().unwrap();
        });
    }

    #[test]
    fn what_is_posted_says_that_its_rank_is_done_with_the_piece_before() {
        check_posts(2);
    }

    #[test]
    #[should_panic(expected = "Concurrent")]
    fn it_does_not_say_that_its_rank_is_done_with_that_piece() {
        check_posts(1);
    }

    /// A rank whose only cell changes hands: in odd pieces the other writes it.
    struct Pair {
        posted: Counter,
        done: Counter,
        cell: UnsafeCell<u64>,
    }

    fn cell(ranks: &[Pair; 2], giver: usize, piece: u64) -> &UnsafeCell<u64> {
        &ranks[giver ^ (piece & 1) as usize].cell
    }

    fn give(ranks: &[Pair; 2], rank: usize, piece: u64) {
        wait(&ranks[1 - rank].done, needed(piece, 1));
        // SAFETY: loom checks what is claimed here.
        cell(ranks, rank, piece).with_mut(|cell| unsafe { *cell = 10 * piece + rank as u64 });
        ranks[rank].posted.publish(piece);
    }

    fn take(ranks: &[Pair; 2], rank: usize, piece: u64) {
        let giver = 1 - rank;
        wait(&ranks[giver].posted, piece + 1);
        // SAFETY: loom checks what is claimed here.
        let taken = cell(ranks, giver, piece).with(|cell| unsafe { *cell });
        assert_eq!(taken, 10 * piece + giver as u64);
        ranks[rank].done.publish(piece);
    }

    /// `gives` and `takes` say which ranks do.
    fn check_cells(gives: [bool; 2], takes: [bool; 2]) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let pair = || Pair { posted: Counter::new(), done: Counter::new(), cell: UnsafeCell::new(0) };
            let ranks = Arc::new([pair(), pair()]);
            let work = move |ranks: &[Pair; 2], rank: usize| {
                for piece in 0..PIECES {
                    if gives[rank] {
                        give(ranks, rank, piece);
                    }
                    if takes[rank] {
                        take(ranks, rank, piece);
                    } else {
                        ranks[rank].done.publish(piece);
                    }
                }
            };
            let other = ranks.clone();
            let other = thread::spawn(move || work(&other, 1));
            work(&ranks, 0);
            other.join().unwrap();
        });
    }

    #[test]
    fn cells_of_ranks_that_give_each_other_change_hands() {
        check_cells([true; 2], [true; 2]);
    }

    #[test]
    fn cells_change_hands_where_one_rank_gives() {
        check_cells([true, false], [false, true]);
    }
}
