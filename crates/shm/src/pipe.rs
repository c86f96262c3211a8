//! A pipe: a ring of bytes in shared memory, from one rank to another. What is short goes past the ring in [letters](Letters).
//!
//! Each end counts the bytes it has moved, publishes that on a line of its own, and remembers what it last saw of the other's:
//! while there is room, or there are bytes, that is known already, neither reads a line that the other writes.

use crate::letters::{LETTER_LEN, Letters, Reader, Writer};
use crate::region::Line;
use crate::span::Span;
use crate::staging_probe::lines_are_handed_back;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use phalanx_transport::Direction;
use std::ops::Range;

/// Bytes moved before the other end hears of them: long messages are written and read at the same time. Where lines are handed back, with
/// four times as much messages of 1 MiB took a third longer; where they are not, with twice as much they take 6 % less.
const PIECE_HANDED_BACK: usize = 16 << 10;
const PIECE: usize = 32 << 10;

/// The bytes from which the reader hands the lines back: see `stores.rs`. Messages of 64 KiB took 8.6 µs without, 3.6 with it.
const HAND_BACK_BYTES: usize = 2 << 10;

/// The memory that the two ends of a pipe share, besides the ring. All zero at first; indexed by end.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Pipe {
    /// Bytes moved since the beginning. Each end writes its own.
    moved: [Line<AtomicU64>; 2],
    /// Whether an end wants to be woken when the other moves on. Hardly ever written, so its line is in both caches.
    waits: Line<[AtomicU32; 2]>,
    letters: Letters,
}

/// One end of a pipe, as its rank knows it. What it may move through the ring are `left` bytes: the writing end free ones, the reading end those
/// that were written.
#[derive(Debug)]
pub(crate) struct End {
    direction: Direction,
    capacity: usize,
    moved: u64,
    published: u64,
    /// Up to which count bytes may be moved, as far as was last seen.
    limit: u64,
    /// Of the writing end.
    letters_out: Writer,
    /// Of the reading end.
    letters_in: Reader,
}

fn piece() -> usize {
    if lines_are_handed_back() { PIECE_HANDED_BACK } else { PIECE }
}

impl End {
    /// An end that has moved nothing.
    ///
    /// # Panics
    /// If the capacity is not a power of two.
    pub(crate) fn new(direction: Direction, capacity: usize) -> Self {
        assert!(capacity.is_power_of_two());
        let limit = if direction == Direction::Send { capacity as u64 } else { 0 };
        let (letters_out, letters_in) = (Writer::default(), Reader::default());
        Self { direction, capacity, moved: 0, published: 0, limit, letters_out, letters_in }
    }

    fn own(&self) -> usize {
        self.direction as usize
    }

    fn other(&self) -> usize {
        1 - self.direction as usize
    }

    /// Whatever the other end may have written there: never more than there can be.
    fn left(&self) -> usize {
        self.limit.wrapping_sub(self.moved).min(self.capacity as u64) as usize
    }

    /// Sees how far the other end has come.
    fn look(&mut self, pipe: &Pipe) {
        let theirs = pipe.moved[self.other()].0.load(Ordering::Acquire);
        let ahead = if self.direction == Direction::Send { self.capacity as u64 } else { 0 };
        self.limit = theirs.wrapping_add(ahead);
    }

    /// The range of the ring that can be moved next: at most `want` bytes, in one piece. Empty if none can be moved, or if a letter
    /// comes before them.
    fn next(&mut self, pipe: &Pipe, want: usize) -> Range<usize> {
        if self.left() < want {
            self.look(pipe);
            // Whatever was written to the ring after a letter is seen after it.
            if self.direction == Direction::Recv && self.letters_in.is_there(&pipe.letters) {
                return 0..0;
            }
        }
        let start = self.moved as usize % self.capacity;
        start..start + want.min(self.left()).min(self.capacity - start).min(piece())
    }

    /// Tells the other end how far this one has come; true if it wants to be woken.
    fn publish(&mut self, pipe: &Pipe) -> bool {
        if self.moved == self.published {
            return false;
        }
        self.published = self.moved;
        pipe.moved[self.own()].0.store(self.moved, Ordering::Release);
        self.is_waited_for(pipe)
    }

