//! Letters: short runs of a pipe's bytes that travel beside their count, in lines of their own.
//!
//! What goes through the ring takes the lines of the ring and then the line with the count. The bytes of a small message fit into a letter, which
//! takes as many lines as they need. A pipe stays a stream: a letter is written only while the ring holds nothing unread, so whoever finds a
//! letter and bytes in the ring reads the letter first.
//!
//! The lines of a letter are to come from the other core side by side. So whoever looks for the next letter asks for all its lines at each look, not only for the one with its stamp. How
//! many there will be is a guess: as many as of the letter before.
//!
//! What is too long for a letter can be enclosed: the letter says in which [cell](crate::cells) it lies, and has a few bytes that go before it.

use crate::cells::CELLS;
use crate::region::Line;
use crate::span::fetch;
use crate::sync::{AtomicU64, Ordering};
use std::ops::Range;

/// How many letters may lie unread, a power of two, and how long each is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    count: usize,
    /// Words of a letter, its stamp among them: they fill pairs of lines.
    words: usize,
}

/// Letters where there are many ranks, whose pipes are to take little memory.
pub(crate) const SHORT_LETTERS: Shape = Shape { count: 4, words: 16 };
/// Letters where there are few ranks, and each letter can have a cell enclosed.
pub(crate) const LONG_LETTERS: Shape = Shape { count: CELLS, words: 48 };

impl Shape {
    /// Words of all letters.
    pub(crate) const fn all_words(self) -> usize {
        self.count * self.words
    }

    /// The most bytes in a letter. A frame has 40 besides its payload, once its signature is known.
    pub(crate) const fn letter_len(self) -> usize {
        (self.words - 1) * 8
    }
}

/// Bytes of a letter in the line of its stamp.
const FIRST_LINE_LEN: usize = 56;
const LETTER_LEN_MAX: usize = LONG_LETTERS.letter_len();
/// The bits of a stamp that hold the length.
const LEN_BITS: u32 = 10;
/// The bit of the length that says that something is enclosed: the first word says what.
const ENCLOSES: usize = 1 << (LEN_BITS - 1);
const _: () = assert!(LETTER_LEN_MAX < ENCLOSES && SHORT_LETTERS.letter_len() < LETTER_LEN_MAX);
/// The most bytes that go before what is enclosed: with the stamp and what says what is enclosed they take one line.
pub(crate) const COVER_LEN: usize = 48;
/// What is enclosed in a letter and is longer is not read in one piece with what goes before it: whoever has read that knows where the rest belongs.
const ALONG_MAX: usize = 4 << 10;

/// The letters that one end writes and the other reads. All zero at first.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Letters<W: ?Sized = [AtomicU64]> {
    /// How many were read to their end. The reader writes it.
    read: Line<AtomicU64>,
    /// The letters, one after another. A letter begins with its stamp: its number, counted from 1, and its length. The stamp is written last.
    words: W,
}

/// The writing end's knowledge.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    written: u64,
    /// How many were read, as far as was last seen.
    read: u64,
    /// Where the next letter begins.
    next: usize,
}

/// The reading end's knowledge.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    read: u64,
    /// Where the next letter begins.
    next: usize,
    /// Bytes of the letter that was read last. The next is expected to have as many.
    expected: usize,
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
impl<const WORDS: usize> Letters<[AtomicU64; WORDS]> {
    pub(crate) fn new() -> Self {
        let word = || AtomicU64::new(0);
        Self { words: std::array::from_fn(|_| word()), read: Line(word()) }
    }
}

