//! all_reduce and reduce among ranks that share memory: four ways, by size. `phalanx_algo::MemoryCall` chooses.
//!
//! | way | bytes | a rank reads | and writes |
//! |---|---|---|---|
//! | inline | what fits the lines of a flag | its own data, the lines of each other rank | its own lines |
//! | one shot | little | the whole of every rank's | its own, to staging |
//! | two phases | medium, or no other way | its slice of every rank's, then every other slice | all but its slice, to staging; its slice |
//! | push | much | its slice of every rank's memory | its slice, to every rank's memory |
//!
//! Between two ranks a reduce goes another way from one shot to push: [staged](Team::reduce_staged), in which the root reads all there is to read, as it does in two phases, and nothing else is done.
//!
//! Every element is combined once or by all in the same order, that of the ranks: the same bits everywhere.
//! Push needs no staging where the kernel copies between address spaces, and no copy at all in a [window](crate::Window).

use crate::copy_path::WINDOW_BYTES;
use crate::plan::{Kind, Plan};
use crate::region::{SLOT_LEN, Words};
use crate::span::{List, Span};
use crate::team::{Room, Team};
use crate::{Call, Fault};
use phalanx_algo::MemoryWay;
use phalanx_core::{OpKind, chunk};
use phalanx_kernels::Kernel;
use std::ops::Range;

/// A reduction of elements of one type.
#[derive(Debug, Clone, Copy)]
pub struct Reduction<'k> {
    /// How two become one.
    pub kernel: &'k Kernel,
    /// Bytes of an element.
    pub element: usize,
    /// The rank that gets the result; all, if none is named.
    pub root: Option<usize>,
}

impl Team {
    /// Combines `buffer` across the team. Every rank ends with the same bits; if the reduction has a root, only that one,
    /// and the others' buffers are unspecified.
    ///
    /// # Errors
    /// [`Fault`]; the buffer's contents are unspecified then, and the team is closed.
    pub fn all_reduce(
        &mut self,
        call: &mut Call<'_>,
        buffer: &mut [u8],
        reduction: Reduction<'_>,
    ) -> Result<(), Fault> {
        let len = buffer.len();
        // SAFETY: borrowed for the whole call; what the others write of it they write before they say that they are
        // done, and nothing else here looks at it meanwhile. If the operation fails, `run` waits until nobody writes it.
        let buffer = unsafe { Span::new(buffer.as_mut_ptr(), len) };
        let op = if reduction.root.is_some() { OpKind::Reduce } else { OpKind::AllReduce };
        let choice = self.choose(call.signature.op, op, len, len, 1);
        if choice.way == MemoryWay::Staged {
            return self.reduce_staged(call, buffer, reduction);
        }
        let plan = self.plan_all_reduce(choice.way, len, reduction.element);
        self.run(call, plan, |team, call| {
            match plan.how {
                MemoryWay::Inline => return team.all_reduce_inline(call, buffer, 0..len, buffer, reduction),
                MemoryWay::OneShot => {
                    return team.all_reduce_one_shot(call, buffer, 0..len, buffer, reduction);
                }
                _ => {}
            }
            let registered = !choice.is_forced && len >= WINDOW_BYTES && team.windows.find(buffer).is_some();
            if (registered || plan.how == MemoryWay::Push) && team.all_reduce_push(call, buffer, reduction)? {
                return Ok(());
            }
            while !team.all_reduce_two_phases(call, buffer, plan.piece, reduction)? {}
            Ok(())
        })
    }

