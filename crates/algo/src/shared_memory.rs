//! The ways of ranks that share memory: what each does, what it costs, where it can be taken, and which one is.
//!
//! They are no schedules of messages: ranks read and write each other's data where they lie. The crate `phalanx-shm` performs them.

use crate::{Cost, Link, Volume};
use phalanx_core::OpKind;

/// The most bytes that travel in the lines of a flag. Where a rank gives each another part, its own counts too.
pub const INLINE_BYTES: usize = 1024;
/// The same where they are combined: longer contributions are there as soon through staging.
pub const INLINE_SUM_BYTES: usize = 112;
/// Bytes that a rank can stage at once.
pub const SLOT_BYTES: usize = 256 << 10;
/// The most bytes that a rank reads from others where each reads everything: it saves one exchange of flags.
const ONE_SHOT_BYTES: usize = 2 << 10;
/// The same limit where ranks have to give each other the core for that exchange: bytes that all ranks together read.
const ONE_SHOT_BYTES_CROWDED: usize = 256 << 10;
/// The bytes from which copies between address spaces are cheaper than staging.
const PUSH_BYTES: usize = 2 << 20;
/// The bytes from which a part is read from the other's address space instead of from staging.
const PROCESS_VM_BYTES: usize = 512 << 10;

/// A way of ranks that share memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemoryWay {
    /// The data are in the line of the flag that says that they are there.
    Inline,
    /// Each reads everything and computes the same.
    OneShot,
    /// The owner of a slice combines it in staging, then all collect the slices.
    TwoPhases,
    /// The owner of a slice reads it from the memory of all, and writes the result to the memory of all.
    Push,
    /// Through staging, a piece at a time.
    Staged,
    /// Read from the other's memory.
    ProcessVm,
    /// The first bytes read from the giver's memory by who takes them, the rest written by the giver.
    Shared,
    /// Each looks at the flags of all.
    Mutual,
    /// Rank 0 looks at the flags of all, and lets them go.
    Central,
}

/// What decides among the ways for a call. The same on all its ranks.
#[derive(Debug, Clone, Copy)]
pub struct MemoryCall {
    /// The operation.
    pub op: OpKind,
    /// Bytes of the whole buffer.
    pub len: usize,
    /// Bytes of the largest part that a rank gives another: the whole buffer, where each gives the same to all.
    pub part: usize,
    /// How many such parts a rank shows.
    pub parts: usize,
    /// Ranks in the team.
    pub world_size: usize,
    /// Whether ranks outnumber the cores.
    pub is_crowded: bool,
    /// Whether the kernel copies between the ranks' address spaces, and does so well.
    pub reads_memory: bool,
}

impl MemoryCall {
    /// `op` on a buffer of `bytes` (all blocks together, evenly dealt).
    pub fn new(op: OpKind, bytes: usize, world_size: usize) -> Self {
        let block = bytes.div_ceil(world_size.max(1));
        let (part, parts) = match op {
            OpKind::AllGather | OpKind::Gather => (block, 1),
            OpKind::ReduceScatter | OpKind::Scatter | OpKind::AllToAll => (block, world_size),
            _ => (bytes, 1),
        };
        Self { op, len: bytes, part, parts, world_size, is_crowded: false, reads_memory: true }
    }

    /// The way that is taken if none is forced: found by measurement, not by price.
    ///
    /// # Panics
    /// If `op` is not a collective.
    #[inline]
    pub fn recommended(&self) -> MemoryWay {
        match self.op {
            OpKind::AllReduce | OpKind::Reduce if self.len <= INLINE_SUM_BYTES => MemoryWay::Inline,
            OpKind::AllReduce | OpKind::Reduce if self.is_worth_one_shot() => MemoryWay::OneShot,
            OpKind::AllReduce | OpKind::Reduce if self.len >= PUSH_BYTES && self.reads_memory => {
                MemoryWay::Push
            }
            // In two phases the root would read as much.
            OpKind::Reduce if self.world_size == 2 => MemoryWay::Staged,
            OpKind::AllReduce | OpKind::Reduce => MemoryWay::TwoPhases,
            OpKind::ReduceScatter if self.len <= INLINE_SUM_BYTES => MemoryWay::Inline,
            OpKind::ReduceScatter if self.is_worth_one_shot() => MemoryWay::OneShot,
            OpKind::Broadcast | OpKind::Gather | OpKind::Scatter if self.reads_far() && !self.is_crowded => {
                MemoryWay::Shared
            }
            OpKind::Barrier if self.is_crowded => MemoryWay::Central,
            OpKind::Barrier => MemoryWay::Mutual,
            op if op != OpKind::ReduceScatter && self.fits_inline() => MemoryWay::Inline,
            _ if self.reads_far() => MemoryWay::ProcessVm,
            _ => MemoryWay::Staged,
        }
    }