impl Letters {
    /// Gives all of them this stamp, and this word instead of all of theirs.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn spoil(&self, stamp: u64, word: u64) {
        for letter in self.words.chunks(self.shape().words) {
            letter[1..].iter().for_each(|place| place.store(word, Ordering::Relaxed));
            letter[0].store(stamp, Ordering::Release);
        }
    }

    #[inline]
    fn shape(&self) -> Shape {
        if self.words.len() == LONG_LETTERS.all_words() { LONG_LETTERS } else { SHORT_LETTERS }
    }

    /// Where the letter begins that follows the one that begins there.
    #[inline]
    fn after(&self, letter: usize) -> usize {
        let next = letter + self.shape().words;
        if next < self.words.len() { next } else { 0 }
    }

    #[inline]
    fn stamp(&self, letter: usize) -> &AtomicU64 {
        &self.words[letter]
    }

    /// What is in the letter that begins there, in so many words.
    #[inline]
    fn content(&self, letter: usize, words: usize) -> &[AtomicU64] {
        &self.words[letter + 1..][..words]
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
        let count = letters.shape().count as u64;
        if self.written.wrapping_sub(self.read) >= count {
            // With what the reader did before, which has the words of the letter that is written over.
            self.read = letters.read.0.load(Ordering::Acquire);
        }
        self.written.wrapping_sub(self.read) < count
    }

    /// Writes a letter with these parts, if they fit into one and are not empty; returns how many bytes. One must be [free](Self::is_free).
    #[inline]
    pub(crate) fn write<'a>(
        &mut self,
        letters: &Letters,
        parts: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Option<usize> {
        let len: usize = parts.clone().map(<[u8]>::len).sum();
        if len == 0 || len > letters.shape().letter_len() {
            return None;
        }
        store_parts(letters.content(self.next, len.div_ceil(8)), parts, len);
        self.post(letters, len);
        Some(len)
    }

    /// Writes a letter with at most [`COVER_LEN`] bytes, after which come those that are enclosed. One must be [free](Self::is_free), and the cell written.
    pub(crate) fn enclose(&mut self, letters: &Letters, cover: &[u8], enclosed: Enclosed) {
        let words = letters.content(self.next, 1 + cover.len().div_ceil(8));
        words[0].store((enclosed.len as u64) << 8 | enclosed.cell as u64, Ordering::Relaxed);
        store(&words[1..], cover);
        self.post(letters, ENCLOSES | cover.len());
    }

    fn post(&mut self, letters: &Letters, len: usize) {
        self.written += 1;
        letters.stamp(self.next).store(self.written << LEN_BITS | len as u64, Ordering::Release);
        self.next = letters.after(self.next);
    }
}

/// Writes these parts, which have `len` bytes together, one behind the other.
#[inline]
fn store_parts<'a>(
    mut words: &[AtomicU64],
    mut parts: impl Iterator<Item = &'a [u8]> + Clone,
    mut len: usize,
) {
    loop {
        let with_next = parts.clone();
        let Some(part) = parts.next() else { return };
        if part.len() < len && !part.len().is_multiple_of(8) {
            return store_together(words, with_next, len);
        }
        store(words, part);
        words = &words[part.len() / 8..];
        len -= part.len();
    }
}

/// As [`store_parts`], where a word has bytes of two parts: they are put together on the stack first.
#[inline(never)]
fn store_together<'a>(words: &[AtomicU64], parts: impl Iterator<Item = &'a [u8]>, len: usize) {
    let mut bytes = [0; LETTER_LEN_MAX];
    let mut at = 0;
    for part in parts {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    store(words, &bytes[..len.next_multiple_of(8)]);
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
        if self.expected > FIRST_LINE_LEN {
            let words = &letters.content(self.next, self.expected.div_ceil(8))[FIRST_LINE_LEN / 8..];
            fetch(words.as_ptr().cast(), size_of_val(words));
        }
        let stamp = letters.stamp(self.next).load(Ordering::Acquire);
        let is_next = stamp >> LEN_BITS == (self.read + 1) & (u64::MAX >> LEN_BITS);
        is_next.then_some(stamp)
    }

    /// The next letter was read to its end.
    #[inline]
    fn pass(&mut self, letters: &Letters) {
        self.read += 1;
        self.next = letters.after(self.next);
        letters.read.0.store(self.read, Ordering::Release);
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
            return Some(Contents { len: len.min(letters.shape().letter_len()), enclosed: None });
        }
        let word = letters.content(self.next, 1)[0].load(Ordering::Relaxed);
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
        if len > buffer.len().min(letters.shape().letter_len()) {
            return None;
        }
        load(letters.content(self.next, len.div_ceil(8)), &mut buffer[..len]);
        self.expected = len;
        self.pass(letters);
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
            let before = usize::from(enclosed.is_some());
            let words = &letters.content(self.next, before + len.div_ceil(8))[before..];
            n = buffer.len().min(len - self.taken);
            if n == len {
                load(words, &mut buffer[..n]);
            } else {
                let mut bytes = [0; LETTER_LEN_MAX];
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
        self.expected = len;
        let (mut cell, mut more_follows) = (None, false);
        if self.taken == len + enclosed.map_or(0, |enclosed| enclosed.len) {
            (self.taken, self.open) = (0, None);
            self.pass(letters);
            cell = enclosed.map(|enclosed| enclosed.cell);
            more_follows = enclosed.is_some_and(|enclosed| enclosed.len == cell_len);
        }
        Some(Taken { bytes: n, cell, more_follows })
    }
}
