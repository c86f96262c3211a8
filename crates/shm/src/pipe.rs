//! A pipe: a ring of bytes in shared memory, from one rank to another. What is short goes past the ring in [letters](Letters); where two ranks are
//! faster so, what is longer in [cells](crate::cells).
//!
//! Each end counts the bytes it has moved, publishes that on a line of its own, and remembers what it last saw of the other's:
//! while there is room, or there are bytes, that is known already, neither reads a line that the other writes.

use crate::cells::{Cells, Hand};
use crate::copy_probe::kernel_copies_are_worth_it;
use crate::last_level_cache::outgrows_cache;
use crate::letters::{COVER_LEN, Enclosed, Letters, Reader, Shape, Writer};
use crate::library_copy::{library_copy, writes};
use crate::long_reads::LongReads;
use crate::region::Line;
use crate::span::Span;
use crate::staged_copy;
use crate::staging_probe::lines_are_handed_back;
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use phalanx_transport::Direction;
use std::io::IoSlice;
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
pub(crate) struct Pipe<W: ?Sized = [AtomicU64]> {
    /// Bytes moved since the beginning. Each end writes its own.
    moved: [Line<AtomicU64>; 2],
    /// Hardly ever written, so its line is in both caches.
    signs: Line<Signs>,
    letters: Letters<W>,
}

/// Bytes of a pipe with such letters.
pub(crate) const fn pipe_len(letters: Shape) -> usize {
    size_of::<Pipe<[AtomicU64; 0]>>() + letters.all_words() * size_of::<AtomicU64>()
}

#[repr(C)]
#[derive(Debug)]
struct Signs {
    /// Whether an end wants to be woken when the other moves on.
    waits: [AtomicU32; 2],
    /// Whether the pair has cells, in words of [`has_cells`](Pipe::has_cells): 0 until one end has said it.
    cells: AtomicU32,
}

#[cfg(test)]
impl Signs {
    fn new() -> Self {
        let word = || AtomicU32::new(0);
        Self { waits: [word(), word()], cells: word() }
    }
}

const NO_CELLS: u32 = 1;
const WITH_CELLS: u32 = 2;

impl<W: ?Sized> Pipe<W> {
    /// Whether the pair of ranks whose pipe this is has cells. Whoever asks first decides it for both: `wanted` is what it says.
    pub(crate) fn has_cells(&self, wanted: bool) -> bool {
        let ours = if wanted { WITH_CELLS } else { NO_CELLS };
        let cells = &self.signs.0.cells;
        match cells.compare_exchange(0, ours, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => wanted,
            Err(theirs) => theirs == WITH_CELLS,
        }
    }
}

/// The memory through which bytes go that are too long for a letter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) ring: Span,
    pub(crate) cells: Cells,
}

// SAFETY: it says where memory is. Whoever makes a span promises that the protocol keeps others away from what is used through it: here that is the pipe's, whose ends are used by
// one thread at a time, whichever it is.
unsafe impl Send for Room {}

/// Parts of a message, of which more and more is written.
#[derive(Debug)]
struct Parts<'a> {
    parts: &'a [IoSlice<'a>],
    /// Bytes written of the first of them.
    written: usize,
    left: usize,
}

impl<'a> Parts<'a> {
    fn new(parts: &'a [IoSlice<'a>]) -> Self {
        let left = parts.iter().map(|part| part.len()).sum();
        let mut all = Self { parts, written: 0, left };
        all.pass(0);
        all
    }

    /// The rest of the first of them; empty if nothing is left.
    fn first(&self) -> &'a [u8] {
        self.parts.first().map_or(&[], |part| &part[self.written..])
    }

    /// So many bytes of the first were written.
    fn pass(&mut self, n: usize) {
        self.written += n;
        self.left -= n;
        while self.parts.first().is_some_and(|part| self.written == part.len()) {
            (self.parts, self.written) = (&self.parts[1..], 0);
        }
    }
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
    /// Of the reading end.
    long_reads: LongReads,
}

