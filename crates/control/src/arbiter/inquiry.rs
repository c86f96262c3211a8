//! A late call, about which the arbiter asks the ranks.

use phalanx_core::Cause;
use std::collections::BTreeSet;

/// A late call, while ranks are asked about it. The reporter waits for the verdict meanwhile.
#[derive(Debug)]
pub(super) struct Inquiry {
    /// The ranks that were late in it and have said so.
    pub(super) reporters: BTreeSet<usize>,
    pub(super) members: Vec<usize>,
    /// As the first of them put it.
    pub(super) cause: Cause,
    /// The ranks that have not said where in the group they are.
    pub(super) unheard: BTreeSet<usize>,
    /// Whether a reporter has said it again: it waits no longer.
    pub(super) insisted: bool,
}

impl Inquiry {
    /// Whether this is a late call of which other ranks know more.
    pub(super) fn is_worth(cause: &Cause) -> bool {
        matches!(cause, Cause::TimedOut { seq: 1.., .. } | Cause::TimedOut { envelope: Some(_), .. })
    }

    /// `rank` has said where it is. Whether that was the last answer.
    pub(super) fn heard(&mut self, rank: usize) -> bool {
        self.unheard.remove(&rank) && self.unheard.is_empty()
    }
}
