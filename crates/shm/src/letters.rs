//! Letters: short runs of a pipe's bytes that travel beside their count, in lines of their own.
//!
//! What goes through the ring takes the lines of the ring and then the line with the count. The bytes of a small message fit into a letter, which
//! takes one pair of lines in all. A pipe stays a stream: a letter is written only while the ring holds nothing unread, so whoever finds a
//! letter and bytes in the ring reads the letter first.
//!
//! What is too long for a letter can be enclosed: the letter says in which [cell](crate::cells) it lies, and has a few bytes that go before it.

use crate::cells::CELLS;
use crate::region::Line;
use crate::sync::{AtomicU64, Ordering};
use std::ops::Range;

/// How many letters may lie unread, where nothing is enclosed in them. More go through the ring.
pub(crate) const FEW_LETTERS: usize = 4;
/// How many may lie unread where each can have a cell enclosed.
pub(crate) const MANY_LETTERS: usize = CELLS;
const _: () = assert!(FEW_LETTERS.is_power_of_two() && MANY_LETTERS.is_power_of_two());
const WORDS: usize = 15;
/// The most bytes in a letter. A frame has 40 besides its payload, once its signature is known.
pub(crate) const LETTER_LEN: usize = WORDS * 8;
/// The bits of a stamp that hold the length.
const LEN_BITS: u32 = 8;
/// The bit of the length that says that something is enclosed: the first word says what.
const ENCLOSES: usize = 1 << (LEN_BITS - 1);
const _: () = assert!(LETTER_LEN < ENCLOSES);
/// The most bytes that go before what is enclosed: with the stamp and what says what is enclosed they take one line.
pub(crate) const COVER_LEN: usize = 48;
/// What is enclosed in a letter and is longer is not read in one piece with what goes before it: whoever has read that knows where the rest belongs.
const ALONG_MAX: usize = 4 << 10;

/// One letter. All zero at first.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Letter {
    /// The letter's number, counted from 1, and its length. Written last.
    stamp: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// The letters that one end writes and the other reads, a power of two. All zero at first.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Letters<L: ?Sized = [Letter]> {
    /// How many were read to their end. The reader writes it.
    read: Line<AtomicU64>,
    letters: L,
}

/// The writing end's knowledge.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    written: u64,
    /// How many were read, as far as was last seen.
    read: u64,
}

/// The reading end's knowledge.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    read: u64,
    /// Bytes taken of the letter after those.
    taken: usize,
    /// What is in that letter, once some of it was taken: the other end can't change it any more.
    open: Option<Contents>,
}

/// What is in a letter. Never more than there can be, whatever the other end has written.
#[derive(Debug, Clone, Copy)]
struct Contents {
    /// Bytes in the letter itself.
    len: usize,
    enclosed: Option<Enclosed>,
}

/// Bytes in a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Enclosed {
    pub(crate) cell: usize,
    pub(crate) len: usize,
}

/// What was read of a letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) bytes: usize,
    /// The cell that was read to its end.
    pub(crate) cell: Option<usize>,
    /// Whether that cell was full, so that what is longer goes on in the next letter.
    pub(crate) more_follows: bool,
}

#[cfg(test)]
impl<const N: usize> Letters<[Letter; N]> {
    pub(crate) fn new() -> Self {
        let word = || AtomicU64::new(0);
        let letter = || Letter { stamp: word(), words: std::array::from_fn(|_| word()) };
        Self { letters: std::array::from_fn(|_| letter()), read: Line(word()) }
    }
}

impl Letters {
    /// Gives all of them this stamp, and this word instead of all of theirs.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn spoil(&self, stamp: u64, word: u64) {
        for letter in &self.letters {
            letter.words.iter().for_each(|place| place.store(word, Ordering::Relaxed));
            letter.stamp.store(stamp, Ordering::Release);
        }
    }

    /// Where the letter lies that comes after so many.
    #[inline]
    fn after(&self, letters: u64) -> &Letter {
        &self.letters[letters as usize & (self.letters.len() - 1)]
    }

    fn count(&self) -> u64 {
        self.letters.len() as u64
    }
}

impl Writer {
    #[cfg(all(test, not(loom)))]
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Whether a letter is free.
    #[inline]
    pub(crate) fn is_free(&mut self, letters: &Letters) -> bool {
        if self.written.wrapping_sub(self.read) >= letters.count() {
            // With what the reader did before, which has the words of the letter that is written over.
            self.read = letters.read.0.load(Ordering::Acquire);
        }
        self.written.wrapping_sub(self.read) < letters.count()
    }

    /// Writes a letter with these parts, if they are at most [`LETTER_LEN`] bytes together, and not none; returns how many. One must be [free](Self::is_free).
    #[inline]
    pub(crate) fn write<'a>(
        &mut self,
        letters: &Letters,
        parts: impl Iterator<Item = &'a [u8]>,
    ) -> Option<usize> {
        let mut bytes = [0; LETTER_LEN];
        let mut len = 0;
        for part in parts {
            bytes[len..].get_mut(..part.len())?.copy_from_slice(part);
            len += part.len();
        }
        if len == 0 {
            return None;
        }
        store(&letters.after(self.written).words, &bytes[..len.next_multiple_of(8)]);
        self.post(letters, len);
        Some(len)
    }

    /// Writes a letter with at most [`COVER_LEN`] bytes, after which come those that are enclosed. One must be [free](Self::is_free), and the cell written.
    pub(crate) fn enclose(&mut self, letters: &Letters, cover: &[u8], enclosed: Enclosed) {
        let words = &letters.after(self.written).words;
        words[0].store((enclosed.len as u64) << 8 | enclosed.cell as u64, Ordering::Relaxed);
        store(&words[1..], cover);
        self.post(letters, ENCLOSES | cover.len());
    }

    fn post(&mut self, letters: &Letters, len: usize) {
        let letter = letters.after(self.written);
        self.written += 1;
        letter.stamp.store(self.written << LEN_BITS | len as u64, Ordering::Release);
    }
}

