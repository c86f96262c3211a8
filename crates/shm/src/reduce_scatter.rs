//! reduce_scatter among ranks that share memory: each gives every other its block, and combines what it is given. And reduce between two ranks, in which one gives
//! the other all it has.

use crate::all_reduce::Reduction;
use crate::copy_path::{CopyPath, Flow, PartLocation, Parts, within};
use crate::plan::{Kind, Plan};
use crate::span::{List, Span};
use crate::team::Team;
use crate::{Buffers, Call, Fault};
use phalanx_algo::MemoryWay;
use phalanx_core::{Layout, OpKind};
use std::ops::Range;

impl Team {
    /// Combines the inputs across the team and leaves each rank its block of the result: in place of that block of its input, or
    /// in an output of that length.
    ///
    /// # Errors
    /// [`Fault`]; the block's contents are unspecified then, and the team is closed.
    pub fn reduce_scatter(
        &mut self,
        call: &mut Call<'_>,
        buffers: Buffers<'_>,
        blocks: &Layout,
        reduction: Reduction<'_>,
    ) -> Result<(), Fault> {
        let block = |rank| {
            let block = blocks.block(rank);
            block.start * reduction.element..block.end * reduction.element
        };
        let in_place = matches!(buffers, Buffers::InPlace(_));
        let (input, output) = buffers.spans();
        let output = if in_place { output.part(block(self.rank)) } else { output };
        let largest = blocks.longest() * reduction.element;
        let len = input.len();
        let op = OpKind::ReduceScatter;
        let way = self.choose(call.signature.op, op, len, largest, self.world_size).way;
        let plan = Plan::of(Kind::ReduceScatter, way).over(len).with(Some(blocks));
        match way {
            MemoryWay::Inline => self.run(call, plan, |team, call| {
                team.all_reduce_inline(call, input, block(team.rank), output, reduction)
            }),
            MemoryWay::OneShot => self.run(call, plan, |team, call| {
                team.all_reduce_one_shot(call, input, block(team.rank), output, reduction)
            }),
            _ => {
                let path = self.path(way, largest, self.world_size, false);
                self.run(call, path.planned(plan), |team, call| {
                    let offer =
                        Parts { buffer: input, part: &block, largest, same: false, flow: Flow::Combined };
                    team.combine_given(call, offer, path, output, reduction)
                })
            }
        }
    }

    /// Combines the buffers of all at the reduction's root, to which the others give theirs.
    pub(crate) fn reduce_staged(
        &mut self,
        call: &mut Call<'_>,
        buffer: Span,
        reduction: Reduction<'_>,
    ) -> Result<(), Fault> {
        let largest = buffer.len();
        let path = self.path(MemoryWay::Staged, largest, 1, true);
        let plan = path.planned(Plan::of(Kind::Reduce, MemoryWay::Staged).over(largest));
        let whole = |_| 0..largest;
        self.run(call, plan, |team, call| {
            let offer = Parts { buffer, part: &whole, largest, same: true, flow: Flow::OneWay };
            team.combine_given(call, offer, path, buffer, reduction)
        })
    }

    /// Gives the others what is offered, and combines in `output` what they give this rank. If the reduction has a root, that one only combines, and the others only give.
    fn combine_given(
        &mut self,
        call: &mut Call<'_>,
        offer: Parts<'_>,
        path: CopyPath,
        output: Span,
        reduction: Reduction<'_>,
    ) -> Result<(), Fault> {
        let own = (offer.part)(self.rank);
        let steps = Self::steps(path, offer.largest);
        let (gives, takes) = (reduction.root != Some(self.rank), reduction.is_for(self.rank));
        let first = self.next_given(steps);
        let mut shows_memory = false;
        let mut found = List::new((0..self.world_size).map(|_| PartLocation::Staged), PartLocation::Staged);
        for step in 0..=steps {
            let piece = first + step as u64;
            if step < steps && gives && !shows_memory {
                shows_memory = self.give(offer, path, step, piece, call)?;
                if steps == 1 && !takes && !shows_memory {
                    self.claim_next(offer, piece);
                }
            }
            let Some(step) = step.checked_sub(1) else { continue };
            let piece = first + step as u64;
            if !takes {
                self.done(piece);
                continue;
            }
            for giver in self.peers() {
                let data = match path {
                    CopyPath::Staged(len) => {
                        self.staged(giver, len, offer.same, within(&own, len, step).len(), piece)
                    }
                    CopyPath::ProcessVm => Span::EMPTY,
                };
                if step == 0 {
                    found.as_mut_slice()[giver] =
                        self.find(giver, own.len(), offer.same, data, piece, call)?;
                } else if matches!(found.as_slice()[giver], PartLocation::Staged) {
                    self.arrived_with(giver, piece, data, call)?;
                }
            }
            let sources = Sources {
                found: found.as_slice(),
                input: offer.buffer.part(own.clone()),
                same: offer.same,
                path,
                piece,
            };
            match path {
                CopyPath::Staged(len) => {
                    let range = within(&(0..own.len()), len, step);
                    self.combine_blocks(&sources, range.clone(), output, reduction, call)?;
                    for giver in
                        self.peers().filter(|&giver| matches!(found.as_slice()[giver], PartLocation::Staged))
                    {
                        let staged = self.staged(giver, len, offer.same, range.len(), piece);
                        self.hand_back(giver, piece, staged);
                    }
                }
                CopyPath::ProcessVm => {
                    for range in self.strides(0..own.len()) {
                        self.combine_blocks(&sources, range, output, reduction, call)?;
                    }
                }
            }
            self.done(piece);
        }
        if shows_memory {
            self.all_done(first + steps as u64 - 1, call)?;
        }
        Ok(())
    }

    /// Combines a range of the blocks of all ranks, in rank order.
    fn combine_blocks(
        &mut self,
        from: &Sources<'_>,
        range: Range<usize>,
        output: Span,
        reduction: Reduction<'_>,
        call: &mut Call<'_>,
    ) -> Result<(), Fault> {
        let len = range.len();
        let mut sources = List::new((0..self.world_size).map(|_| Span::EMPTY), Span::EMPTY);
        for (giver, source) in sources.as_mut_slice().iter_mut().enumerate() {
            *source = match (from.found[giver], from.path) {
                _ if giver == self.rank => from.input.part(range.clone()),
                (PartLocation::Staged, CopyPath::Staged(step)) => {
                    self.staged(giver, step, from.same, len, from.piece)
                }
                (PartLocation::Staged, CopyPath::ProcessVm) => {
                    return Err(Fault::Counts { peer: giver, sent: 0, expected: len });
                }
                (PartLocation::Mapped(part), _) => part.part(range.clone()),
                (PartLocation::Memory(addr), _) => {
                    // As much each time, so it stays where it is.
                    let scratch = self.scratch(self.world_size * len);
                    let copy = scratch.part(giver * len..(giver + 1) * len);
                    self.reach(giver, addr.wrapping_add(range.start as u64), copy, call)?;
                    copy
                }
            };
        }
        Span::reduce(&[output.part(range)], sources.as_slice(), reduction.kernel, self.world_size);
        let in_a_window = from.found.iter().any(|found| matches!(found, PartLocation::Mapped(_)));
        if in_a_window {
            self.was_given()?;
        }
        self.watch((self.rank + 1) % self.world_size, call)
    }
}

/// The sources of this rank's block.
struct Sources<'a> {
    found: &'a [PartLocation],
    /// This rank's own.
    input: Span,
    /// Whether each giver gives the same to all.
    same: bool,
    path: CopyPath,
    piece: u64,
}
