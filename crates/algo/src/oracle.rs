//! What each operation starts from and must end with, element by element, without any algorithm.

use crate::Job;
use phalanx_core::{Layout, OpKind};
use std::fmt;

/// Set of ranks; bounds the worlds that can be checked.
pub(crate) type Ranks = u128;

/// What an element stands for: not a number but where it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Element {
    /// Its place in the buffers of those who contributed.
    pub(crate) index: usize,
    /// Whose contributions are in it; none yet where the buffer holds nothing of meaning.
    pub(crate) from: Ranks,
    /// Whether the reduce operator was finished.
    pub(crate) finished: bool,
    /// How it was combined: equal only if the same values were combined in the same order, up to commuting two operands.
    pub(crate) history: u64,
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.from == 0 {
            return f.write_str("nothing");
        }
        let ranks: Vec<_> = (0..Ranks::BITS).filter(|r| self.from >> r & 1 == 1).collect();
        write!(
            f,
            "element {} of ranks {ranks:?}{}",
            self.index,
            if self.finished { ", finished" } else { "" }
        )
    }
}

impl Element {
    /// Nothing of meaning.
    pub(crate) const BLANK: Self = Self { index: 0, from: 0, finished: false, history: 0 };

    fn of(rank: usize, index: usize) -> Self {
        Self { index, from: 1 << rank, finished: false, history: mix(rank as u64) }
    }

    /// Whether this is the same element with the same contributions, combined in whatever order.
    pub(crate) fn same_as(self, other: Self) -> bool {
        (self.index, self.from, self.finished) == (other.index, other.from, other.finished)
    }

    /// Whether it is some but not all of a reduction.
    pub(crate) fn is_partial(self) -> bool {
        self.from.count_ones() > 1 && !self.finished
    }

    /// `self ∘ other`.
    ///
    /// # Errors
    /// If that makes no sense.
    pub(crate) fn combine(self, other: Self, finish: bool, everybody: Ranks) -> Result<Self, &'static str> {
        let from = self.from | other.from;
        match () {
            () if self.from == 0 || other.from == 0 => Err("combines what is no contribution"),
            () if self.index != other.index => Err("combines elements of different places"),
            () if self.finished || other.finished => Err("combines what was finished"),
            () if self.from & other.from != 0 => Err("combines a contribution twice"),
            () if finish && from != everybody => Err("finishes before all contributions are in"),
            () => Ok(Self {
                from,
                finished: finish,
                history: mix(self.history.wrapping_add(other.history)),
                ..self
            }),
        }
    }
}

/// Scrambles, so that sums of histories tell apart which were summed first (the finalizer of splitmix64).
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The buffer of `rank` before the operation (of `all_to_all` its input).
pub(crate) fn before(job: &Job, rank: usize) -> Vec<Element> {
    let layout = job.shape(rank).layout;
    let known = match job.op() {
        OpKind::AllGather | OpKind::Gather => layout.block(rank),
        OpKind::Broadcast | OpKind::Scatter if rank != job.root() => 0..0,
        _ => 0..layout.len(),
    };
    (0..layout.len())
        .map(|i| if known.contains(&i) { Element::of(rank, i) } else { Element::BLANK })
        .collect()
}

/// The output of `rank` in `all_to_all` before the operation: its own block is there, the rest blank.
pub(crate) fn output_before(job: &Job, rank: usize) -> Vec<Element> {
    let shape = job.shape(rank);
    let output = shape.recv_layout.unwrap_or(shape.layout);
    let mut elements = vec![Element::BLANK; output.len()];
    for (at, index) in output.block(rank).zip(shape.layout.block(rank)) {
        elements[at] = Element::of(rank, index);
    }
    elements
}

/// What the element at `at` of `rank` must be after the operation, whatever its history. `None` where anything may be left.
pub(crate) fn after(job: &Job, rank: usize, at: usize) -> Option<Element> {
    let shape = job.shape(rank);
    let reduced = Element { index: at, from: everybody(job), finished: job.world_size() > 1, history: 0 };
    let from = |source: usize| Element::of(source, at);
    let owner = |layout: &Layout| {
        (0..job.world_size()).find(|&r| layout.block(r).contains(&at)).expect("layouts cover the buffer")
    };
    match job.op() {
        OpKind::AllReduce => Some(reduced),
        OpKind::ReduceScatter => shape.layout.block(rank).contains(&at).then_some(reduced),
        OpKind::Reduce => (rank == job.root()).then_some(reduced),
        OpKind::AllGather => Some(from(owner(shape.layout))),
        OpKind::Gather => (rank == job.root()).then(|| from(owner(shape.layout))),
        OpKind::Broadcast => Some(from(job.root())),
        OpKind::Scatter => shape.layout.block(rank).contains(&at).then(|| from(job.root())),
        OpKind::AllToAll => {
            let output = shape.recv_layout.unwrap_or(shape.layout);
            let source = owner(output);
            let index = job.shape(source).layout.block(rank).start + at - output.block(source).start;
            Some(Element::of(source, index))
        }
        _ => None,
    }
}

/// All ranks of the job.
pub(crate) fn everybody(job: &Job) -> Ranks {
    Ranks::MAX >> (Ranks::BITS as usize - job.world_size())
}
