//! Gather and scatter of large parts, where those that give and those that take copy at the same time.
//!
//! The takers read the first bytes of each part in the giver's memory, and the givers write the rest of it to the takers'. All copy about as many bytes, the
//! root's own part among them if it has to copy that: then the others do all the rest.

use crate::copy_path::PartLocation;
use crate::gather_scatter::{Givers, Transfer};
use crate::span::Span;
use crate::team::{Room, Team};
use crate::{Call, Fault};

impl Team {
    /// Whoever gives takes nothing, and the others take from all that give.
    pub(crate) fn pull_shared(
        &mut self,
        call: &mut Call<'_>,
        source: Span,
        output: Span,
        pull: Transfer<'_>,
    ) -> Result<(), Fault> {
        let givers = pull.givers;
        let piece = self.next_given(1);
        self.reserve(piece, Room::Cell, call)?;
        let notes = self.given(self.rank, piece);
        let copies_own = u64::from(pull.own.is_some());
        if givers.contain(self.rank) {
            let (kind, base) = self.location(source);
            let start = |peer: usize| base + (pull.part)(peer).start as u64;
            // The same part has one place, which is in the post.
            for peer in self.peers().filter(|_| !pull.same) {
                notes.write_word(peer, start(peer));
            }
            self.post(piece, &[kind, start(self.rank), copies_own]);
            for taker in self.peers().filter(|&peer| !givers.contain(peer)) {
                let [_, _, takers_own, ..] = self.arrived(taker, piece, call)?.words();
                let [addr, len] = self.noted_place(taker, piece);
                let part = (pull.part)(taker);
                // Nothing is written beyond what the taker has room for, whatever this rank was told to give.
                if len != part.len() as u64 {
                    return Err(Fault::Counts { peer: taker, sent: part.len(), expected: len as usize });
                }
                let cut = self.cut(part.len(), givers, copies_own, takers_own);
                self.store(
                    taker,
                    addr.wrapping_add(cut as u64),
                    source.part(part.start + cut..part.end),
                    call,
                )?;
            }
            self.keep_own(source, output, pull);
        } else if let Some(place) = pull.place {
            for giver in self.peers().filter(|&peer| givers.contain(peer)) {
                let place = output.part(place(giver));
                for (n, word) in [place.addr(), place.len() as u64].into_iter().enumerate() {
                    notes.write_word(2 * giver + n, word);
                }
            }
            self.post(piece, &[0, 0, copies_own]);
            self.keep_own(source, output, pull);
            for giver in self.peers().filter(|&peer| givers.contain(peer)) {
                let [_, _, givers_own, ..] = self.arrived(giver, piece, call)?.words();
                let place = place(giver);
                let cut = self.cut(place.len(), givers, givers_own, copies_own);
                let first = output.part(place.start..place.start + cut);
                match self.find(giver, cut, pull.same, Span::EMPTY, piece, call)? {
                    PartLocation::Memory(addr) => self.reach(giver, addr, first, call)?,
                    PartLocation::Mapped(from) => self.copy_mapped(giver, from, first, call)?,
                    PartLocation::Staged => {
                        return Err(Fault::Counts { peer: giver, sent: 0, expected: place.len() });
                    }
                }
            }
        }
        self.done(piece);
        self.all_done(piece, call)
    }

    /// The address and the length of the place that `taker` has for this rank's part.
    fn noted_place(&self, taker: usize, piece: u64) -> [u64; 2] {
        let notes = self.given(taker, piece);
        [0, 1].map(|n| notes.word(2 * self.rank + n))
    }

    /// Where in a part of `len` bytes those begin that its giver writes. `givers_own` and `takers_own` are 1 where that rank copies its own part besides.
    fn cut(&self, len: usize, givers: Givers, givers_own: u64, takers_own: u64) -> usize {
        let shares = (givers.count(self.world_size) + takers_own.min(1) as usize)
            .saturating_sub(givers_own.min(1) as usize);
        len - len / self.world_size * shares / 64 * 64
    }
}
