//! Pipes whose ends are in one thread: what goes where, in whatever pieces, and nonsense from the other end.

use super::*;
use crate::cells::CELLS;
use crate::letters::{LONG_LETTERS, SHORT_LETTERS};
use std::io::IoSlice;

const SHORT: usize = SHORT_LETTERS.all_words();
const LONG: usize = LONG_LETTERS.all_words();
/// The most bytes in a short letter.
const LETTER_LEN: usize = SHORT_LETTERS.letter_len();
/// The most bytes in a long one.
const LONG_LETTER_LEN: usize = LONG_LETTERS.letter_len();

fn pipe<const WORDS: usize>() -> Pipe<[AtomicU64; WORDS]> {
    let line = || Line(AtomicU64::new(0));
    Pipe { moved: [line(), line()], signs: Line(Signs::new()), letters: Letters::new() }
}

const CAPACITY: usize = 512;
const CELL: usize = 512;

/// Ends of one pipe in this thread.
struct Both {
    pipe: Pipe<[AtomicU64; SHORT]>,
    ring: Vec<u8>,
    /// Empty where there are no cells.
    cells: Vec<u8>,
    writer: End,
    reader: End,
    /// The writer's, and the reader's.
    hands: [Hand; 2],
}

impl Both {
    fn new() -> Self {
        Self::with_cells(0)
    }

    /// With cells of this length.
    fn with_cells(len: usize) -> Self {
        let [writer, reader] = [Direction::Send, Direction::Recv].map(|d| End::new(d, CAPACITY));
        let (ring, cells) = (vec![0; CAPACITY], vec![0; len * CELLS]);
        Self { pipe: pipe(), ring, cells, writer, reader, hands: [0, 1].map(Hand::of_end) }
    }

    fn room(&mut self) -> Room {
        let half = self.cells.len() / 2;
        // SAFETY: the ring outlives the span, and only this thread uses it.
        let ring = unsafe { Span::new(self.ring.as_mut_ptr(), CAPACITY) };
        // SAFETY: the cells outlive the span, and only this thread uses them.
        let cells = unsafe { Span::new(self.cells.as_mut_ptr(), 2 * half) };
        Room { ring, cells: Cells::new([cells.part(0..half), cells.part(half..2 * half)]) }
    }

    fn write(&mut self, bytes: &[u8]) -> usize {
        let (room, parts) = (self.room(), [IoSlice::new(&bytes[..1]), IoSlice::new(&bytes[1..])]);
        self.writer.write(&self.pipe, &room, &mut self.hands[0], &parts, &|| {})
    }