    fn plan_all_reduce(&self, way: MemoryWay, len: usize, element: usize) -> Plan<'static> {
        let plan = Plan::of(Kind::Reduce, way).over(len);
        if matches!(way, MemoryWay::Inline | MemoryWay::OneShot) {
            return plan;
        }
        let per_piece = if self.is_crowded() { SLOT_LEN } else { self.slice_bytes * self.world_size };
        // Push may come to nothing.
        plan.in_pieces_of(per_piece.min(SLOT_LEN) / element * element)
    }

    /// Combines a `part` of what all ranks have, into an `output` of its length.
    pub(crate) fn all_reduce_inline(
        &mut self,
        call: &mut Call<'_>,
        input: Span,
        part: Range<usize>,
        output: Span,
        reduction: Reduction<'_>,
    ) -> Result<(), Fault> {
        let piece = self.next_piece();
        self.reserve(piece, Room::Line, call)?;
        self.post_bytes(piece, input);
        if reduction.is_for(self.rank) {
            for peer in self.peers() {
                let data = self.region.slot(peer, piece).lines().part(part.clone());
                self.arrived_with(peer, piece, data, call)?;
            }
            self.combine_in_order(output, reduction, |rank| {
                let whole = if rank == self.rank { input } else { self.region.slot(rank, piece).lines() };
                whole.part(part.clone())
            });
        }
        self.done(piece);
        Ok(())
    }

    /// Combines what `source` names for each rank, in their order.
    #[inline(always)]
    fn combine_in_order(&self, output: Span, reduction: Reduction<'_>, source: impl Fn(usize) -> Span) {
        if self.world_size == 2 {
            return Span::reduce(&[output], &[source(0), source(1)], reduction.kernel, 2);
        }
        let sources = List::new((0..self.world_size).map(source), Span::EMPTY);
        Span::reduce(&[output], sources.as_slice(), reduction.kernel, self.world_size);
    }

    /// As [`all_reduce_inline`](Self::all_reduce_inline), through staging.
    pub(crate) fn all_reduce_one_shot(
        &mut self,
        call: &mut Call<'_>,
        input: Span,
        part: Range<usize>,
        output: Span,
        reduction: Reduction<'_>,
    ) -> Result<(), Fault> {
        let piece = self.next_staged(1);
        self.reserve(piece, Room::Slot, call)?;
        self.region.put(self.region.staging(self.rank, piece).part(0..input.len()), input, false);
        self.post(piece, &[0]);
        if reduction.is_for(self.rank) {
            for peer in self.peers() {
                let data = self.region.staging(peer, piece).part(part.clone());
                self.arrived_with(peer, piece, data, call)?;
            }
            self.combine_in_order(output, reduction, |rank| {
                let whole = if rank == self.rank { input } else { self.region.staging(rank, piece) };
                whole.part(part.clone())
            });
        }
        self.done(piece);
        Ok(())
    }

    /// The ranks' contributions in rank order: the same range of all slots; of this rank's own the buffer itself.
    fn contributions(&self, piece: u64, range: Range<usize>, own: Span) -> List<Span> {
        let contribution = |rank| {
            if rank == self.rank { own } else { self.region.staging(rank, piece).part(range.clone()) }
        };
        List::new((0..self.world_size).map(contribution), Span::EMPTY)
    }

    /// In pieces, three of them under way: staged, combined, collected. A slice's owner combines it into the slot of the
    /// rank after it, in place of what that one contributed: it has just read those lines, and nobody else needs them.
    ///
    /// `false`: another rank offers its buffer as a window, which this one cannot; all begin anew.
    fn all_reduce_two_phases(
        &mut self,
        call: &mut Call<'_>,
        buffer: Span,
        per_piece: usize,
        reduction: Reduction<'_>,
    ) -> Result<bool, Fault> {
        let pieces = buffer.len().div_ceil(per_piece);
        let first = self.next_staged(pieces);
        let number = |i: usize| first + i as u64;
        let part = |i: usize| buffer.part(i * per_piece..((i + 1) * per_piece).min(buffer.len()));
        for step in 0..pieces + 2 {
            if step < pieces {
                self.stage(number(step), part(step), reduction, call)?;
            }
            if (1..=pieces).contains(&step)
                && !self.combine(number(step - 1), part(step - 1), reduction, call)?
            {
                self.begin_anew(first);
                return Ok(false);
            }
            if step >= 2 {
                self.collect(number(step - 2), part(step - 2), reduction, call)?;
            }
        }
        Ok(true)
    }

    /// Begins anew two pieces after `first`: a rank may have come so far when it learns that the others don't do as it does.
    fn begin_anew(&mut self, first: u64) {
        self.done(first + 1);
        self.piece = first + 2;
        self.staged_until = self.piece;
    }

    fn slice(&self, rank: usize, bytes: usize, element: usize) -> Range<usize> {
        let elements = chunk(rank, self.world_size, bytes / element);
        elements.start * element..elements.end * element
    }

    /// Shows the others their slices of `part`.
    fn stage(
        &mut self,
        piece: u64,
        part: Span,
        reduction: Reduction<'_>,
        call: &mut Call<'_>,
    ) -> Result<(), Fault> {
        // It has collected, and claimed, what was there before.
        let owns = reduction.is_for(self.rank);
        self.reserve(piece, Room::Slot, call)?;
        let slot = self.region.staging(self.rank, piece);
        let own = self.slice(self.rank, part.len(), reduction.element);
        for range in [0..own.start, own.end..part.len()] {
            self.region.put(slot.part(range.clone()), part.part(range), owns);
        }
        self.post(piece, &[0]);
        Ok(())
    }

    /// `false` if another rank has posted an address instead of data.
    fn combine(
        &mut self,
        piece: u64,
        part: Span,
        reduction: Reduction<'_>,
        call: &mut Call<'_>,
    ) -> Result<bool, Fault> {
        let mut all_staged = true;
        for peer in self.peers() {
            all_staged &= self.arrived(peer, piece, call)?.words()[0] == 0;
        }
        if !all_staged {
            return Ok(false);
        }
        let range = self.slice(self.rank, part.len(), reduction.element);
        let own = part.part(range.clone());
        let sources = self.contributions(piece, range.clone(), own);
        let home = self.region.staging((self.rank + 1) % self.world_size, piece).part(range);
        // Where there is a root, its slice goes nowhere else, and the others' only there.
        let both = [own, home];
        let into = match reduction.root {
            None => &both[..],
            Some(root) if root == self.rank => &both[..1],
            Some(_) => &both[1..],
        };
        Span::reduce(into, sources.as_slice(), reduction.kernel, self.world_size);
        self.combined(piece);
        Ok(true)
    }

    fn collect(
        &mut self,
        piece: u64,
        part: Span,
        reduction: Reduction<'_>,
        call: &mut Call<'_>,
    ) -> Result<(), Fault> {
        if reduction.is_for(self.rank) {
            for owner in self.peers() {
                self.has_combined(owner, piece, call)?;
                let range = self.slice(owner, part.len(), reduction.element);
                let home = self.region.staging((owner + 1) % self.world_size, piece).part(range.clone());
                self.region.get_combined(part.part(range), home);
            }
        }
        self.done(piece);
        Ok(())
    }

    /// Each rank combines its slice, reading from the buffers of all and storing to them. `false`: the buffers can't be
    /// reached in one way by all, and nothing was done.
    fn all_reduce_push(
        &mut self,
        call: &mut Call<'_>,
        buffer: Span,
        reduction: Reduction<'_>,
    ) -> Result<bool, Fault> {
        let piece = self.next_piece();
        self.reserve(piece, Room::Line, call)?;
        let (window, offset) = self.windows.find(buffer).unwrap_or_default();
        let own = [buffer.addr(), window, offset];
        self.post(piece, &own);
        let mut exposed = List::new((0..self.world_size).map(|_| own), own);
        for peer in self.peers() {
            exposed.as_mut_slice()[peer] = self.arrived(peer, piece, call)?.words();
        }
        let exposed = exposed.as_slice();
        let slice = self.slice(self.rank, buffer.len(), reduction.element);
        let strides = self.strides(slice);
        if window != 0
            && exposed.iter().all(|words| words[0] != 0 && words[1] == window)
            && !self.processes.is_empty()
        {
            let part = |(rank, words): (usize, &Words)| {
                self.windows.part(window, rank, words[2], buffer.len()).unwrap_or(Span::EMPTY)
            };
            let parts = List::new(exposed.iter().enumerate().map(part), Span::EMPTY);
            let parts = parts.as_slice();
            if let Some(peer) = parts.iter().position(|part| part.len() != buffer.len()) {
                return Err(Fault::Counts { peer, sent: parts[peer].len(), expected: buffer.len() });
            }
            for range in strides {
                let sources = List::new(parts.iter().map(|p| p.part(range.clone())), Span::EMPTY);
                let sources = sources.as_slice();
                let into = reduction.root.map_or(sources, |root| &sources[root..=root]);
                self.under_lease(|| Span::reduce(into, sources, reduction.kernel, self.world_size))?;
                self.watch((self.rank + 1) % self.world_size, call)?;
            }
        } else if self.reads_memory && exposed.iter().all(|words| words[0] != 0) {
            for range in strides {
                self.push_stride(buffer, range, exposed, reduction, call)?;
            }
        } else {
            self.begin_anew(piece);
            return Ok(false);
        }
        self.done(piece);
        self.all_done(piece, call)?;
        Ok(true)
    }

    fn push_stride(
        &mut self,
        buffer: Span,
        range: Range<usize>,
        exposed: &[Words],
        reduction: Reduction<'_>,
        call: &mut Call<'_>,
    ) -> Result<(), Fault> {
        let own = buffer.part(range.clone());
        let scratch = self.scratch(self.world_size * range.len());
        let part = |rank: usize| scratch.part(rank * range.len()..(rank + 1) * range.len());
        let addr = |peer: usize| exposed[peer][0].wrapping_add(range.start as u64);
        for peer in self.peers() {
            self.reach(peer, addr(peer), part(peer), call)?;
        }
        let source = |rank| if rank == self.rank { own } else { part(rank) };
        let sources = List::new((0..self.world_size).map(source), Span::EMPTY);
        Span::reduce(&[own], sources.as_slice(), reduction.kernel, self.world_size);
        for peer in self.peers().filter(|&peer| reduction.is_for(peer)) {
            self.store(peer, addr(peer), own, call)?;
        }
        Ok(())
    }
}

impl Reduction<'_> {
    /// Whether a rank gets the result.
    pub(crate) fn is_for(&self, rank: usize) -> bool {
        self.root.is_none_or(|root| root == rank)
    }
}