/// How often a reader looks for a letter before it says that there is none.
const LOOKS: usize = if cfg!(loom) { 1 } else { 8 };

/// Whether the reader of a ring hands its lines back: where all lines are, and where the kernel copies slowly, so that long messages are not [lent](crate::loan) but go through the
/// ring. There, on an EPYC ("Milan") with cells, messages of 1 MiB take 0.89 of the time with it, and those of 4 MiB 0.76. Not where the C library's copy writes lines that the other core has had: on an EPYC
/// ("Turin") messages of 1 to 16 MiB take 0.85 of the time so.
fn ring_is_handed_back() -> bool {
    !writes(library_copy()) && (lines_are_handed_back() || !kernel_copies_are_worth_it())
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
        Self {
            direction,
            capacity,
            moved: 0,
            published: 0,
            limit,
            letters_out,
            letters_in,
            long_reads: LongReads::default(),
        }
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
    pub(crate) fn is_waited_for(&self, pipe: &Pipe) -> bool {
        // Pairs with the fence in `is_ready`: either we see that the other waits, or it sees how far we have come.
        fence(Ordering::SeqCst);
        let waits = &pipe.signs.0.waits[self.other()];
        let is_waited_for = waits.load(Ordering::Relaxed) != 0;
        if is_waited_for {
            waits.store(0, Ordering::Relaxed);
        }
        is_waited_for
    }

    /// Asks the other end to wake this rank when it moves on. What this rank waits for must be looked for once more after this.
    pub(crate) fn asks(&self, pipe: &Pipe) {
        pipe.signs.0.waits[self.own()].store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Whether bytes can be moved. If not, the other end is asked to wake this rank when they can.
    pub(crate) fn is_ready(&mut self, pipe: &Pipe) -> bool {
        if self.left() > 0 {
            return true;
        }
        self.asks(pipe);
        self.look(pipe);
        self.left() > 0 || self.direction == Direction::Recv && self.letters_in.is_there(&pipe.letters)
    }

    /// Whether there is room for so many bytes, whatever way they go: a letter is written only while the ring is empty, and what no cell takes the ring does.
    #[inline]
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

    /// Writes as much of `parts` as there is room for; `hand` has the cells that this rank may write.
    #[inline]
    pub(crate) fn write(
        &mut self,
        pipe: &Pipe,
        room: &Room,
        hand: &mut Hand,
        parts: &[IoSlice<'_>],
        wake: &impl Fn(),
    ) -> usize {
        if let Some(len) = self.write_letter(pipe, parts, wake) {
            return len;
        }
        let parts = Parts::new(parts);
        self.write_long(pipe, room, hand, parts, wake)
    }

    /// Writes `parts` into a letter, if they fit and one is free; returns how many bytes.
    #[inline]
    fn write_letter(&mut self, pipe: &Pipe, parts: &[IoSlice<'_>], wake: &impl Fn()) -> Option<usize> {
        if !self.is_drained(pipe) || !self.letters_out.is_free(&pipe.letters) {
            return None;
        }
        let len = self.letters_out.write(&pipe.letters, parts.iter().map(|part| &part[..]))?;
        if self.is_waited_for(pipe) {
            wake();
        }
        Some(len)
    }

    /// As [`write`](Self::write), without what fits into a letter.
    #[inline(never)]
    fn write_long(
        &mut self,
        pipe: &Pipe,
        room: &Room,
        hand: &mut Hand,
        mut parts: Parts<'_>,
        wake: &impl Fn(),
    ) -> usize {
        let len = parts.left;
        while parts.left > 0 && self.is_drained(pipe) && self.write_cell(pipe, room.cells, hand, &mut parts) {
            if self.is_waited_for(pipe) {
                wake();
            }
        }
        while parts.left > 0 {
            let part = parts.first();
            let copy = |of: Range<usize>, at: Range<usize>| {
                staged_copy::write_to_ring(room.ring.part(at), &part[of]);
            };
            let n = self.transfer(pipe, part.len(), copy, wake);
            parts.pass(n);
            if n < part.len() {
                break;
            }
        }
        if self.publish(pipe) {
            wake();
        }
        len - parts.left
    }

    /// Writes some of what is left of `parts` into a cell. False if there is no cell, or no letter that would name it.
    fn write_cell(&mut self, pipe: &Pipe, cells: Cells, hand: &mut Hand, parts: &mut Parts<'_>) -> bool {
        if cells.len() == 0 || !self.letters_out.is_free(&pipe.letters) {
            return false;
        }
        let Some(number) = hand.take() else { return false };
        let cell = cells.cell(number);
        let mut cover: &[u8] = &[];
        if parts.first().len() <= COVER_LEN {
            cover = parts.first();
            parts.pass(cover.len());
        }
        let len = parts.left.min(cells.len());
        let mut at = 0;
        while at < len {
            let part = parts.first();
            let n = part.len().min(len - at);
            staged_copy::write(cell.part(at..at + n), &part[..n]);
            parts.pass(n);
            at += n;
        }
        self.letters_out.enclose(&pipe.letters, cover, Enclosed { cell: number, len });
        true
    }

    /// Reads as many bytes as there are, or some of them, of a message that has `whole` bytes; cells that were read to their end go into `hand`.
    #[inline]
    pub(crate) fn read(
        &mut self,
        pipe: &Pipe,
        room: &Room,
        hand: &mut Hand,
        buffer: &mut [u8],
        whole: usize,
        wake: &impl Fn(),
    ) -> usize {
        if self.is_empty(pipe) {
            return 0;
        }
        match self.letters_in.read_whole(&pipe.letters, buffer) {
            Some(n @ 1..) => n,
            _ => self.read_long(pipe, room, hand, buffer, whole, wake),
        }
    }

    /// Whether the other end has written nothing more. Looks for a letter a few times: whoever reads may need longer until it looks again than a letter needs.
    #[inline]
    fn is_empty(&mut self, pipe: &Pipe) -> bool {
        if self.left() > 0 || self.letters_in.is_there(&pipe.letters) {
            return false;
        }
        self.look(pipe);
        self.left() == 0 && !(0..LOOKS).any(|_| self.letters_in.is_there(&pipe.letters))
    }

    /// As [`read`](Self::read), for all but a letter that is read whole.
    #[inline(never)]
    fn read_long(
        &mut self,
        pipe: &Pipe,
        room: &Room,
        hand: &mut Hand,
        buffer: &mut [u8],
        whole: usize,
        wake: &impl Fn(),
    ) -> usize {
        let mut n = 0;
        let read_cell = |cell: usize, range: Range<usize>, buffer: &mut [u8]| {
            staged_copy::read(buffer, room.cells.cell(cell).part(range));
        };
        while n < buffer.len()
            && let Some(taken) =
                self.letters_in.read(&pipe.letters, room.cells.len(), &mut buffer[n..], read_cell)
        {
            n += taken.bytes;
            if let Some(cell) = taken.cell {
                hand.put(cell);
            }
            // To look for a letter takes its line from the writer: only where more is to be expected.
            if !taken.more_follows {
                break;
            }
        }
        if n > 0 {
            return n;
        }
        let len = buffer.len();
        let mut long_reads = outgrows_cache(whole).then(|| std::mem::take(&mut self.long_reads));
        let copy = |of: Range<usize>, at: Range<usize>| {
            let written = room.ring.part(at);
            staged_copy::read_from_ring(&mut buffer[of], written, long_reads.as_mut());
            if written.len() >= HAND_BACK_BYTES && ring_is_handed_back() {
                written.own_lines();
            }
        };
        let n = self.transfer(pipe, len, copy, wake);
        if let Some(long_reads) = long_reads {
            self.long_reads = long_reads;
        }
        if self.publish(pipe) {
            wake();
        }
        n
    }
}

#[cfg(all(test, not(loom)))]
impl End {
    /// Whether it has timed how it writes what it reads.
    pub(crate) fn has_long_reads(&self) -> bool {
        self.long_reads.have_timed()
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod models;
