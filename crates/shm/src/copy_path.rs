//! How a rank shows the others what it gives them: one buffer to all, or a part of it to each.
//!
//! What is small travels through staging, in steps; large parts are read where they
//! lie, in a window or in the giver's address space. Reading needs no lease: should the giver give up meanwhile, the reader
//! finds out as soon as it has read (`Team::was_given`).

use crate::library_copy::writes;
use crate::plan::Plan;
use crate::region::SLOT_LEN;
use crate::span::Span;
use crate::team::{Room, Team};
use crate::{Call, Fault};
use phalanx_algo::MemoryWay;
use std::ops::Range;
use std::time::Instant;

/// The bytes from which a part that lies in a window is read there.
pub(crate) const WINDOW_BYTES: usize = 2 << 10;
/// Bytes staged at once, where ranks have a core each: while one piece is read the next is written.
const PIECE_MIN: usize = 8 << 10;
const PIECE_MAX: usize = 128 << 10;

/// How the parts of an operation travel. The same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyPath {
    /// Through staging, so many bytes of each part at a time.
    Staged(usize),
    /// Read where they lie.
    ProcessVm,
}

impl CopyPath {
    /// The plan of an operation whose parts travel so.
    pub(crate) fn planned(self, plan: Plan<'_>) -> Plan<'_> {
        match self {
            Self::Staged(piece) => Plan { how: MemoryWay::Staged, piece, ..plan },
            Self::ProcessVm => Plan { how: MemoryWay::ProcessVm, ..plan },
        }
    }
}

/// The parts that a rank gives. The ranges are within the buffer, in bytes; `part(r)` is for rank `r`.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a> {
    pub(crate) buffer: Span,
    pub(crate) part: &'a dyn Fn(usize) -> Range<usize>,
    /// Bytes of the largest part that anybody gives.
    pub(crate) largest: usize,
    /// Whether all get the same part.
    pub(crate) same: bool,
    pub(crate) flow: Flow,
}

/// Which ranks give, and what is done with what is given. The same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Only some ranks give.
    OneWay,
    /// All give, and copy what they are given, so that of a pair each has claimed the cell that it writes next.
    Copied,
    /// All give, and combine what they are given.
    Combined,
}

/// The location of a giver's part for this rank.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PartLocation {
    Staged,
    /// Memory that this rank has mapped.
    Mapped(Span),
    /// This address in the giver's memory.
    Memory(u64),
}

/// Parts of fewer bytes are not worth handing their lines back, and larger ones leave the caches by themselves.
const HAND_BACK_BYTES: Range<usize> = 4 << 10..512 << 10;

/// The first word of a post, which says that the data follow in staging, and whether its lines are to be handed back; that they are in
/// the giver's memory, or else which window they are in (numbered from 3).
const STAGED: u64 = 0;
const STAGED_HAND_BACK: u64 = 1;
const MEMORY: u64 = 2;

/// Parts of more bytes leave the caches while they are copied: with shorter pieces the cells stay there.
const PAIR_CACHED_MAX: usize = 8 << 20;

/// Bytes of a part staged at once between two ranks whose cells change hands, where only one of them gives: halves of short parts, quarters of longer ones.
fn one_way_piece(largest: usize) -> usize {
    let half = (largest / 2).clamp(4 << 10, 32 << 10);
    if largest > PAIR_CACHED_MAX { half } else { half.max((largest / 4).min(64 << 10)) }
}

/// The same, where both give.
fn both_ways_piece(largest: usize) -> usize {
    (largest / 2).clamp(8 << 10, 128 << 10)
}

impl Team {
    /// How parts of at most `largest` bytes travel this way, if each giver shows `parts` of them; `one_way`: only some ranks give.
    pub(crate) fn path(&self, way: MemoryWay, largest: usize, parts: usize, one_way: bool) -> CopyPath {
        if way == MemoryWay::ProcessVm {
            return CopyPath::ProcessVm;
        }
        if self.region.is_swapped() {
            let piece = if one_way { one_way_piece(largest) } else { both_ways_piece(largest) };
            return CopyPath::Staged(piece / 64 * 64);
        }
        let piece =
            if self.is_crowded() { SLOT_LEN } else { (largest * parts / 2).clamp(PIECE_MIN, PIECE_MAX) };
        // Whole lines, so that no two readers share one; and elements are not split.
        CopyPath::Staged((piece / parts / 64).max(1) * 64)
    }

    /// Pieces that the parts take.
    pub(crate) fn steps(path: CopyPath, largest: usize) -> usize {
        match path {
            CopyPath::Staged(step) => largest.div_ceil(step).max(1),
            CopyPath::ProcessVm => 1,
        }
    }

