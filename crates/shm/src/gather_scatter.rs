//! The operations in which ranks take what others give: all_gather, gather, scatter, all_to_all, and broadcasts that are [staged](crate::broadcast). All are one.

use crate::copy_path::{CopyPath, Flow, PartLocation, Parts, within};
use crate::last_level_cache::outgrows_cache;
use crate::plan::{Kind, Plan};
use crate::span::Span;
use crate::team::{Room, Team};
use crate::{Call, Fault};
use phalanx_algo::MemoryWay;
use phalanx_core::{Layout, OpKind};
use std::ops::Range;

/// The most bytes whose lines a rank claims before it knows whether it will stage anything there: where vectors write them, and where the C library's copy does, which
/// from there on takes whole lines without reading them.
const CLAIMED_AHEAD_MAX: usize = 8 << 10;
const CLAIMED_AHEAD_MAX_BY_LIBRARY: usize = 2 << 10;

/// A pattern of giving and taking. Ranges are in bytes; they are known where they are named and need not be elsewhere.
#[derive(Clone, Copy)]
pub struct Transfer<'a> {
    /// Whether a giver gives the same part to all.
    pub same: bool,
    /// The ranks that give. The same on all ranks.
    pub givers: Givers,
    /// Bytes of the largest part that any rank gives another. The same on all ranks.
    pub largest: usize,
    /// The ranges of the source that this rank gives to each, if it gives.
    pub part: &'a dyn Fn(usize) -> Range<usize>,
    /// The ranges of the output for what each gives this rank. `None` if it takes nothing.
    pub place: Option<&'a dyn Fn(usize) -> Range<usize>>,
    /// The part that this rank gives itself, if it is to be copied here: while others read this rank's memory, or fill theirs.
    pub own: Option<&'a Own>,
    /// The blocks of which these ranges are made, where all ranks know them. The same on all ranks.
    pub layout: Option<&'a Layout>,
}

/// The ranks that give in an operation. The others only take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Givers {
    /// Every rank.
    All,
    /// This one.
    Only(usize),
    /// Every rank but this one.
    AllBut(usize),
}

impl Givers {
    pub(crate) fn contain(self, rank: usize) -> bool {
        match self {
            Self::All => true,
            Self::Only(giver) => rank == giver,
            Self::AllBut(taker) => rank != taker,
        }
    }

    /// How many of so many ranks give.
    pub(crate) fn count(self, world_size: usize) -> usize {
        match self {
            Self::All => world_size,
            Self::Only(_) => 1,
            Self::AllBut(_) => world_size - 1,
        }
    }
}

/// The part of a rank for itself, in bytes.
#[derive(Debug, Clone)]
pub struct Own {
    /// Its range of the source.
    pub from: Range<usize>,
    /// Its range of the output, as long.
    pub to: Range<usize>,
}

impl Transfer<'_> {
    /// Whether every rank gives and takes.
    pub(crate) fn both_ways(&self) -> bool {
        self.givers == Givers::All
    }

    /// Whether, in one buffer, what is taken replaces what was given.
    fn replaces(&self) -> bool {
        self.both_ways() && !self.same
    }

    fn kind(&self) -> Kind {
        if self.same { Kind::Share } else { Kind::Deal }
    }

    fn flow(&self) -> Flow {
        if self.both_ways() { Flow::Copied } else { Flow::OneWay }
    }

    /// The bytes that all ranks write to their outputs, if all parts are as long as the largest.
    fn written(&self, world_size: usize) -> usize {
        let parts = match (self.givers, self.same) {
            (Givers::All, _) => world_size * world_size,
            // A broadcast: its root writes nothing.
            (Givers::Only(_), true) => world_size - 1,
            (Givers::Only(_), false) | (Givers::AllBut(_), _) => world_size,
        };
        self.largest.saturating_mul(parts)
    }

    /// Whether what all ranks write does not stay in the cache that cores share.
    fn outgrows_cache(&self, world_size: usize) -> bool {
        outgrows_cache(self.written(world_size))
    }

    /// How many parts a giver shows.
    fn parts(&self, world_size: usize) -> usize {
        if self.same { 1 } else { world_size }
    }
}

impl std::fmt::Debug for Transfer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transfer")
            .field("same", &self.same)
            .field("largest", &self.largest)
            .finish_non_exhaustive()
    }
}

/// The buffers of one rank in an operation that takes and gives.
#[derive(Debug)]
pub enum Buffers<'a> {
    /// One buffer. In an all_to_all what comes from a rank replaces what went to it; otherwise what is taken goes to other places than what is given lies in.
    InPlace(&'a mut [u8]),
    /// Given from the first, put into the second.
    Separate(&'a [u8], &'a mut [u8]),
}

