//! Which of our own is measured: they are shown beside each other, like libraries.

use crate::op::Op;
use crate::wire::Wire;
use serde::{Deserialize, Serialize};

/// One of our own that can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum Subject {
    /// Operations on a program's own buffers.
    #[default]
    Plain,
    /// Operations on buffers that the group has made, which all ranks of a host can reach.
    Registered,
    /// No operation: what it must cost. What memory alone takes for an all_reduce, see [`Limit`](crate::limit::Limit); over TCP what a
    /// plain socket takes, see [`Wire`].
    Limit,
}

impl Subject {
    const ALL: [Self; 3] = [Self::Plain, Self::Registered, Self::Limit];

    /// The name of the library in all that is shown.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "phalanx",
            Self::Registered => "phalanx registered",
            Self::Limit => "limit",
        }
    }

    /// The subject with this name; `None` for a peer.
    pub(crate) fn of(library: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|subject| subject.name() == library)
    }

    /// Whether `library` is this one, with its operations.
    pub(crate) fn is_phalanx(library: &str) -> bool {
        matches!(Self::of(library), Some(Self::Plain | Self::Registered))
    }

    /// Whether there can be anything to measure of `op` among `ranks`, on whichever backend.
    pub(crate) fn knows(self, op: Op, ranks: usize) -> bool {
        self != Self::Limit || (op == Op::AllReduce && ranks > 1) || Wire::knows(op, ranks)
    }
}
