//! The segment of a team: what lies where in the memory that its ranks share.
//!
//! ```text
//! | closed | control of rank 0 | … | control of rank P-1 | staging of rank 0: SLOTS slots | … | staging of rank P-1 |
//! ```
//!
//! Everything in a control is written by its rank alone (but for the sleepers of the waker) and read by all.

use crate::counter::Counter;
use crate::lease::{Closed, Lease};
use crate::library_copy::writes;
use crate::memory::Memory;
use crate::span::Span;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::waker::Waker;
use phalanx_core::{LibraryCopy, Result};
use std::mem::offset_of;
use std::os::fd::AsFd;

/// How many pieces of work a rank may be ahead of the slowest, where ranks have a core each: so many that a slot has left the reader's
/// cache when it is written again, for to take it from there costs more.
pub(crate) const SLOTS: u32 = 8;
/// The number of slots where ranks share cores. Three are under way in the longest pipeline; with more than one to spare, the staging of
/// all takes the caches from the data.
const SLOTS_CROWDED: u32 = 4;
/// The slots of a rank that are cells too, where these change hands: the last of them.
pub(crate) const CELLS: u32 = 4;
/// Bytes of one slot of staging.
pub(crate) const SLOT_LEN: usize = 256 << 10;
/// Bytes of a slice staged at once, where ranks have a core each: two of them are under way, and both fit the caches.
pub(crate) const SLICE_BYTES: usize = 32 << 10;
/// Words that travel in the lines of the flag itself: the smallest operations need no more from each rank.
const INLINE_WORDS: usize = phalanx_algo::INLINE_BYTES / 8;
/// Words in the line of the flag.
pub(crate) const LINE_WORDS: usize = (64 - offset_of!(Slot, words)) / 8;
/// Words in the first two lines, which come together: a slot's claim is of both.
const FIRST_WORDS: usize = phalanx_algo::INLINE_SUM_BYTES / 8;

// By these the way of an operation is chosen.
const _: () = assert!(SLOT_LEN == phalanx_algo::SLOT_BYTES);
const _: () = assert!(offset_of!(Slot, words) + FIRST_WORDS * 8 == 128);
/// Signatures kept for who finds that the others called something else. More than a rank can be ahead.
pub(crate) const SIGNATURES: usize = 16;
const SIGNATURE_WORDS: usize = 48;
/// The longest signature; its call site and way are cut to fit.
pub(crate) const SIGNATURE_LEN: usize = SIGNATURE_WORDS * 8;

const PAGE: usize = 4096;

/// Where the ranks of a team stage what they give each other. The same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Staging {
    /// Few slots, since ranks share cores.
    Crowded,
    /// Each rank in slots of its own.
    Own,
    /// Of two ranks each writes the cell that it has read before. The line of a cell that a core has just read can be written there at
    /// once; a line that the other core read last must be taken from it first. Reductions use the slots as in `Own`.
    Swapped,
    /// As `Swapped`; and whoever reads a cell claims its lines, so that they come once for reading and for writing.
    Claimed,
}

/// A cell on a cache line of its own. 128 bytes: lines are prefetched in pairs.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Line<T>(pub(crate) T);

/// The post of a rank for one piece of work.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Slot {
    /// The piece's number plus one, once the rest is valid.
    pub(crate) posted: Counter,
    pub(crate) fingerprint: AtomicU64,
    /// Small contributions whole, or where to find large ones.
    pub(crate) words: [AtomicU64; INLINE_WORDS],
}

/// The operation that a post is of.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct PostedCall {
    /// Its number.
    pub(crate) seq: AtomicU64,
    /// Which of the signatures is its.
    pub(crate) signature: AtomicU32,
}

