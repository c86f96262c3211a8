//! The protocol of pipes, letters and cells under every order in which two threads can meet.

use super::*;
use crate::cells::CELLS;
use crate::futex::Futex;
use crate::letters::SHORT_LETTERS;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use std::time::Duration;

struct Shared {
    pipe: Pipe<[AtomicU64; SHORT_LETTERS.all_words()]>,
    ring: [UnsafeCell<u64>; 1],
    /// Each end's.
    doors: [Futex; 2],
}

impl Shared {
    fn new() -> Arc<Self> {
        let line = || Line(AtomicU64::new(0));
        let pipe = Pipe { moved: [line(), line()], signs: Line(Signs::new()), letters: Letters::new() };
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
                let letters: &Letters = &theirs.pipe.letters;
                if value % 2 == 1 && end.is_drained(&theirs.pipe) && end.letters_out.is_free(letters) {
                    end.letters_out.write(letters, std::iter::once(&bytes[..]));
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
                // In the order of `End::read`.
                let is_empty = end.is_empty(&shared.pipe);
                if !is_empty && end.letters_in.read_whole(&shared.pipe.letters, &mut letter).is_some() {
                    break u64::from(letter[0]);
                }
                if !is_empty && !end.next(&shared.pipe, 1).is_empty() {
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

/// A pair of ranks whose messages lie in a cell, there and back; each sleeps until one comes.
fn cells_pass_there_and_back(rounds: u64, preemptions: Option<usize>) {
    struct Two {
        /// There, and back.
        pipes: [Pipe<[AtomicU64; SHORT_LETTERS.all_words()]>; 2],
        cells: [UnsafeCell<u64>; CELLS],
        doors: [Futex; 2],
    }

    /// What one rank does: `rank` 0 sends first.
    fn play(two: &Two, rank: usize, rounds: u64) {
        let (out, into) = (&two.pipes[rank] as &Pipe, &two.pipes[1 - rank] as &Pipe);
        let (mut outgoing, mut incoming) = (End::new(Direction::Send, 1), End::new(Direction::Recv, 1));
        // One cell goes round, and whoever writes it has read it last.
        let mut hand = Hand::of_end(rank);
        let mut send = |hand: &mut Hand, value: u64| {
            let number = hand.take().expect("one was read");
            assert!(outgoing.letters_out.is_free(&out.letters));
            // SAFETY: loom checks what is claimed here.
            two.cells[number].with_mut(|cell| unsafe { *cell = value });
            outgoing.letters_out.enclose(&out.letters, &[], Enclosed { cell: number, len: 1 });
            if outgoing.is_waited_for(out) {
                two.doors[1 - rank].bump();
            }
        };
        for round in 0..rounds {
            if rank == 0 {
                send(&mut hand, 2 * round);
            }
            let door = &two.doors[rank];
            let mut heard = door.value();
            let mut got = None;
            let cell = loop {
                // SAFETY: loom checks what is claimed here.
                let read = |cell: usize, _: Range<usize>, _: &mut [u8]| {
                    got = Some(two.cells[cell].with(|cell| unsafe { *cell }));
                };
                if let Some(taken) = incoming.letters_in.read(&into.letters, 1, &mut [0], read) {
                    break taken.cell.expect("it was read to its end");
                }
                if !incoming.is_ready(into) {
                    door.wait(heard, Duration::ZERO);
                    heard = door.value();
                }
            };
            assert_eq!(got, Some(2 * round + 1 - rank as u64));
            hand.put(cell);
            if rank == 1 {
                send(&mut hand, 2 * round + 1);
            }
        }
    }

    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions;
    model.check(move || {
        let pipe = || {
            let line = || Line(AtomicU64::new(0));
            Pipe { moved: [line(), line()], signs: Line(Signs::new()), letters: Letters::new() }
        };
        let two = Arc::new(Two {
            pipes: [pipe(), pipe()],
            cells: std::array::from_fn(|_| UnsafeCell::new(77)),
            doors: [Futex::new(), Futex::new()],
        });
        let theirs = two.clone();
        let other = thread::spawn(move || play(&theirs, 1, rounds));
        play(&two, 0, rounds);
        other.join().unwrap();
    });
}

#[test]
fn a_cell_is_read_and_then_written() {
    cells_pass_there_and_back(1, None);
}

#[test]
fn a_cell_goes_round_and_round() {
    cells_pass_there_and_back(2, Some(2));
}