    fn read(&mut self, len: usize) -> Vec<u8> {
        let room = self.room();
        let mut buffer = vec![0; len];
        let n = self.reader.read(&self.pipe, &room, &mut self.hands[1], &mut buffer, len, &|| {});
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

/// Two ranks with the pipes between them, in this thread.
struct Pair {
    pipes: [Pipe<[AtomicU64; LONG]>; 2],
    rings: [Vec<u8>; 2],
    cells: Vec<u8>,
    outgoing: [End; 2],
    incoming: [End; 2],
    hands: [Hand; 2],
}

impl Pair {
    fn new() -> Self {
        let ends = |direction| [0, 1].map(|_| End::new(direction, CAPACITY));
        Self {
            pipes: [pipe(), pipe()],
            rings: [vec![0; CAPACITY], vec![0; CAPACITY]],
            cells: vec![0; CELL * CELLS],
            outgoing: ends(Direction::Send),
            incoming: ends(Direction::Recv),
            hands: [0, 1].map(Hand::of_end),
        }
    }

    fn room(&mut self, from: usize) -> Room {
        let half = self.cells.len() / 2;
        // SAFETY: the ring outlives the span, and only this thread uses it.
        let ring = unsafe { Span::new(self.rings[from].as_mut_ptr(), CAPACITY) };
        // SAFETY: the cells outlive the span, and only this thread uses them.
        let cells = unsafe { Span::new(self.cells.as_mut_ptr(), 2 * half) };
        Room { ring, cells: Cells::new([cells.part(0..half), cells.part(half..2 * half)]) }
    }

    fn write(&mut self, from: usize, head: &[u8], body: &[u8]) -> usize {
        let (room, parts) = (self.room(from), [IoSlice::new(head), IoSlice::new(body)]);
        self.outgoing[from].write(&self.pipes[from], &room, &mut self.hands[from], &parts, &|| {})
    }

    fn read(&mut self, from: usize, len: usize) -> Vec<u8> {
        let (room, mut buffer) = (self.room(from), vec![0; len]);
        let hand = &mut self.hands[1 - from];
        let n = self.incoming[1 - from].read(&self.pipes[from], &room, hand, &mut buffer, len, &|| {});
        buffer.truncate(n);
        buffer
    }

    fn hand(&self, end: usize) -> Vec<usize> {
        self.hands[end].cells().collect()
    }
}

/// Cells that each end owns at first.
const HALF: usize = CELLS / 2;

/// The cells of these numbers.
fn cells(numbers: Range<usize>) -> Vec<usize> {
    numbers.collect()
}

#[test]
fn a_cell_belongs_to_whoever_has_read_it_and_is_written_next() {
    let mut pair = Pair::new();
    assert_eq!((pair.hand(0), pair.hand(1)), (cells(0..HALF), cells(HALF..CELLS)));
    for first in 0..9 {
        let (head, body) = (bytes(first, 40), bytes(first + 40, CELL));
        assert_eq!(pair.write(0, &head, &body), 40 + CELL);
        let left = (cells(0..HALF - 1), cells(HALF..CELLS));
        assert_eq!((pair.hand(0), pair.hand(1)), left, "it belongs to nobody");
        assert_eq!(pair.read(0, 39), head[..39], "what was sent as head needs no cell");
        assert_eq!(pair.read(0, 1), head[39..]);
        assert_eq!(pair.read(0, CELL - 1), body[..CELL - 1]);
        assert_eq!(pair.hand(1), cells(HALF..CELLS), "it was not read to its end");
        assert_eq!(pair.read(0, 2), body[CELL - 1..]);
        assert_eq!(pair.hand(1), [cells(HALF..CELLS), vec![HALF - 1]].concat());
        assert_eq!(pair.write(1, &head, &body), 40 + CELL);
        assert_eq!(pair.hand(1), cells(HALF..CELLS));
        assert_eq!(pair.read(1, 1000), [head, body].concat());
    }
    assert_eq!((pair.outgoing[0].moved, pair.outgoing[1].moved), (0, 0), "nothing went through the rings");
}

#[test]
fn what_finds_no_cell_goes_through_the_ring() {
    let mut pair = Pair::new();
    // All cells but one, then that one, and as much as the ring holds.
    let first = 10 + (HALF - 1) * CELL;
    let all = bytes(0, first + CELL + 2 * CAPACITY);
    assert_eq!(pair.write(0, &all[..10], &all[10..first]), first);
    assert_eq!(pair.outgoing[0].moved, 0);
    let taken = first + CELL + CAPACITY;
    assert_eq!(pair.write(0, &[], &all[first..]), taken - first);
    assert_eq!(pair.outgoing[0].moved, CAPACITY as u64);
    let mut got = Vec::new();
    while got.len() < taken {
        let some = pair.read(0, 300);
        assert!(!some.is_empty());
        got.extend(some);
    }
    assert_eq!(got, all[..taken]);
    // All cells are at one end; the other's messages go through the ring until it gets some.
    assert_eq!((pair.hand(0).len(), pair.hand(1).len()), (0, CELLS));
    assert_eq!(pair.write(0, &bytes(0, 100), &bytes(100, LONG_LETTER_LEN - 99)), LONG_LETTER_LEN + 1);
    assert_eq!(pair.outgoing[0].moved, (CAPACITY + LONG_LETTER_LEN + 1) as u64);
    assert_eq!(pair.read(0, 1000), bytes(0, LONG_LETTER_LEN + 1));
    assert_eq!(pair.write(1, &[], &bytes(0, CELL)), CELL);
    assert_eq!(pair.read(1, 1000), bytes(0, CELL));
    assert_eq!(pair.hand(0).len(), 1);
}

#[test]
fn both_directions_at_once_share_the_cells_in_whatever_order() {
    let mut state = 7_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut pair = Pair::new();
    let (mut sent, mut got) = ([0; 2], [0; 2]);
    for _ in 0..if cfg!(miri) { 500 } else { 20_000 } {
        let from = random(2);
        if random(2) == 0 {
            let lens = [1, LONG_LETTER_LEN, CELL, CELL + 1, 3 * CELL, 3 * CAPACITY];
            let longest = lens[random(lens.len())];
            let all = bytes(sent[from] as u8, 1 + random(longest));
            let (head, body) = all.split_at(random(all.len().min(50)));
            sent[from] += pair.write(from, head, body);
        } else {
            let some = pair.read(from, 1 + random(2 * CAPACITY));
            assert_eq!(some, bytes(got[from] as u8, some.len()));
            got[from] += some.len();
        }
        let owned: Vec<_> = [pair.hand(0), pair.hand(1)].concat();
        assert!((0..CELLS).all(|cell| owned.iter().filter(|&&owned| owned == cell).count() <= 1));
    }
    for from in [0, 1] {
        while got[from] < sent[from] {
            got[from] += pair.read(from, CAPACITY).len();
        }
    }
    assert_eq!(pair.hand(0).len() + pair.hand(1).len(), CELLS, "no cell is lost");
}

#[test]
fn a_pair_has_cells_if_who_asks_first_wants_them() {
    let pipe = pipe::<SHORT>();
    assert!(pipe.has_cells(true) && pipe.has_cells(false));
    pipe.signs.0.cells.store(77, Ordering::Relaxed);
    assert!(!pipe.has_cells(true), "nonsense");
}

#[test]
fn nonsense_from_the_other_end_does_no_harm() {
    for mut both in [Both::new(), Both::with_cells(CELL)] {
        for theirs in [9, 1 << 40, u64::MAX] {
            both.pipe.moved[Direction::Send as usize].0.store(theirs, Ordering::Release);
            assert!(both.read(100).len() <= 100);
            both.pipe.moved[Direction::Recv as usize].0.store(theirs, Ordering::Release);
            assert!(both.write(&[7; 100]) <= 100);
            // Numbers of a letter with all lengths, enclosing or not, and every word what it should not be.
            for stamp in (0..40)
                .flat_map(|number| [0, 1, 120, 376, 377, 511, 512, 513, 1023].map(|len| number << 10 | len))
            {
                let letters: &Letters = &both.pipe.letters;
                letters.spoil(stamp, theirs.wrapping_mul(stamp | 1));
                for len in [1, 100, 1000] {
                    assert!(both.read(len).len() <= len);
                    assert!(both.write(&vec![7; 1 + len]) <= 1 + len);
                }
                assert!(both.hands.iter().all(|hand| hand.cells().count() <= CELLS));
            }
        }
    }
}

#[test]
fn there_is_room_for_what_the_ring_takes() {
    let mut both = Both::new();
    let write = |both: &mut Both, first, len| {
        assert!(both.writer.takes(&both.pipe, len));
        assert_eq!(both.write(&bytes(first, len)), len);
    };
    write(&mut both, 0, 100); // a letter
    write(&mut both, 100, 300); // the ring
    assert!(both.writer.takes(&both.pipe, 212) && !both.writer.takes(&both.pipe, 213));
    assert_eq!((both.read(100), both.read(1000)), (bytes(0, 100), bytes(100, 300)));
    write(&mut both, 0, 450); // again
    // A reader that says it has read less than it had.
    both.read(400);
    write(&mut both, 0, 200);
    both.pipe.moved[1].0.store(500, Ordering::Release);
    assert!(!both.writer.takes(&both.pipe, 300));
    both.read(200);
    write(&mut both, 0, 50);
    both.pipe.moved[1].0.store(500, Ordering::Release);
    // What was known before is not true any more, so less is taken than there was room for.
    assert!(both.writer.takes(&both.pipe, 63));
    assert_ne!(both.write(&bytes(0, 63)), 63);
}