/// The words that one rank writes for the others. All zero at first.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Control {
    /// Pieces (counted from the team's first) whose data this rank needs no more.
    pub(crate) done: Line<Counter>,
    /// Pieces of which this rank has combined its part.
    pub(crate) combined: Line<Counter>,
    pub(crate) waker: Waker,
    pub(crate) lease: Lease,
    /// The rank's process. 0 until a process has joined as this rank.
    pub(crate) pid: Line<AtomicU32>,
    /// The core it was last seen on, plus one.
    pub(crate) core: Line<AtomicU32>,
    pub(crate) slots: [Slot; SLOTS as usize],
    pub(crate) signatures: [Line<[AtomicU64; SIGNATURE_WORDS]>; SIGNATURES],
    /// Of each slot's post. Nobody reads them while all goes well. They are apart from the slots: a line that follows what others read is fetched by their
    /// processors too, and then whoever posts waits until it has it back.
    calls: Line<[PostedCall; SLOTS as usize]>,
}

/// The mapped segment.
#[derive(Debug)]
pub(crate) struct Region {
    memory: Memory,
    world_size: usize,
    staging: Staging,
    /// Which copies are the C library's, besides those to lines that are owned.
    library_copy: LibraryCopy,
}

const fn controls_len(world_size: usize) -> usize {
    (size_of::<Line<Closed>>() + world_size * size_of::<Control>()).next_multiple_of(PAGE)
}

/// Bytes of the segment of a team: about 2 MiB a rank, whatever the size of its messages.
pub const fn segment_len(world_size: usize) -> usize {
    controls_len(world_size) + world_size * SLOTS as usize * SLOT_LEN
}

impl Region {
    pub(crate) fn map(file: impl AsFd, world_size: usize) -> Result<Self> {
        let memory = Memory::map(file, segment_len(world_size))?;
        memory.populate(0, controls_len(world_size));
        Ok(Self { memory, world_size, staging: Staging::Crowded, library_copy: LibraryCopy::Never })
    }

    /// Sets where is staged. All ranks do, and set the same, when all are done with all pieces.
    pub(crate) fn stage(&mut self, rank: usize, staging: Staging) {
        self.staging = staging;
        let (writes, slots) = match staging {
            Staging::Crowded => (rank..rank + 1, SLOTS_CROWDED),
            Staging::Own => (rank..rank + 1, SLOTS),
            Staging::Swapped | Staging::Claimed => (0..self.world_size, SLOTS),
        };
        for rank in writes {
            self.memory.populate(self.staging_offset(rank, 0), slots as usize * SLOT_LEN);
        }
    }

    /// Sets which copies are the C library's.
    pub(crate) fn copy_by_library(&mut self, choice: LibraryCopy) {
        self.library_copy = choice;
    }

    /// Whether a rank asks for the lines that it writes next while it waits for others, and not when it writes them. It does where the C library's copies, which take whole
    /// lines without reading them, are not the faster ones.
    pub(crate) fn asks_ahead(&self) -> bool {
        !writes(self.library_copy)
    }

    /// Which copies are the C library's.
    pub(crate) fn library_copy(&self) -> LibraryCopy {
        self.library_copy
    }

    pub(crate) fn is_swapped(&self) -> bool {
        matches!(self.staging, Staging::Swapped | Staging::Claimed)
    }

    pub(crate) fn is_claimed(&self) -> bool {
        self.staging == Staging::Claimed
    }

    /// How many slots of a rank are used, a power of two: so many pieces it may be ahead of the slowest.
    pub(crate) fn slots(&self) -> u64 {
        if self.staging == Staging::Crowded { SLOTS_CROWDED } else { SLOTS }.into()
    }

    pub(crate) fn closed(&self) -> &Closed {
        let at = self.memory.at(0, size_of::<Closed>()).cast::<Closed>();
        // SAFETY: mapped for as long as `self`, aligned (the mapping is, to a page), zero or written as atomics only.
        unsafe { at.as_ref() }
    }

