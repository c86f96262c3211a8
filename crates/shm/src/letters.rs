//! Letters: short runs of a pipe's bytes that travel beside their count, in lines of their own.
//!
//! What goes through the ring takes the lines of the ring and then the line with the count. The bytes of a small message fit into a letter, which
//! takes one pair of lines in all. A pipe stays a stream: a letter is written only while the ring holds nothing unread, so whoever finds a
//! letter and bytes in the ring reads the letter first.

use crate::region::Line;
use crate::sync::{AtomicU64, Ordering};

/// How many letters may lie unread. More go through the ring.
const LETTERS: usize = 4;
const WORDS: usize = 15;
/// The most bytes in a letter. A frame has 40 besides its payload, once its signature is known.
pub(crate) const LETTER_LEN: usize = WORDS * 8;
/// The bits of a stamp that hold the length.
const LEN_BITS: u32 = 8;
const _: () = assert!(LETTER_LEN < 1 << LEN_BITS);

/// One letter. All zero at first.
#[repr(C, align(128))]
#[derive(Debug)]
struct Letter {
    /// The letter's number, counted from 1, and its length. Written last.
    stamp: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// The letters that one end writes and the other reads. All zero at first.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Letters {
    letters: [Letter; LETTERS],
    /// How many were read to their end. The reader writes it.
    read: Line<AtomicU64>,
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
}

impl Letters {
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        let word = || AtomicU64::new(0);
        let letter = || Letter { stamp: word(), words: std::array::from_fn(|_| word()) };
        Self { letters: std::array::from_fn(|_| letter()), read: Line(word()) }
    }

    /// Gives all of them this stamp.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn spoil(&self, stamp: u64) {
        self.letters.iter().for_each(|letter| letter.stamp.store(stamp, Ordering::Release));
    }

    /// Where the letter lies that comes after so many.
    fn after(&self, letters: u64) -> &Letter {
        &self.letters[letters as usize % LETTERS]
    }
}

impl Writer {
    #[cfg(all(test, not(loom)))]
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Writes a letter, at most [`LETTER_LEN`] bytes in several parts. False if none is free.
    pub(crate) fn write(&mut self, letters: &Letters, parts: &[std::io::IoSlice<'_>]) -> bool {
        if self.written.wrapping_sub(self.read) >= LETTERS as u64 {
            // With what the reader did before, which has the words of the letter that is written over.
            self.read = letters.read.0.load(Ordering::Acquire);
            if self.written.wrapping_sub(self.read) >= LETTERS as u64 {
                return false;
            }
        }
        let mut bytes = [0; LETTER_LEN];
        let mut len = 0;
        for part in parts {
            bytes[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        }
        let letter = letters.after(self.written);
        for (word, bytes) in letter.words.iter().zip(bytes[..len.next_multiple_of(8)].chunks_exact(8)) {
            word.store(u64::from_le_bytes(bytes.try_into().expect("eight bytes")), Ordering::Relaxed);
        }
        self.written += 1;
        letter.stamp.store(self.written << LEN_BITS | len as u64, Ordering::Release);
        true
    }
}

impl Reader {
    /// The length of the letter that comes next, if it is there. Never more than there can be, whatever the other end has written.
    #[inline]
    fn len(&self, letters: &Letters) -> Option<usize> {
        let stamp = letters.after(self.read).stamp.load(Ordering::Acquire);
        let is_next = stamp >> LEN_BITS == (self.read + 1) & (u64::MAX >> LEN_BITS);
        is_next.then_some((stamp as usize & ((1 << LEN_BITS) - 1)).clamp(self.taken, LETTER_LEN))
    }

    /// Whether a letter waits.
    #[inline]
    pub(crate) fn is_there(&self, letters: &Letters) -> bool {
        self.len(letters).is_some()
    }

    /// Takes the bytes of the next letter that fit into `buffer`, which is not empty; how many. 0 if there is no letter.
    #[inline]
    pub(crate) fn read(&mut self, letters: &Letters, buffer: &mut [u8]) -> usize {
        let Some(len) = self.len(letters) else { return 0 };
        let mut bytes = [0; LETTER_LEN];
        let words = &letters.after(self.read).words[..len.div_ceil(8)];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        let n = buffer.len().min(len - self.taken);
        buffer[..n].copy_from_slice(&bytes[self.taken..self.taken + n]);
        self.taken += n;
        if self.taken == len {
            (self.read, self.taken) = (self.read + 1, 0);
            letters.read.0.store(self.read, Ordering::Release);
        }
        n
    }
}