    /// The way that is taken: the forced one where it [can](Self::obstacle) be, else the recommended one.
    ///
    /// # Panics
    /// As [`recommended`](Self::recommended) does.
    pub fn choose(&self, forced: Option<MemoryWay>) -> MemoryWay {
        forced.filter(|way| self.obstacle(*way).is_none()).unwrap_or_else(|| self.recommended())
    }

    /// Why `way` can't be taken, if it can't.
    pub fn obstacle(&self, way: MemoryWay) -> Option<&'static str> {
        let reduces = matches!(self.op, OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter);
        match way {
            _ if !MemoryWay::of(self.op).contains(&way) => Some("the operation has no such way"),
            MemoryWay::Inline if reduces && self.len > INLINE_SUM_BYTES => {
                Some("a flag has room for 112 bytes that are combined")
            }
            MemoryWay::Inline if !reduces && !self.fits_inline() => {
                Some("a flag has room for 1024 bytes, each rank's part counted")
            }
            MemoryWay::OneShot if self.len > SLOT_BYTES => Some("a rank can stage 256 KiB at once"),
            MemoryWay::Push | MemoryWay::ProcessVm | MemoryWay::Shared if !self.reads_memory => {
                Some("the kernel does not copy between these ranks' memory, or slowly")
            }
            _ => None,
        }
    }

    fn is_worth_one_shot(&self) -> bool {
        let read = self.len.saturating_mul((self.world_size - 1).max(1));
        let all_read = read.saturating_mul(self.world_size);
        read <= ONE_SHOT_BYTES || (self.is_crowded && all_read <= ONE_SHOT_BYTES_CROWDED)
    }

    fn fits_inline(&self) -> bool {
        self.part.saturating_mul(self.parts) <= INLINE_BYTES
    }

    fn reads_far(&self) -> bool {
        self.part >= PROCESS_VM_BYTES && self.reads_memory
    }
}