    pub(crate) fn control(&self, rank: usize) -> &Control {
        assert!(rank < self.world_size);
        let offset = size_of::<Line<Closed>>() + rank * size_of::<Control>();
        let at = self.memory.at(offset, size_of::<Control>()).cast::<Control>();
        // SAFETY: mapped for as long as `self`, aligned (all sizes are multiples of 128), zero or written as atomics; the words of a slot also by copies of their owner, which
        // it makes while nobody else reads or writes them (see `Slot::lines`).
        unsafe { at.as_ref() }
    }

    fn staging_offset(&self, rank: usize, slot: usize) -> usize {
        controls_len(self.world_size) + (rank * SLOTS as usize + slot) * SLOT_LEN
    }

    /// The slot in which `rank` stages the data of `piece`.
    pub(crate) fn staging(&self, rank: usize, piece: u64) -> Span {
        let offset = self.staging_offset(rank, (piece & (self.slots() - 1)) as usize);
        let at = self.memory.at(offset, SLOT_LEN);
        // SAFETY: mapped for as long as the region, which the team keeps while it works; slots are written between
        // `reserve` and `post` by their owner, and later by the one rank that combines a part of one before it says so, or
        // that is a part's only reader, before it is done.
        unsafe { Span::new(at.as_ptr(), SLOT_LEN) }
    }

    /// The slot in which `rank` stages what it gives others of `piece`, where that is cell number `cell` of the team.
    pub(crate) fn given(&self, rank: usize, piece: u64, cell: u64) -> Span {
        if !self.is_swapped() {
            return self.staging(rank, piece);
        }
        let cells = u64::from(CELLS);
        let writer = rank ^ ((cell / cells) & 1) as usize;
        let offset = self.staging_offset(writer, (u64::from(SLOTS - CELLS) + cell % cells) as usize);
        let at = self.memory.at(offset, SLOT_LEN);
        // SAFETY: as for `staging`. Four cells ago the other rank wrote here, and before that maybe a reduction: with both all were done
        // before this piece was reserved.
        unsafe { Span::new(at.as_ptr(), SLOT_LEN) }
    }

    /// The slot in which `rank` posts for `piece`.
    pub(crate) fn slot(&self, rank: usize, piece: u64) -> &Slot {
        self.post(rank, piece).0
    }

    /// The same, and the operation of the post.
    pub(crate) fn post(&self, rank: usize, piece: u64) -> (&Slot, &PostedCall) {
        let control = self.control(rank);
        let index = (piece & (self.slots() - 1)) as usize;
        (&control.slots[index], &control.calls.0[index])
    }
}

/// The first words: what is posted where no data travel in them.
pub(crate) type Words = [u64; 3];

impl Slot {
    pub(crate) fn words(&self) -> Words {
        std::array::from_fn(|i| self.words[i].load(Ordering::Relaxed))
    }

    /// Asks for its lines, which this rank will write next: the first two, and as many as `words` take.
    #[inline]
    pub(crate) fn claim(&self, words: usize) {
        let len = offset_of!(Self, words) + 8 * words.max(FIRST_WORDS);
        phalanx_kernels::claim(std::ptr::from_ref(self).cast(), len);
    }

    /// The bytes of the words.
    pub(crate) fn lines(&self) -> Span {
        let start = self.words.as_ptr().cast_mut().cast();
        // SAFETY: mapped for as long as the region, which the team keeps while it works. Their owner writes them after it has reserved the piece and before it raises the flag, and
        // the others read them after that, until they are done with the piece.
        unsafe { Span::new(start, INLINE_WORDS * 8) }
    }
}

impl Control {
    /// Keeps an encoded signature for the others to read, should they ask.
    pub(crate) fn keep_signature(&self, index: usize, encoded: &[u8]) {
        let words = &self.signatures[index % SIGNATURES].0;
        for (word, bytes) in words.iter().zip(encoded.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
        }
    }