impl Buffers<'_> {
    pub(crate) fn spans(self) -> (Span, Span) {
        let (source, output) = match self {
            Buffers::InPlace(buffer) => {
                let (start, len) = (buffer.as_mut_ptr(), buffer.len());
                ((start, len), (start, len))
            }
            Buffers::Separate(source, output) => {
                ((source.as_ptr().cast_mut(), source.len()), (output.as_mut_ptr(), output.len()))
            }
        };
        // SAFETY: borrowed for the whole call by whoever calls this; written, where it is the output too, by this rank alone.
        let source = unsafe { Span::new(source.0, source.1) };
        // SAFETY: borrowed for the whole call by whoever calls this, and written by this rank alone.
        let output = unsafe { Span::new(output.0, output.1) };
        (source, output)
    }
}

impl Team {
    /// Copies what the others give this rank to its places.
    ///
    /// # Errors
    /// [`Fault`]; the contents of the places are unspecified then, and the team is closed.
    pub fn pull(
        &mut self,
        call: &mut Call<'_>,
        buffers: Buffers<'_>,
        pull: Transfer<'_>,
    ) -> Result<(), Fault> {
        let way = self.choose_pull(call.signature.op, pull);
        if way == MemoryWay::Inline {
            // Apart from the others, and without what those need: such calls took 0.91 to 0.97 of the time.
            let (source, output) = buffers.spans();
            let plan = self.plan_pull(way, pull);
            return self.run(call, plan, |team, call| team.pull_in_lines(call, source, output, pull));
        }
        self.pull_by(way, call, buffers, pull)
    }

    pub(crate) fn pull_by(
        &mut self,
        way: MemoryWay,
        call: &mut Call<'_>,
        buffers: Buffers<'_>,
        pull: Transfer<'_>,
    ) -> Result<(), Fault> {
        let may_read_buffers = way == MemoryWay::ProcessVm || !self.windows.is_empty();
        let copies_first = may_read_buffers && pull.replaces() && matches!(buffers, Buffers::InPlace(_));
        let (mut source, output) = buffers.spans();
        if copies_first {
            // What is staged has been copied before what comes is put in its place. Of a buffer that is read where it lies, others could read what came; and of
            // another's buffer all is taken at once, before the later pieces of this one are staged.
            let copy = self.scratch(source.len());
            copy.copy_own_from(source);
            source = copy;
        }
        let plan = self.plan_pull(way, pull);
        self.run(call, plan, |team, call| team.pull_spans(way, call, source, output, pull))
    }

    fn choose_pull(&mut self, called: OpKind, pull: Transfer<'_>) -> MemoryWay {
        let op = match (pull.same, pull.both_ways()) {
            (true, true) => OpKind::AllGather,
            (true, false) => OpKind::Gather,
            (false, true) => OpKind::AllToAll,
            (false, false) => OpKind::Scatter,
        };
        let parts = pull.parts(self.world_size);
        self.choose(called, op, pull.largest * parts, pull.largest, parts).way
    }