impl MemoryWay {
    /// The ways that an operation has; none of what is no collective.
    pub const fn of(op: OpKind) -> &'static [Self] {
        match op {
            OpKind::AllReduce => &[Self::Inline, Self::OneShot, Self::TwoPhases, Self::Push],
            OpKind::Reduce => &[Self::Inline, Self::OneShot, Self::Staged, Self::TwoPhases, Self::Push],
            OpKind::ReduceScatter => &[Self::Inline, Self::OneShot, Self::Staged, Self::ProcessVm],
            OpKind::Broadcast | OpKind::Gather | OpKind::Scatter => {
                &[Self::Inline, Self::Staged, Self::ProcessVm, Self::Shared]
            }
            OpKind::AllGather | OpKind::AllToAll => &[Self::Inline, Self::Staged, Self::ProcessVm],
            OpKind::Barrier => &[Self::Mutual, Self::Central],
            _ => &[],
        }
    }

    /// Its name among the ways of an operation.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::OneShot => "one_shot",
            Self::TwoPhases => "two_phases",
            Self::Push => "push",
            Self::Staged => "staged",
            Self::ProcessVm => "process_vm",
            Self::Shared => "shared",
            Self::Mutual => "mutual",
            Self::Central => "central",
        }
    }

    /// How it works, in a sentence or two.
    pub const fn idea(self) -> &'static str {
        match self {
            Self::Inline => {
                "A rank's data lie in the lines of its flag, and come with it. For up to 1024 bytes, or 112 that are combined."
            }
            Self::OneShot => {
                "Each rank stages its contribution; each reads those of all and combines them in rank order. For few bytes."
            }
            Self::TwoPhases => {
                "Each rank stages its contribution; the owner of a slice combines that of all in rank order; all collect the slices. \
                 In pieces, three of which are under way."
            }
            Self::Push => {
                "The owner of a slice reads it from the memory of all, combines it in rank order, and writes the result to the memory \
                 of all. For many bytes, where the kernel copies well, and for buffers of `alloc`."
            }
            Self::Staged => {
                "The giver copies to staging, the taker from there, or combines it, a piece at a time."
            }
            Self::ProcessVm => {
                "The taker reads from the giver's memory: one copy, by the kernel. For large parts, where it copies well."
            }
            Self::Shared => {
                "The takers read the first bytes in the giver's memory, and the giver writes the rest to theirs meanwhile. \
                 For large buffers, where the kernel copies well and each rank has a core."
            }
            Self::Mutual => {
                "Each rank raises its flag and looks at the flags of all. Where each rank has a core."
            }
            Self::Central => {
                "Each rank raises its flag; rank 0 looks at all, then lets the others go. Where ranks share cores."
            }
        }
    }

    /// Exchanges of flags on the longest path.
    pub const fn rounds(self) -> &'static str {
        match self {
            Self::TwoPhases | Self::Push | Self::Central | Self::Shared | Self::ProcessVm => "2",
            _ => "1",
        }
    }

    /// Most elements that a rank copies, besides those that it reads in combining them.
    pub const fn copied(self, op: OpKind) -> &'static str {
        match (self, op) {
            (Self::Mutual | Self::Central, _) => "0",
            (Self::Inline | Self::OneShot, OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter) => "n",
            (Self::TwoPhases | Self::Push, _) => "2(P − 1)b",
            (Self::Shared, OpKind::Broadcast) => "(P − 1)n/P",
            (Self::Shared, _) => "(P − 1)b/P",
            (Self::ProcessVm, OpKind::Broadcast) | (Self::Inline, OpKind::Broadcast) => "n",
            (Self::Staged, OpKind::Broadcast | OpKind::Reduce) => "n",
            (Self::ProcessVm, _) => "(P − 1)b",
            (Self::Inline | Self::Staged, OpKind::AllGather | OpKind::Gather) => "Pb",
            (Self::Staged, OpKind::ReduceScatter) => "(P − 1)b",
            (Self::Inline | Self::OneShot | Self::Staged, _) => "2(P − 1)b",
        }
    }

    /// The cost of `volume` on the longest path: exchanges of flags as rounds, copies as what is moved.
    pub fn cost(self, op: OpKind, volume: Volume) -> Cost {
        let others = volume.others_blocks();
        let reduces = matches!(op, OpKind::AllReduce | OpKind::Reduce | OpKind::ReduceScatter);
        let rounds = if self.rounds() == "2" { 2.0 } else { 1.0 };
        let moved = match self.copied(op) {
            "0" => 0.0,
            "n" => volume.len,
            "(P − 1)b" => others,
            "(P − 1)n/P" => volume.len * volume.others() / volume.world_size as f64,
            "(P − 1)b/P" => others / volume.world_size as f64,
            "Pb" => others + volume.block,
            _ => 2.0 * others,
        };
        let combined = match self {
            Self::Inline | Self::OneShot if op != OpKind::ReduceScatter => volume.others() * volume.len,
            Self::Staged if op == OpKind::Reduce => volume.others() * volume.len,
            _ => others,
        };
        Cost::of_equals(volume, rounds, moved, if reduces { combined } else { 0.0 })
    }

    /// Predicted seconds on a buffer of `bytes`; `link` is what flags and copies cost, as in [`Link::MEMORY`].
    pub fn seconds(self, op: OpKind, world_size: usize, bytes: usize, link: &Link) -> f64 {
        let len = bytes as f64;
        let volume = Volume { world_size, len, block: (len / world_size as f64).ceil() };
        link.seconds(world_size, &self.cost(op, volume))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(op: OpKind, bytes: usize) -> MemoryCall {
        MemoryCall::new(op, bytes, 4)
    }

    #[test]
    fn more_bytes_go_other_ways() {
        use MemoryWay::{Inline, OneShot, ProcessVm, Push, Shared, Staged, TwoPhases};
        for (op, ways) in [
            (OpKind::AllReduce, [Inline, OneShot, TwoPhases, TwoPhases, Push]),
            (OpKind::ReduceScatter, [Inline, OneShot, Staged, Staged, ProcessVm]),
            (OpKind::Broadcast, [Inline, Inline, Staged, Staged, Shared]),
            // Each rank gives 320 of 1280 bytes.
            (OpKind::Gather, [Inline, Inline, Inline, Staged, Shared]),
            (OpKind::Scatter, [Inline, Inline, Staged, Staged, Shared]),
            (OpKind::AllToAll, [Inline, Inline, Staged, Staged, ProcessVm]),
        ] {
            let taken = [64, 640, 1280, 64 << 10, 16 << 20].map(|bytes| call(op, bytes).recommended());
            assert_eq!(taken, ways, "{op}");
        }
    }

    #[test]
    fn what_is_recommended_can_be_taken_and_what_is_forced_is_taken_where_it_can() {
        let ops =
            [OpKind::AllReduce, OpKind::ReduceScatter, OpKind::Broadcast, OpKind::Gather, OpKind::Barrier];
        for op in ops {
            for bytes in [0, 1, 112, 113, 1024, 1025, 4 << 10, 512 << 10, 64 << 20] {
                for (is_crowded, reads_memory) in [(false, false), (false, true), (true, false), (true, true)]
                {
                    let call = MemoryCall { is_crowded, reads_memory, ..call(op, bytes) };
                    assert_eq!(call.obstacle(call.recommended()), None, "{call:?}");
                    for &way in MemoryWay::of(op) {
                        let can = call.obstacle(way).is_none();
                        assert_eq!(call.choose(Some(way)), if can { way } else { call.recommended() });
                    }
                }
            }
        }
    }
}