    /// Shows the others where this rank's parts are, or their bytes of this step. `true`: they read in this rank's memory, which
    /// must not be touched until all are done; there is nothing to show in later steps.
    pub(crate) fn give(
        &mut self,
        offer: Parts<'_>,
        path: CopyPath,
        step: usize,
        piece: u64,
        call: &mut Call<'_>,
    ) -> Result<bool, Fault> {
        self.reserve(piece, Room::Cell, call)?;
        match path {
            CopyPath::ProcessVm => {}
            CopyPath::Staged(len) => {
                let window = offer.buffer.len() >= WINDOW_BYTES && self.windows.find(offer.buffer).is_some();
                if !window || step > 0 {
                    if !self.region.asks_ahead() {
                        // While this rank copies; not before, see `post`.
                        self.region.slot(self.rank, piece).claim(1);
                    }
                    let begun = self.begins_copy();
                    let hand_back = self.stage_parts(offer, len, step, piece);
                    self.ends_copy(self.rank, begun);
                    self.post(piece, &[if hand_back { STAGED_HAND_BACK } else { STAGED }]);
                    return Ok(false);
                }
            }
        }
        let (kind, base) = self.location(offer.buffer);
        let slot = self.given(self.rank, piece);
        if offer.same {
            self.post(piece, &[kind, base + (offer.part)(self.rank).start as u64]);
            return Ok(true);
        }
        for rank in 0..self.world_size {
            let at = base + (offer.part)(rank).start as u64;
            slot.write_word(rank, at);
        }
        self.post(piece, &[kind]);
        Ok(true)
    }

    /// The time, if it is measured how long copies take.
    pub(crate) fn begins_copy(&self) -> Option<Instant> {
        self.copy_clock.is_some().then(Instant::now)
    }

    /// A copy of bytes of `rank` has ended.
    pub(crate) fn ends_copy(&mut self, rank: usize, begun: Option<Instant>) {
        if let (Some(clock), Some(begun)) = (&mut self.copy_clock, begun) {
            clock.ended(rank, begun);
        }
    }

    /// The first word of a post that says where a buffer is, and where it begins there.
    pub(crate) fn location(&self, buffer: Span) -> (u64, u64) {
        match self.windows.find(buffer) {
            Some((window, offset)) => (MEMORY + window, offset),
            None => (MEMORY, buffer.addr()),
        }
    }

    /// Whether the readers are to hand the lines back.
    fn stage_parts(&mut self, offer: Parts<'_>, len: usize, step: usize, piece: u64) -> bool {
        let is_swapped = self.region.is_swapped();
        if is_swapped && offer.flow != Flow::OneWay {
            // Each writes what it has just read.
            self.fill(&offer, len, step, piece, false);
            return false;
        }
        let has_one_reader = !offer.same || self.world_size == 2;
        let is_worth_it =
            HAND_BACK_BYTES.contains(&offer.largest) && !is_swapped && !writes(self.region.library_copy());
        let may_hand_back = has_one_reader && is_worth_it && !self.is_crowded();
        let parts = if offer.same { 1 } else { self.world_size - 1 };
        let filling = self.stores.begin(offer.largest.min(len) * parts, may_hand_back);
        let filled = self.fill(&offer, len, step, piece, filling.past_caches);
        self.stores.end(&filling, filled);
        filling.hand_back
    }

    /// Copies this step's bytes to this rank's slot, and returns how many there are.
    fn fill(&self, offer: &Parts<'_>, len: usize, step: usize, piece: u64, past_caches: bool) -> usize {
        let slot = self.given(self.rank, piece);
        let stage = |at: usize, part: Range<usize>| {
            let from = offer.buffer.part(within(&part, len, step));
            let to = slot.part(at..at + from.len());
            if past_caches {
                to.stream_from(from);
            } else {
                self.region.put(to, from, offer.flow == Flow::Copied);
            }
            from.len()
        };
        if offer.same {
            return stage(0, (offer.part)(self.rank));
        }
        let pair = self.world_size == 2;
        self.peers().map(|reader| stage(offset(pair, reader, len), (offer.part)(reader))).sum()
    }

    /// Waits for the first post of a giver, and looks where its part of `len` bytes for this rank is. If it is staged, it
    /// begins in `staged`.
    pub(crate) fn find(
        &mut self,
        giver: usize,
        len: usize,
        same: bool,
        staged: Span,
        piece: u64,
        call: &mut Call<'_>,
    ) -> Result<PartLocation, Fault> {
        let words = self.arrived_with(giver, piece, staged, call)?.words();
        if words[0] == STAGED || words[0] == STAGED_HAND_BACK {
            return Ok(PartLocation::Staged);
        }
        let mut at = words[1];
        if !same {
            at = self.given(giver, piece).word(self.rank);
        }
        match words[0] {
            MEMORY => Ok(PartLocation::Memory(at)),
            window => match self.windows.part(window - MEMORY, giver, at, len) {
                Some(part) => Ok(PartLocation::Mapped(part)),
                None => Err(Fault::Counts { peer: giver, sent: 0, expected: len }),
            },
        }
    }

    /// Hands back to `giver` the lines in which it staged what this rank has read, if it wants them.
    pub(crate) fn hand_back(&self, giver: usize, piece: u64, staged: Span) {
        if self.region.slot(giver, piece).words()[0] == STAGED_HAND_BACK {
            staged.own_lines();
        }
    }

    /// The place of the bytes of this step that a giver has staged for this rank.
    pub(crate) fn staged(&self, giver: usize, len: usize, same: bool, bytes: usize, piece: u64) -> Span {
        let at = if same { 0 } else { offset(self.world_size == 2, self.rank, len) };
        self.given(giver, piece).part(at..at + bytes)
    }
}

/// Where in a slot the part for `reader` begins. Of a pair of ranks each has one reader, and what both write begins in one place.
fn offset(pair: bool, reader: usize, len: usize) -> usize {
    if pair { 0 } else { reader * len }
}

/// The bytes of a part that travel in one step of `len`.
pub(crate) fn within(part: &Range<usize>, len: usize, step: usize) -> Range<usize> {
    let start = part.end.min(part.start.saturating_add(step * len));
    start..part.end.min(start.saturating_add(len))
}