    /// Whether the other end wants to be woken, for what was just published.
    fn is_waited_for(&self, pipe: &Pipe) -> bool {
        // Pairs with the fence in `is_ready`: either we see that the other waits, or it sees how far we have come.
        fence(Ordering::SeqCst);
        let waits = &pipe.waits.0[self.other()];
        let is_waited_for = waits.load(Ordering::Relaxed) != 0;
        if is_waited_for {
            waits.store(0, Ordering::Relaxed);
        }
        is_waited_for
    }

    /// Whether bytes can be moved. If not, the other end is asked to wake this rank when they can.
    pub(crate) fn is_ready(&mut self, pipe: &Pipe) -> bool {
        if self.left() > 0 {
            return true;
        }
        pipe.waits.0[self.own()].store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.look(pipe);
        self.left() > 0 || self.direction == Direction::Recv && self.letters_in.is_there(&pipe.letters)
    }

    /// Whether the ring takes so many bytes.
    pub(crate) fn takes(&mut self, pipe: &Pipe, len: usize) -> bool {
        if self.left() < len {
            self.look(pipe);
        }
        self.left() >= len
    }

    /// Whether the reader is known to have read all that was written to the ring.
    fn is_drained(&mut self, pipe: &Pipe) -> bool {
        if self.left() < self.capacity {
            self.look(pipe);
        }
        self.left() == self.capacity
    }

    /// Moves up to `len` bytes: `copy` does, given where in them and where in the ring. `wake` is called when the other end is
    /// to be woken.
    fn transfer(
        &mut self,
        pipe: &Pipe,
        len: usize,
        mut copy: impl FnMut(Range<usize>, Range<usize>),
        wake: &impl Fn(),
    ) -> usize {
        let mut done = 0;
        while done < len {
            let range = self.next(pipe, len - done);
            if range.is_empty() {
                break;
            }
            let n = range.len();
            copy(done..done + n, range);
            self.moved += n as u64;
            done += n;
            if self.moved - self.published >= piece() as u64 && self.publish(pipe) {
                wake();
            }
        }
        done
    }

