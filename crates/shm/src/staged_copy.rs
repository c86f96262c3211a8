//! How bytes are copied to and from the memory through which ranks exchange them.
//!
//! Where ranks claim the lines that they read, the C library's copy is the faster one on lines that are owned, and on few others. On some processors it is slow where
//! many lines must be taken from another core one after the other: there vectors are used, and pages read in turn. On others it is the faster one there too: [ranks measure](crate::copy_choice) which.

use crate::library_copy::{library_copy, reads, writes};
use crate::long_reads::LongReads;
use crate::region::Region;
use crate::span::{FETCH_BYTES, Span};
use crate::staging_probe::lines_are_claimed;

/// The C library copies fewer bytes even where their lines are not owned.
const FEW_BYTES: usize = 8 << 10;
/// Cells of messages from here on are read by vectors, and claimed, even where the C library reads the rest, up to [`CELL_BY_VECTORS_MAX`]: between near cores of an EPYC ("Turin") that was 3 to 6 % faster. What another rank has combined
/// is read so whatever its length: between far cores that was 3 to 7 % faster.
const BY_VECTORS_MIN: usize = 4 << 10;
const CELL_BY_VECTORS_MAX: usize = 8 << 10;

impl Region {
    /// Copies what this rank gives to where it is staged, or beside its flag; `owns` says that it has claimed these lines if any were to be claimed.
    pub(crate) fn put(&self, to: Span, from: Span, owns: bool) {
        if writes(self.library_copy()) {
            to.copy_own_from(from);
        } else {
            put(to, from, self.is_claimed(), owns);
        }
    }

    /// Copies what is staged, or lies beside a flag, to where it belongs. If this rank `writes_next` there, its lines are claimed.
    pub(crate) fn get(&self, to: Span, from: Span, writes_next: bool) {
        if reads(self.library_copy()) {
            to.copy_own_from(from);
        } else {
            get(to, from, self.is_claimed(), writes_next);
        }
    }

    /// Copies what another rank has combined to where it belongs. This rank writes there next.
    pub(crate) fn get_combined(&self, to: Span, from: Span) {
        if reads(self.library_copy()) && from.len() < BY_VECTORS_MIN {
            to.copy_own_from(from);
        } else if self.is_claimed() {
            to.copy_claimed_from(from);
        } else {
            to.copy_from(from);
        }
    }
}

/// Writes to a cell of a pipe.
pub(crate) fn write(cell: Span, from: &[u8]) {
    // SAFETY: borrowed until this returns, and only read.
    let from = unsafe { Span::new(from.as_ptr().cast_mut(), from.len()) };
    put(cell, from, lines_are_claimed(), true);
}

/// Writes to the ring of a pipe, whose lines its reader had last.
pub(crate) fn write_to_ring(ring: Span, from: &[u8]) {
    if writes(library_copy()) {
        // SAFETY: borrowed until this returns, and only read.
        ring.copy_own_from(unsafe { Span::new(from.as_ptr().cast_mut(), from.len()) });
    } else {
        ring.write(from);
    }
}

/// Reads from the ring of a pipe; `long_reads` are given where the message is longer than the caches.
pub(crate) fn read_from_ring(into: &mut [u8], ring: Span, long_reads: Option<&mut LongReads>) {
    // SAFETY: borrowed until this returns.
    let into = unsafe { Span::new(into.as_mut_ptr(), into.len()) };
    let read = || {
        if reads(library_copy()) {
            into.copy_own_from(ring);
        } else {
            into.copy_far_from(ring);
        }
    };
    match long_reads {
        Some(long_reads) => long_reads.copy(into, ring, read),
        None => read(),
    }
}

/// Reads from a cell of a pipe, which then belongs to this rank.
pub(crate) fn read(into: &mut [u8], cell: Span) {
    // SAFETY: borrowed until this returns.
    let into = unsafe { Span::new(into.as_mut_ptr(), into.len()) };
    let claimed = lines_are_claimed();
    let by_vectors = (BY_VECTORS_MIN..=CELL_BY_VECTORS_MAX).contains(&into.len());
    if claimed && reads(library_copy()) && !by_vectors {
        return into.copy_own_from(cell);
    }
    if !claimed {
        cell.fetch(FETCH_BYTES);
    }
    get(into, cell, claimed, true);
}

fn put(to: Span, from: Span, claimed: bool, owns: bool) {
    if claimed && (owns || from.len() < FEW_BYTES) {
        to.copy_own_from(from);
    } else {
        to.copy_from(from);
    }
}

fn get(to: Span, from: Span, claimed: bool, writes_next: bool) {
    if claimed && writes_next {
        to.copy_claimed_from(from);
    } else if claimed && from.len() < FEW_BYTES {
        to.copy_own_from(from);
    } else {
        to.copy_far_from(from);
    }
}