/// Writes these bytes, word by word; the last word ends with zeros.
#[inline]
fn store(words: &[AtomicU64], bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks();
    for (word, bytes) in words.iter().zip(whole) {
        word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        words[whole.len()].store(u64::from_le_bytes(last), Ordering::Relaxed);
    }
}

/// Reads as many bytes as there are in `bytes`, word by word: a copy of a length that is not known takes as long as several words.
#[inline]
fn load(words: &[AtomicU64], bytes: &mut [u8]) {
    let (whole, rest) = bytes.as_chunks_mut();
    for (bytes, word) in whole.iter_mut().zip(words) {
        *bytes = word.load(Ordering::Relaxed).to_le_bytes();
    }
    if let Some(word) = words.get(whole.len()) {
        let last = word.load(Ordering::Relaxed).to_le_bytes();
        rest.iter_mut().zip(last).for_each(|(byte, word)| *byte = word);
    }
}

impl Reader {
    /// The stamp of the letter that comes next, if it is there.
    #[inline]
    fn stamp(&self, letters: &Letters) -> Option<u64> {
        let stamp = letters.after(self.read).stamp.load(Ordering::Acquire);
        let is_next = stamp >> LEN_BITS == (self.read + 1) & (u64::MAX >> LEN_BITS);
        is_next.then_some(stamp)
    }

    /// Whether a letter waits.
    #[inline]
    pub(crate) fn is_there(&self, letters: &Letters) -> bool {
        self.open.is_some() || self.stamp(letters).is_some()
    }

    /// What is in the letter that comes next, if it is there; cells have `cell_len` bytes.
    #[inline]
    fn contents(&self, letters: &Letters, cell_len: usize) -> Option<Contents> {
        if self.open.is_some() {
            return self.open;
        }
        let len = self.stamp(letters)? as usize & ((1 << LEN_BITS) - 1);
        if len & ENCLOSES == 0 {
            return Some(Contents { len: len.min(LETTER_LEN), enclosed: None });
        }
        let word = letters.after(self.read).words[0].load(Ordering::Relaxed);
        let enclosed = Enclosed { cell: word as usize % CELLS, len: ((word >> 8) as usize).min(cell_len) };
        Some(Contents { len: (len - ENCLOSES).min(COVER_LEN), enclosed: Some(enclosed) })
    }

    /// Takes the next letter, if it encloses nothing, none of it was taken, and all of it fits into `buffer`.
    #[inline]
    pub(crate) fn read_whole(&mut self, letters: &Letters, buffer: &mut [u8]) -> Option<usize> {
        if self.open.is_some() {
            return None;
        }
        let len = self.stamp(letters)? as usize & ((1 << LEN_BITS) - 1);
        if len > buffer.len().min(LETTER_LEN) {
            return None;
        }
        load(&letters.after(self.read).words, &mut buffer[..len]);
        self.read += 1;
        letters.read.0.store(self.read, Ordering::Release);
        Some(len)
    }

    /// Takes bytes of the next letter that fit into `buffer`, which is not empty. `None` if there is no letter. Cells have `cell_len` bytes;
    /// `read_cell` copies from one.
    pub(crate) fn read(
        &mut self,
        letters: &Letters,
        cell_len: usize,
        buffer: &mut [u8],
        read_cell: impl FnOnce(usize, Range<usize>, &mut [u8]),
    ) -> Option<Taken> {
        let contents = self.contents(letters, cell_len)?;
        let Contents { len, enclosed } = contents;
        let mut n = 0;
        if self.taken < len {
            let words = &letters.after(self.read).words[usize::from(enclosed.is_some())..];
            n = buffer.len().min(len - self.taken);
            if n == len {
                load(words, &mut buffer[..n]);
            } else {
                let mut bytes = [0; LETTER_LEN];
                load(words, &mut bytes[..len]);
                buffer[..n].copy_from_slice(&bytes[self.taken..self.taken + n]);
            }
            self.taken += n;
        }
        if let Some(Enclosed { cell, len: cell_len }) = enclosed
            && self.taken >= len
        {
            let left = len + cell_len - self.taken;
            let m = left.min(buffer.len() - n);
            if m > 0 && (n == 0 || left <= ALONG_MAX) {
                let start = self.taken - len;
                read_cell(cell, start..start + m, &mut buffer[n..n + m]);
                self.taken += m;
                n += m;
            }
        }
        self.open = Some(contents);
        let (mut cell, mut more_follows) = (None, false);
        if self.taken == len + enclosed.map_or(0, |enclosed| enclosed.len) {
            (self.read, self.taken, self.open) = (self.read + 1, 0, None);
            letters.read.0.store(self.read, Ordering::Release);
            cell = enclosed.map(|enclosed| enclosed.cell);
            more_follows = enclosed.is_some_and(|enclosed| enclosed.len == cell_len);
        }
        Some(Taken { bytes: n, cell, more_follows })
    }
}
