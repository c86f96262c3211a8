//! The broadcast among ranks that share memory.

use crate::plan::{Kind, Plan};
use crate::region::Words;
use crate::span::Span;
use crate::team::{Room, Team};
use crate::{Buffers, Call, Fault, Givers, Transfer};
use phalanx_algo::MemoryWay;
use phalanx_core::OpKind;
use std::ops::Range;

impl Team {
    /// Copies the buffer of `root` to all.
    ///
    /// # Errors
    /// [`Fault`]; the contents of the buffer are unspecified then, except on the root, and the team is closed.
    pub fn broadcast(&mut self, call: &mut Call<'_>, buffer: &mut [u8], root: usize) -> Result<(), Fault> {
        let len = buffer.len();
        let choice = self.choose(call.signature.op, OpKind::Broadcast, len, len, 1);
        if choice.way == MemoryWay::Shared {
            // SAFETY: borrowed for the whole call, and if that fails, `run` waits until nobody writes it.
            let buffer = unsafe { Span::new(buffer.as_mut_ptr(), len) };
            let plan = Plan::of(Kind::Share, MemoryWay::Shared).over(len);
            return self.run(call, plan, |team, call| team.broadcast_shared(call, buffer, root));
        }
        if choice.way == MemoryWay::Inline {
            // SAFETY: borrowed for the whole call, and written by this rank alone.
            let buffer = unsafe { Span::new(buffer.as_mut_ptr(), len) };
            let plan = Plan::of(Kind::Share, MemoryWay::Inline).over(len);
            return self.run(call, plan, |team, call| team.broadcast_inline(call, buffer, root));
        }
        let whole = |_| 0..len;
        let place: Option<&dyn Fn(usize) -> Range<usize>> =
            if self.rank == root { None } else { Some(&whole) };
        let transfer = Transfer {
            same: true,
            givers: Givers::Only(root),
            largest: len,
            part: &whole,
            place,
            own: None,
            layout: None,
        };
        self.pull_by(choice.way, call, Buffers::InPlace(buffer), transfer)
    }

    /// The bytes lie in the lines of the root's flag.
    fn broadcast_inline(&mut self, call: &mut Call<'_>, buffer: Span, root: usize) -> Result<(), Fault> {
        let piece = self.next_piece();
        if self.rank == root {
            self.reserve(piece, Room::Line, call)?;
            self.post_bytes(piece, buffer);
        } else {
            let data = self.region.slot(root, piece).lines().part(0..buffer.len());
            self.arrived_with(root, piece, data, call)?;
            self.get_inline(buffer, data);
        }
        self.done(piece);
        Ok(())
    }

    /// Everybody copies the same number of bytes: the others read all but the end of the root's buffer, and the root
    /// writes that to theirs meanwhile.
    fn broadcast_shared(&mut self, call: &mut Call<'_>, buffer: Span, root: usize) -> Result<(), Fault> {
        let cut = buffer.len() - buffer.len() / self.world_size / 64 * 64;
        let piece = self.next_piece();
        self.reserve(piece, Room::Line, call)?;
        self.post(piece, &[buffer.addr()]);
        if self.rank == root {
            for peer in self.peers() {
                let [addr, ..]: Words = self.arrived(peer, piece, call)?.words();
                self.store(peer, addr.wrapping_add(cut as u64), buffer.part(cut..buffer.len()), call)?;
            }
        } else {
            let [addr, ..]: Words = self.arrived(root, piece, call)?.words();
            self.reach(root, addr, buffer.part(0..cut), call)?;
        }
        self.done(piece);
        self.all_done(piece, call)
    }
}
