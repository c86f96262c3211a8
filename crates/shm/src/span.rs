//! Checked ranges of memory that other ranks may read and write.

use phalanx_kernels::Kernel;
use std::ops::Range;

/// Bytes of a user's buffer, of shared memory, or of scratch. A pointer with a length: unlike a slice it claims
/// nothing about what others do with the memory meanwhile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    start: *mut u8,
    len: usize,
}

/// The most bytes that are asked for, unless they come from far. More would be taken from a peer that is still writing them.
pub(crate) const FETCH_BYTES: usize = 512;
/// The same where lines come from far: a peer has written them when that arrives.
pub(crate) const FETCH_FAR_BYTES: usize = 8 << 10;

/// Asks for the lines of so many bytes, where the processor can be asked for that: a hint, which changes nothing.
#[inline]
pub(crate) fn fetch(start: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in (start.addr() & !63..start.addr() + len).step_by(64) {
        // SAFETY: it reads nothing, and no address can fault.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(
                start.with_addr(line).cast(),
            );
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (start, len);
}

/// The first bytes of a word; the others are zero. Nothing is written to memory and read back as a whole: a processor would wait for that.
///
/// # Safety
/// `at` is valid for reads of `len` bytes, less than eight.
#[inline]
unsafe fn read_few(at: *const u8, len: usize) -> u64 {
    let (mut word, mut read) = (0, 0);
    if len & 4 != 0 {
        // SAFETY: the first four.
        word = u64::from(u32::from_le(unsafe { at.cast::<u32>().read_unaligned() }));
        read = 4;
    }
    if len & 2 != 0 {
        // SAFETY: the next two.
        let two = u16::from_le(unsafe { at.wrapping_add(read).cast::<u16>().read_unaligned() });
        word |= u64::from(two) << (8 * read);
        read += 2;
    }
    if len & 1 != 0 {
        // SAFETY: the last.
        word |= u64::from(unsafe { at.wrapping_add(read).read() }) << (8 * read);
    }
    u64::from_le(word)
}

impl Span {
    pub(crate) const EMPTY: Self = Self { start: std::ptr::dangling_mut(), len: 0 };

    /// # Safety
    /// As long as the span or a part of it is used, the memory must be valid for reads, and for writes if it is written
    /// through the span; and the protocol of the team must keep other ranks from writing what this one reads or writes.
    pub(crate) const unsafe fn new(start: *mut u8, len: usize) -> Self {
        Self { start, len }
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// The span's address, in the form in which other processes are told of it.
    pub(crate) fn addr(self) -> u64 {
        self.start.expose_provenance() as u64
    }

    pub(crate) fn as_ptr(self) -> *mut u8 {
        self.start
    }

    /// # Panics
    /// If the range is not inside.
    pub(crate) fn part(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} bytes", self.len);
        // SAFETY: the start was just checked to be inside.
        let start = unsafe { self.start.add(range.start) };
        Self { start, len: range.len() }
    }

    /// Copies as many bytes as this has.
    ///
    /// # Panics
    /// If `from` has another length.
    pub(crate) fn copy_from(self, from: Self) {
        assert_eq!(self.len, from.len, "spans of one length are copied");
        // SAFETY: both are valid for their length, as promised when they were made; they may overlap.
        unsafe { phalanx_kernels::copy(from.start, self.start, self.len) };
    }

    /// As [`copy_from`](Self::copy_from), where another core has written `from`.
    ///
    /// # Panics
    /// If `from` has another length.
    pub(crate) fn copy_far_from(self, from: Self) {
        assert_eq!(self.len, from.len, "spans of one length are copied");
        // SAFETY: as for `copy_from`.
        unsafe { phalanx_kernels::copy_by_pages(from.start, self.start, self.len) };
    }

    /// As [`copy_from`](Self::copy_from), by the C library's copy except where that is slow: for memory that no other core has touched, or where that was measured to be faster.
    ///
    /// # Panics
    /// If `from` has another length.
    pub(crate) fn copy_own_from(self, from: Self) {
        assert_eq!(self.len, from.len, "spans of one length are copied");
        // SAFETY: as for `copy_from`.
        unsafe { phalanx_kernels::copy_own(from.start, self.start, self.len) };
    }

    /// As [`copy_from`](Self::copy_from), where another core has written `from` and this one will write it next: it owns the lines afterwards.
    ///
    /// # Panics
    /// If `from` has another length.
    pub(crate) fn copy_claimed_from(self, from: Self) {
        assert_eq!(self.len, from.len, "spans of one length are copied");
        // SAFETY: as for `copy_from`.
        unsafe { phalanx_kernels::copy_claimed(from.start, self.start, self.len) };
    }

    /// As [`copy_from`](Self::copy_from), past the caches.
    ///
    /// # Panics
    /// If `from` has another length.
    pub(crate) fn stream_from(self, from: Self) {
        assert_eq!(self.len, from.len, "spans of one length are copied");
        // SAFETY: as for `copy_from`.
        unsafe { phalanx_kernels::copy_past_caches(from.start, self.start, self.len) };
    }