    pub(crate) fn signature(&self, index: usize) -> [u8; SIGNATURE_LEN] {
        let mut encoded = [0; SIGNATURE_LEN];
        let words = &self.signatures[index % SIGNATURES].0;
        for (bytes, word) in encoded.chunks_mut(8).zip(words) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        encoded
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::create;

    #[test]
    fn ranks_see_each_others_lines_and_slots() {
        let file = create(segment_len(3)).unwrap();
        let mut regions: Vec<_> = (0..3).map(|_| Region::map(&file, 3).unwrap()).collect();
        regions.iter_mut().enumerate().for_each(|(rank, region)| region.stage(rank, Staging::Own));
        for (rank, region) in regions.iter().enumerate() {
            region.control(rank).done.0.publish(rank as u64);
            region.slot(rank, 13).posted.publish(13);
            region.control(rank).keep_signature(17, &[rank as u8; 9]);
        }
        for region in &regions {
            for rank in 0..3 {
                assert_eq!(region.control(rank).done.0.value(), rank as u64 + 1);
                assert_eq!(region.slot(rank, 13 - u64::from(SLOTS)).posted.value(), 14);
                assert_eq!(
                    region.control(rank).signature(17)[..10],
                    [[rank as u8; 9].as_slice(), &[0]].concat()
                );
            }
        }
    }

    /// In memory that ends with the last slot.
    #[test]
    fn every_slot_is_inside_and_nobody_elses() {
        let memory = Memory::private(segment_len(2));
        let region =
            Region { memory, world_size: 2, staging: Staging::Own, library_copy: LibraryCopy::Never };
        let all = || (0..2).flat_map(|rank| (0..u64::from(SLOTS)).map(move |piece| (rank, piece)));
        for (rank, piece) in all() {
            let (slot, lines) = (region.staging(rank, piece), region.slot(rank, piece).lines());
            let mark = [(rank + 1) as u8, piece as u8];
            for part in [
                slot.part(0..2),
                slot.part(SLOT_LEN - 2..SLOT_LEN),
                lines.part(INLINE_WORDS * 8 - 2..INLINE_WORDS * 8),
            ] {
                part.write(&mark);
            }
            let (slot, call) = region.post(rank, piece);
            slot.posted.publish(piece);
            call.seq.store(10 * rank as u64 + piece, Ordering::Relaxed);
        }
        for (rank, piece) in all() {
            let (slot, lines) = (region.staging(rank, piece), region.slot(rank, piece).lines());
            for part in [
                slot.part(0..2),
                slot.part(SLOT_LEN - 2..SLOT_LEN),
                lines.part(INLINE_WORDS * 8 - 2..INLINE_WORDS * 8),
            ] {
                let mut mark = [0; 2];
                part.read(&mut mark);
                assert_eq!(mark, [(rank + 1) as u8, piece as u8]);
            }
            let (slot, call) = region.post(rank, piece);
            assert_eq!(slot.posted.value(), piece + 1);
            assert_eq!(call.seq.load(Ordering::Relaxed), 10 * rank as u64 + piece);
        }
        assert!(!region.closed().is_closed());
    }

    /// All that two ranks give each other in sixteen pieces, cell by cell: whoever writes one has read it four cells before.
    #[test]
    fn cells_change_hands() {
        let memory = Memory::private(segment_len(2));
        let region =
            Region { memory, world_size: 2, staging: Staging::Swapped, library_copy: LibraryCopy::Never };
        let place = |span: Span| span.addr();
        for cell in 0..16 {
            let (mine, theirs) = (region.given(0, 100 + cell, cell), region.given(1, 100 + cell, cell));
            assert_ne!(place(mine), place(theirs));
            assert_eq!(place(region.given(0, 7, cell + u64::from(CELLS))), place(theirs));
            assert_eq!(place(region.given(1, 7, cell + u64::from(CELLS))), place(mine));
        }
    }

    #[test]
    fn memory_of_a_team_is_bounded() {
        for (world_size, mib) in [(2, 5), (8, 17), (64, 130)] {
            assert!(segment_len(world_size) <= mib << 20, "{world_size} ranks: {}", segment_len(world_size));
        }
        assert!(segment_len(2) > 4 << 20);
    }
}
