//! Cells: memory of a pair of ranks that both directions between them share.
//!
//! A line that a core has just read it can write at once; one that the other core read last must be taken from it first. So whoever has read a
//! message in a cell owns the cell, and writes its own next message there. A cell has one owner at any time: it passes to the other end with the
//! letter that names it.

use crate::span::Span;

/// How many cells a pair has. Each end begins with half of them.
pub(crate) const CELLS: usize = 16;

/// The memory of a pair's cells: half of them behind the ring of either direction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cells {
    halves: [Span; 2],
    len: usize,
}

impl Cells {
    /// No cells: what names one names nothing.
    pub(crate) const NONE: Self = Self { halves: [Span::EMPTY; 2], len: 0 };

    /// Cells in two halves of one length.
    pub(crate) fn new(halves: [Span; 2]) -> Self {
        let len = halves[0].len() / (CELLS / 2);
        Self { halves, len }
    }

    /// Bytes of a cell.
    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// The cell of this number; whatever the number, one of the pair's.
    pub(crate) fn cell(self, number: usize) -> Span {
        let place = number % (CELLS / 2);
        self.halves[number / (CELLS / 2) % 2].part(place * self.len..(place + 1) * self.len)
    }
}

/// The cells that one end owns, the one that it has read last on top.
#[derive(Debug)]
pub(crate) struct Hand {
    cells: [u8; CELLS],
    len: usize,
    /// Which those are: a bit for each.
    owned: u16,
}
const _: () = assert!(CELLS == u16::BITS as usize);

impl Hand {
    /// What an end owns at first: the ends of a pair are 0 and 1.
    pub(crate) fn of_end(end: usize) -> Self {
        let mut hand = Self { cells: [0; CELLS], len: 0, owned: 0 };
        let first = end % 2 * (CELLS / 2);
        (first..first + CELLS / 2).for_each(|cell| hand.put(cell));
        hand
    }

    /// The cell that is to be written next, which then belongs to the other end.
    pub(crate) fn take(&mut self) -> Option<usize> {
        self.len = self.len.checked_sub(1)?;
        let cell = self.cells[self.len];
        self.owned &= !(1 << cell);
        Some(cell.into())
    }

    /// The owned cells, the one on top last.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn cells(&self) -> impl Iterator<Item = usize> {
        self.cells[..self.len].iter().map(|&cell| cell.into())
    }

    /// A cell was read to its end. One that was owned already is named by nonsense, and stays where it is.
    ///
    /// # Panics
    /// If there is no such cell.
    pub(crate) fn put(&mut self, cell: usize) {
        assert!(cell < CELLS, "cell {cell} of {CELLS}");
        if self.owned & 1 << cell == 0 {
            self.owned |= 1 << cell;
            self.cells[self.len] = cell as u8;
            self.len += 1;
        }
    }
}