    /// Copies its bytes to `into`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub(crate) fn read(self, into: &mut [u8]) {
        // SAFETY: borrowed until this returns.
        unsafe { Self::new(into.as_mut_ptr(), into.len()) }.copy_from(self);
    }

    /// The `n`th of the words in it.
    ///
    /// # Panics
    /// If it is not inside.
    pub(crate) fn word(self, n: usize) -> u64 {
        let mut word = [0; 8];
        self.part(n * 8..n * 8 + 8).read(&mut word);
        u64::from_ne_bytes(word)
    }

    /// Gives its bytes to `put` as words with their numbers, of which the last is filled up with zeros.
    #[inline(always)]
    pub(crate) fn each_word(self, mut put: impl FnMut(usize, u64)) {
        let whole = self.len / 8;
        for n in 0..whole {
            // SAFETY: eight bytes of it begin there, which are valid for reads, as promised when it was made.
            put(n, unsafe { self.start.wrapping_add(8 * n).cast::<u64>().read_unaligned() });
        }
        if !self.len.is_multiple_of(8) {
            // SAFETY: so many begin there.
            put(whole, unsafe { read_few(self.start.wrapping_add(8 * whole), self.len % 8) });
        }
    }

    /// Writes the `n`th of the words in it.
    ///
    /// # Panics
    /// If it is not inside.
    pub(crate) fn write_word(self, n: usize, word: u64) {
        self.part(n * 8..n * 8 + 8).write(&word.to_ne_bytes());
    }

    /// Copies `from` to its bytes.
    ///
    /// # Panics
    /// If the lengths differ.
    pub(crate) fn write(self, from: &[u8]) {
        // SAFETY: borrowed until this returns, and only read.
        self.copy_from(unsafe { Self::new(from.as_ptr().cast_mut(), from.len()) });
    }

    /// Asks for its lines, if it has `most` bytes or fewer: they come side by side, and beside whatever is read next.
    #[inline]
    pub(crate) fn fetch(self, most: usize) {
        if self.len <= most {
            fetch(self.start, self.len);
        }
    }

    /// Asks for its lines with the right to write them, which this core will do.
    #[inline]
    pub(crate) fn claim(self) {
        phalanx_kernels::claim(self.start, self.len);
    }

    /// Makes this core the owner of the lines that begin in it, by writing a byte of each: what was in them is lost.
    pub(crate) fn own_lines(self) {
        let first = self.start.addr().next_multiple_of(64) - self.start.addr();
        for line in (first..self.len).step_by(64) {
            // SAFETY: inside, and valid for writes, as promised when it was made.
            let at = unsafe { self.start.add(line) };
            // SAFETY: as above. Volatile, or the compiler would see that nobody looks.
            unsafe { at.write_volatile(0) };
        }
    }

    /// Writes the combination of all `sources`, in this order, to each of `into`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub(crate) fn reduce(into: &[Self], sources: &[Self], kernel: &Kernel, divide_by: usize) {
        let len = into[0].len;
        assert!(into.iter().chain(sources).all(|s| s.len == len), "spans of one length are combined");
        if len == 0 {
            return;
        }
        if let ([to], [one, other]) = (into, sources) {
            let (to, from) = ([to.start], [one.start.cast_const(), other.start.cast_const()]);
            // SAFETY: as below.
            return unsafe { kernel.reduce(&to, &from, len, divide_by) };
        }
        let to: List<*mut u8> = List::new(into.iter().map(|s| s.start), std::ptr::null_mut());
        let from: List<*const u8> = List::new(sources.iter().map(|s| s.start.cast_const()), std::ptr::null());
        // SAFETY: all are valid for `len` bytes, as promised when they were made. Spans of one operation lie in
        // different memory or are the same: users' buffers, slots and scratch never overlap in part.
        unsafe { kernel.reduce(to.as_slice(), from.as_slice(), len, divide_by) };
    }
}

/// A list that needs no memory of its own while it is short: operations of 200 ns have no time to allocate.
pub(crate) struct List<T> {
    few: [T; SHORT],
    len: usize,
    /// All of them, if they are not few.
    many: Vec<T>,
}

const SHORT: usize = 16;

impl<T: Copy> List<T> {
    /// The items; `filler` stands where there are none. Always inlined, or else the list would be copied to where it is used.
    #[inline(always)]
    pub(crate) fn new(items: impl ExactSizeIterator<Item = T>, filler: T) -> Self {
        let mut list = Self { few: [filler; SHORT], len: items.len(), many: Vec::new() };
        if list.len > SHORT {
            list.many = items.collect();
        } else {
            list.few.iter_mut().zip(items).for_each(|(slot, item)| *slot = item);
        }
        list
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        if self.len > SHORT { &mut self.many } else { &mut self.few[..self.len] }
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        if self.len > SHORT { &self.many } else { &self.few[..self.len] }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