    fn plan_pull<'a>(&self, way: MemoryWay, pull: Transfer<'a>) -> Plan<'a> {
        let plan = Plan::of(pull.kind(), way);
        let plan = plan.over(pull.largest).with(pull.layout);
        match way {
            MemoryWay::Inline | MemoryWay::Shared => plan,
            _ => self.pull_path(way, pull).planned(plan),
        }
    }

    fn pull_path(&self, way: MemoryWay, pull: Transfer<'_>) -> CopyPath {
        self.path(way, pull.largest, pull.parts(self.world_size), !pull.both_ways())
    }

    /// As [`pull`](Self::pull), where every rank gives each a part of a length that only the two of them know.
    ///
    /// # Errors
    /// [`Fault`]; [`Counts`](Fault::Counts) if a giver's part has not the length of its place.
    pub fn pull_uneven(
        &mut self,
        call: &mut Call<'_>,
        input: &[u8],
        output: &mut [u8],
        mut pull: Transfer<'_>,
    ) -> Result<(), Fault> {
        let (source, output) = Buffers::Separate(input, output).spans();
        let plan = Plan::of(Kind::DealUnevenly, MemoryWay::Staged);
        self.run(call, plan, |team, call| {
            pull.largest = team.agree_on_lengths(pull, call)?;
            let way = team.choose_pull(call.signature.op, pull);
            team.follow(team.plan_pull(way, pull), call.signature, call.signature.fingerprint());
            team.pull_spans(way, call, source, output, pull)
        })
    }

    /// Tells each rank how much it will be given, checks what the others say, and returns the most that anybody gives.
    fn agree_on_lengths(&mut self, pull: Transfer<'_>, call: &mut Call<'_>) -> Result<usize, Fault> {
        let lengths: Vec<u64> = (0..self.world_size).map(|rank| (pull.part)(rank).len() as u64).collect();
        let mut largest = self.peers().map(|peer| lengths[peer]).max().unwrap_or(0);
        let piece = self.next_staged(1);
        self.reserve(piece, Room::Slot, call)?;
        let row = self.region.staging(self.rank, piece);
        lengths.iter().enumerate().for_each(|(rank, len)| row.write_word(rank, *len));
        self.post(piece, &[largest]);
        for peer in self.peers() {
            largest = largest.max(self.arrived(peer, piece, call)?.words()[0]);
            let sent = self.region.staging(peer, piece).word(self.rank) as usize;
            let expected = pull.place.map_or(0, |p| p(peer).len());
            if sent != expected {
                return Err(Fault::Counts { peer, sent, expected });
            }
        }
        self.done(piece);
        Ok(largest as usize)
    }

    pub(crate) fn pull_spans(
        &mut self,
        way: MemoryWay,
        call: &mut Call<'_>,
        source: Span,
        output: Span,
        pull: Transfer<'_>,
    ) -> Result<(), Fault> {
        match way {
            MemoryWay::Inline => return self.pull_in_lines(call, source, output, pull),
            MemoryWay::Shared => return self.pull_shared(call, source, output, pull),
            _ => {}
        }
        let path = self.pull_path(way, pull);
        let Transfer { part, largest, same, .. } = pull;
        let offer = Parts { buffer: source, part, largest, same, flow: pull.flow() };
        let steps = Self::steps(path, pull.largest);
        let first = self.next_given(steps);
        let gives = pull.givers.contain(self.rank);
        if !gives {
            self.keep_own(source, output, pull);
        }
        let mut shows_memory = false;
        // Those who showed their memory, from which all was taken in the first step.
        let mut taken = Vec::new();
        for step in 0..=steps {
            let piece = first + step as u64;
            if step < steps && gives && !shows_memory {
                shows_memory = self.give(offer, path, step, piece, call)?;
                if steps == 1 && !shows_memory && !pull.both_ways() {
                    self.claim_next(offer, piece);
                }
            }
            let Some(step) = step.checked_sub(1) else { continue };
            let piece = first + step as u64;
            if let Some(place) = pull.place {
                for giver in self.peers().filter(|&peer| pull.givers.contain(peer)) {
                    if !taken.contains(&giver)
                        && !self.take(giver, path, step, piece, pull, output, place(giver), call)?
                    {
                        taken.extend((steps > 1).then_some(giver));
                    }
                }
            }
            self.done(piece);
        }
        if gives {
            self.keep_own(source, output, pull);
        }
        if shows_memory {
            self.all_done(first + steps as u64 - 1, call)?;
        }
        Ok(())
    }

    /// Asks for the lines in which this rank would stage as much after `piece`, which its readers have.
    pub(crate) fn claim_next(&self, offer: Parts<'_>, piece: u64) {
        let max = if self.region.asks_ahead() { CLAIMED_AHEAD_MAX } else { CLAIMED_AHEAD_MAX_BY_LIBRARY };
        if offer.largest <= max && (offer.same || self.world_size == 2) {
            self.given(self.rank, piece + 1).part(0..offer.largest).claim();
        }
    }

    /// Pulls parts that fit into the lines of the flag.
    #[inline(never)] // Of `pull_spans`, whose setting up it is to do without.
    fn pull_in_lines(
        &mut self,
        call: &mut Call<'_>,
        source: Span,
        output: Span,
        pull: Transfer<'_>,
    ) -> Result<(), Fault> {
        let piece = self.next_piece();
        let gives = pull.givers.contain(self.rank);
        if gives {
            self.reserve(piece, Room::Line, call)?;
            if pull.same {
                self.post_bytes(piece, source.part((pull.part)(self.rank)));
            } else {
                self.post_parts(piece, source, pull);
            }
        }
        if !gives {
            self.keep_own(source, output, pull);
        }
        if let Some(place) = pull.place {
            for giver in self.peers().filter(|&peer| pull.givers.contain(peer)) {
                let place = place(giver);
                let start = if pull.same { 0 } else { place_of(self.rank, giver) * pull.largest };
                let part = self.region.slot(giver, piece).lines().part(start..start + place.len());
                self.arrived_with(giver, piece, part, call)?;
                self.get_inline(output.part(place), part);
            }
        }
        self.done(piece);
        if gives {
            self.keep_own(source, output, pull);
        }
        Ok(())
    }

    /// Posts a part for each reader, where it looks for it.
    fn post_parts(&mut self, piece: u64, source: Span, pull: Transfer<'_>) {
        let (giver, readers) = (self.rank, self.peers());
        self.post_filled(piece, readers.len() * pull.largest, |region, slot| {
            for reader in readers {
                let (start, part) = (place_of(reader, giver) * pull.largest, (pull.part)(reader));
                let place = start..start + part.len();
                region.put(slot.lines().part(place), source.part(part), true);
            }
        });
    }

    /// Takes this step's bytes from a giver, or all if they are not staged. Whether more may come.
    #[expect(clippy::too_many_arguments, reason = "a step of a loop, told apart for reading")]
    fn take(
        &mut self,
        giver: usize,
        path: CopyPath,
        step: usize,
        piece: u64,
        pull: Transfer<'_>,
        output: Span,
        place: Range<usize>,
        call: &mut Call<'_>,
    ) -> Result<bool, Fault> {
        let len = match path {
            CopyPath::ProcessVm => 0,
            CopyPath::Staged(len) => len,
        };
        let range = within(&place, len, step);
        let staged = self.staged(giver, len, pull.same, range.len(), piece);
        // Lines that their writer owns are not asked for before they are written: they would have to be taken back from here.
        let writes_next = pull.flow() == Flow::Copied;
        let asked = if writes_next && self.region.is_claimed() { Span::EMPTY } else { staged };
        let found = if step == 0 {
            self.find(giver, place.len(), pull.same, asked, piece, call)?
        } else {
            self.arrived_with(giver, piece, asked, call)?;
            PartLocation::Staged
        };
        match found {
            PartLocation::Staged => {
                let begun = self.begins_copy();
                self.get_staged(output.part(range), staged, writes_next, pull);
                self.hand_back(giver, piece, staged);
                self.ends_copy(giver, begun);
                Ok(true)
            }
            PartLocation::Mapped(part) => {
                self.copy_mapped(giver, part, output.part(place), call)?;
                Ok(false)
            }
            PartLocation::Memory(addr) => {
                self.reach(giver, addr, output.part(place), call)?;
                Ok(false)
            }
        }
    }

    /// Copies a piece of what a giver has staged to where it belongs.
    fn get_staged(&mut self, to: Span, staged: Span, writes_next: bool, pull: Transfer<'_>) {
        let (region, is_long) = (&self.region, pull.outgrows_cache(self.world_size));
        let get = || region.get(to, staged, writes_next);
        // While copies are timed, all are to go one way.
        if is_long && self.copy_clock.is_none() { self.long_reads.copy(to, staged, get) } else { get() }
    }

    /// Copies what this rank gives itself.
    pub(crate) fn keep_own(&self, source: Span, output: Span, pull: Transfer<'_>) {
        let Some(own) = pull.own else { return };
        let (to, from) = (output.part(own.to.clone()), source.part(own.from.clone()));
        // Where one rank reads or writes most of the data, the caches are better left to what it has still to read.
        if !pull.both_ways() && pull.outgrows_cache(self.world_size) {
            to.stream_from(from);
        } else {
            to.copy_own_from(from);
        }
    }
}