    /// Writes as much of `parts` as there is room for.
    pub(crate) fn write(
        &mut self,
        pipe: &Pipe,
        ring: Span,
        parts: &[std::io::IoSlice<'_>],
        wake: &impl Fn(),
    ) -> usize {
        let len = parts.iter().map(|part| part.len()).sum();
        if (1..=LETTER_LEN).contains(&len)
            && self.is_drained(pipe)
            && self.letters_out.write(&pipe.letters, parts)
        {
            if self.is_waited_for(pipe) {
                wake();
            }
            return len;
        }
        let mut written = 0;
        for part in parts {
            let n = self.transfer(pipe, part.len(), |of, at| ring.part(at).write(&part[of]), wake);
            written += n;
            if n < part.len() {
                break;
            }
        }
        if self.publish(pipe) {
            wake();
        }
        written
    }

    /// Reads as many bytes as there are, or some of them.
    pub(crate) fn read(&mut self, pipe: &Pipe, ring: Span, buffer: &mut [u8], wake: &impl Fn()) -> usize {
        let n = self.letters_in.read(&pipe.letters, buffer);
        if n > 0 {
            return n;
        }
        let len = buffer.len();
        let copy = |of: Range<usize>, at: Range<usize>| {
            let written = ring.part(at);
            written.read_far(&mut buffer[of]);
            if written.len() >= HAND_BACK_BYTES && lines_are_handed_back() {
                written.own_lines();
            }
        };
        let n = self.transfer(pipe, len, copy, wake);
        if self.publish(pipe) {
            wake();
        }
        n
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::io::IoSlice;

    fn pipe() -> Pipe {
        let line = || Line(AtomicU64::new(0));
        let waits = Line([AtomicU32::new(0), AtomicU32::new(0)]);
        Pipe { moved: [line(), line()], waits, letters: Letters::new() }
    }

    const CAPACITY: usize = 512;

    /// Ends of one pipe in this thread.
    struct Both {
        pipe: Pipe,
        ring: Vec<u8>,
        writer: End,
        reader: End,
    }

    impl Both {
        fn new() -> Self {
            let [writer, reader] = [Direction::Send, Direction::Recv].map(|d| End::new(d, CAPACITY));
            Self { pipe: pipe(), ring: vec![0; CAPACITY], writer, reader }
        }

        fn write(&mut self, bytes: &[u8]) -> usize {
            // SAFETY: the ring outlives the span, and only this thread uses it.
            let ring = unsafe { Span::new(self.ring.as_mut_ptr(), CAPACITY) };
            self.writer.write(
                &self.pipe,
                ring,
                &[IoSlice::new(&bytes[..1]), IoSlice::new(&bytes[1..])],
                &|| {},
            )
        }

        fn read(&mut self, len: usize) -> Vec<u8> {
            // SAFETY: the ring outlives the span, and only this thread uses it.
            let ring = unsafe { Span::new(self.ring.as_mut_ptr(), CAPACITY) };
            let mut buffer = vec![0; len];
            let n = self.reader.read(&self.pipe, ring, &mut buffer, &|| {});
            buffer.truncate(n);
            buffer
        }
    }

    /// So many bytes that count on from this one.
    fn bytes(first: u8, len: usize) -> Vec<u8> {
        (0..len).map(|i| first.wrapping_add(i as u8)).collect()
    }

    #[test]
    fn bytes_wrap_around_and_no_more_are_taken_than_fit() {
        let mut both = Both::new();
        assert!(both.read(3).is_empty(), "nothing was written");
        assert_eq!(both.write(&bytes(0, 300)), 300);
        assert_eq!(both.read(200), bytes(0, 200));
        assert_eq!(both.write(&bytes(44, 500)), 412, "100 are in it still");
        assert_eq!(both.write(&bytes(0, 2)), 0, "full");
        assert_eq!(both.read(1000), bytes(200, 512));
        assert!(both.read(1).is_empty());
        assert_eq!(both.write(&bytes(7, 600)), 512, "all of it");
        assert_eq!(both.read(500), bytes(7, 500));
    }

    #[test]
    fn an_end_is_ready_when_bytes_can_move() {
        let mut both = Both::new();
        assert!(both.writer.is_ready(&both.pipe) && !both.reader.is_ready(&both.pipe));
        assert_eq!(both.write(&bytes(0, CAPACITY)), CAPACITY);
        assert!(!both.writer.is_ready(&both.pipe) && both.reader.is_ready(&both.pipe));
        both.read(1);
        assert!(both.writer.is_ready(&both.pipe) && both.reader.is_ready(&both.pipe));
        both.read(CAPACITY);
        assert!(!both.reader.is_ready(&both.pipe));
        both.write(&bytes(0, 1));
        assert!(both.reader.is_ready(&both.pipe), "for a letter");
    }

    #[test]
    fn letters_are_read_in_their_place_in_whatever_pieces() {
        let mut both = Both::new();
        // The fifth finds no free letter, the sixth something in the ring.
        let lens = [1, LETTER_LEN, 100, 9, 10, 11, LETTER_LEN + 1];
        let mut sent = 0;
        for len in lens {
            assert_eq!(both.write(&bytes(sent as u8, len)), len);
            sent += len;
        }
        assert_eq!(both.writer.moved, 10 + 11 + LETTER_LEN as u64 + 1);
        let mut read = 0;
        for len in [1, 200, 3, 400, 1000, 1000, 1000, 1000] {
            let got = both.read(len);
            assert_eq!(got, bytes(read as u8, got.len()));
            read += got.len();
        }
        assert_eq!(read, sent);
        assert_eq!(both.write(&bytes(0, 5)), 5);
        assert_eq!(both.writer.letters_out.written(), 5, "the ring holds nothing again");
        assert_eq!(both.read(9), bytes(0, 5));
    }

    #[test]
    fn nonsense_from_the_other_end_does_no_harm() {
        let mut both = Both::new();
        for theirs in [9, 1 << 40, u64::MAX] {
            both.pipe.moved[Direction::Send as usize].0.store(theirs, Ordering::Release);
            assert!(both.read(100).len() <= 100);
            both.pipe.moved[Direction::Recv as usize].0.store(theirs, Ordering::Release);
            assert!(both.write(&[7; 100]) <= 100);
            for stamp in [0, 1 << 8, 1 << 8 | 255, theirs] {
                both.pipe.letters.spoil(stamp);
                assert!(both.read(100).len() <= 100);
                assert!(both.write(&[7; 100]) <= 100);
            }
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::futex::Futex;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;
    use std::time::Duration;

    struct Shared {
        pipe: Pipe,
        ring: [UnsafeCell<u64>; 1],
        /// Each end's.
        doors: [Futex; 2],
    }

    impl Shared {
        fn new() -> Arc<Self> {
            let line = || Line(AtomicU64::new(0));
            let waits = Line([AtomicU32::new(0), AtomicU32::new(0)]);
            let pipe = Pipe { moved: [line(), line()], waits, letters: Letters::new() };
            Arc::new(Self { pipe, ring: [UnsafeCell::new(0)], doors: [Futex::new(), Futex::new()] })
        }

        /// Moves one cell, and sleeps until that can be done; `touch` is given it.
        fn step(&self, end: &mut End, mut touch: impl FnMut(&UnsafeCell<u64>)) {
            let door = &self.doors[end.own()];
            let mut heard = door.value();
            while end.next(&self.pipe, 1).is_empty() {
                if !end.is_ready(&self.pipe) {
                    door.wait(heard, Duration::ZERO);
                    heard = door.value();
                }
            }
            touch(&self.ring[0]);
            end.moved += 1;
            if end.publish(&self.pipe) {
                self.doors[end.other()].bump();
            }
        }
    }

    /// A ring of one cell, so that each end waits for the other. loom's cell panics if both touch it at once, and loom
    /// itself if both sleep.
    fn all_is_read_as_it_was_written(count: u64, preemptions: Option<usize>) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = preemptions;
        model.check(move || {
            let shared = Shared::new();
            let theirs = shared.clone();
            let writer = thread::spawn(move || {
                let mut end = End::new(Direction::Send, 1);
                for value in 1..=count {
                    // SAFETY: loom checks what is claimed here.
                    theirs.step(&mut end, |cell| cell.with_mut(|cell| unsafe { *cell = value }));
                }
            });
            let mut end = End::new(Direction::Recv, 1);
            for value in 1..=count {
                // SAFETY: loom checks what is claimed here.
                shared.step(&mut end, |cell| assert_eq!(cell.with(|cell| unsafe { *cell }), value));
            }
            writer.join().unwrap();
        });
    }

    /// Values go as letters where the ring is drained, else through the ring of one cell. The reader takes letters first, and must get all in order.
    fn letters_keep_their_place(count: u64, preemptions: Option<usize>) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = preemptions;
        model.check(move || {
            let shared = Shared::new();
            let theirs = shared.clone();
            let writer = thread::spawn(move || {
                let mut end = End::new(Direction::Send, 1);
                for value in 1..=count {
                    let bytes = [value as u8];
                    // Every second one goes through the ring, as one does that is long.
                    if value % 2 == 1
                        && end.is_drained(&theirs.pipe)
                        && end.letters_out.write(&theirs.pipe.letters, &[std::io::IoSlice::new(&bytes)])
                    {
                        if end.is_waited_for(&theirs.pipe) {
                            theirs.doors[end.other()].bump();
                        }
                        continue;
                    }
                    // SAFETY: loom checks what is claimed here.
                    theirs.step(&mut end, |cell| cell.with_mut(|cell| unsafe { *cell = value }));
                }
            });
            let mut end = End::new(Direction::Recv, 1);
            let door = &shared.doors[end.own()];
            for value in 1..=count {
                let mut heard = door.value();
                let got = loop {
                    let mut letter = [0];
                    if end.letters_in.read(&shared.pipe.letters, &mut letter) == 1 {
                        break u64::from(letter[0]);
                    }
                    if !end.next(&shared.pipe, 1).is_empty() {
                        // SAFETY: loom checks what is claimed here.
                        let got = shared.ring[0].with(|cell| unsafe { *cell });
                        end.moved += 1;
                        if end.publish(&shared.pipe) {
                            shared.doors[end.other()].bump();
                        }
                        break got;
                    }
                    if !end.is_ready(&shared.pipe) {
                        door.wait(heard, Duration::ZERO);
                        heard = door.value();
                    }
                };
                assert_eq!(got, value);
            }
            writer.join().unwrap();
        });
    }

    #[test]
    fn a_reader_that_sleeps_is_woken_by_a_letter() {
        letters_keep_their_place(1, None);
    }

    #[test]
    fn a_letter_before_the_ring_is_read_before_it() {
        letters_keep_their_place(2, Some(3));
    }

    #[test]
    fn letters_and_the_ring_in_turn() {
        letters_keep_their_place(3, Some(2));
    }

    #[test]
    fn a_reader_that_sleeps_is_woken() {
        all_is_read_as_it_was_written(1, None);
    }

    #[test]
    fn both_sleep_and_are_woken_in_turn() {
        all_is_read_as_it_was_written(2, Some(3));
    }
}
