//! The plan of one operation, which all ranks of a team follow: it decides which bytes go where. Each post is checked by it.

use crate::hash::mix;
use phalanx_algo::MemoryWay;
use phalanx_core::{Layout, Method};

/// How an operation is performed, and on how much. All of it is the same on all ranks.
///
/// What lies in a [window](crate::Window) on one rank need not on another: that the posts say, and who can't do the same has all begin anew.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan<'a> {
    pub(crate) kind: Kind,
    pub(crate) how: MemoryWay,
    /// Bytes that each rank has to give or take.
    pub(crate) bytes: usize,
    /// Bytes staged at once, where so many do not go at once.
    pub(crate) piece: usize,
    /// The layout of the ranks' blocks, where there are any.
    pub(crate) layout: Option<&'a Layout>,
}

/// The kind of work. One signature may mean several of these, where an operation is made of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Join,
    Barrier,
    Reduce,
    ReduceScatter,
    /// An exchange in which each rank gives one part for all.
    Share,
    /// An exchange in which each rank gives a part for each.
    Deal,
    /// An exchange of parts whose lengths only two ranks know each.
    DealUnevenly,
}

impl<'a> Plan<'a> {
    /// The plan of work without a length.
    pub(crate) const fn of(kind: Kind, how: MemoryWay) -> Self {
        Self { kind, how, bytes: 0, piece: 0, layout: None }
    }

    pub(crate) const fn over(self, bytes: usize) -> Self {
        Self { bytes, ..self }
    }

    pub(crate) const fn in_pieces_of(self, piece: usize) -> Self {
        Self { piece, ..self }
    }

    pub(crate) const fn with(self, layout: Option<&'a Layout>) -> Self {
        Self { layout, ..self }
    }

    /// A few cycles: the shortest operations take a few hundred.
    #[inline(always)]
    pub(crate) fn fingerprint(&self) -> u64 {
        let small = (self.kind as u64) << 8 | self.how as u64;
        let layout = self.layout.map_or(0, Layout::fingerprint);
        mix(mix(mix(small, self.bytes as u64), self.piece as u64), layout)
    }

    /// For whoever finds a difference.
    pub(crate) fn method(&self) -> Method {
        let kind = match self.kind {
            Kind::Join => "joining",
            Kind::Barrier => "barrier",
            Kind::Reduce => "reduce",
            Kind::ReduceScatter => "reduce_scatter",
            Kind::Share => "copies to all",
            Kind::Deal => "copies to each",
            Kind::DealUnevenly => "uneven copies to each",
        };
        let how = match self.how {
            MemoryWay::Mutual => "all with all",
            MemoryWay::Central => "all with one",
            MemoryWay::Inline => "inline",
            MemoryWay::OneShot => "in one shot",
            MemoryWay::TwoPhases => "in two phases",
            MemoryWay::Push => "by push",
            MemoryWay::Staged => "through staging",
            MemoryWay::ProcessVm => "from memory",
            MemoryWay::Shared => "from memory by all",
        };
        let mut words = format!("{kind} {how}");
        if self.bytes > 0 {
            words += &format!(" of {} bytes", self.bytes);
        }
        if self.piece > 0 {
            words += &format!(" by {}", self.piece);
        }
        if let Some(layout) = self.layout {
            words += &format!(" in {}", layout.describe());
        }
        words.into()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_in_the_fingerprint_and_in_the_words() {
        let (even, odd) = (Layout::even(2, 10), Layout::from_counts(&[4, 6]));
        let base = Plan::of(Kind::Deal, MemoryWay::Staged).over(640).in_pieces_of(64).with(Some(&even));
        assert_eq!(
            base.method().as_str(),
            "copies to each through staging of 640 bytes by 64 in 2 blocks of 5"
        );
        let others = [
            Plan { kind: Kind::Share, ..base },
            Plan { how: MemoryWay::ProcessVm, ..base },
            base.over(641),
            base.in_pieces_of(128),
            base.with(Some(&odd)),
            base.with(None),
        ];
        for other in others {
            assert_ne!(other.fingerprint(), base.fingerprint(), "{other:?}");
            assert_ne!(other.method(), base.method(), "{other:?}");
        }
    }
}