/// The place of a reader's part in the lines of a giver's flag, which has none for itself.
fn place_of(reader: usize, giver: usize) -> usize {
    if reader < giver { reader } else { reader - 1 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_reader_has_a_place_and_no_two_have_one() {
        for world_size in 2..6 {
            for giver in 0..world_size {
                let readers = (0..world_size).filter(|&reader| reader != giver);
                assert!(readers.map(|reader| place_of(reader, giver)).eq(0..world_size - 1));
            }
        }
    }

    #[test]
    fn what_all_ranks_write_is_counted() {
        let written = |givers, same, largest| {
            let transfer =
                Transfer { same, givers, largest, part: &|_| 0..0, place: None, own: None, layout: None };
            transfer.written(4)
        };
        assert_eq!(written(Givers::All, true, 100), 1600, "an all_gather");
        assert_eq!(written(Givers::All, false, 100), 1600, "an all_to_all");
        assert_eq!(written(Givers::AllBut(0), true, 100), 400, "a gather");
        assert_eq!(written(Givers::Only(0), false, 100), 400, "a scatter");
        assert_eq!(written(Givers::Only(0), true, 100), 300, "a broadcast");
        assert_eq!(written(Givers::All, true, usize::MAX), usize::MAX, "whatever the length");
    }
}
