//! What one job measures.

use crate::backend::Backend;
use crate::flags::Flags;
use crate::library::Library;
use crate::op::Op;

/// One operation on one backend with so many ranks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) backend: Backend,
    pub(crate) ranks: usize,
    pub(crate) op: Op,
}

impl Setting {
    /// What is measured now, for a line of progress.
    pub(crate) fn label(self, library: &Library, round: usize, flags: &Flags) -> String {
        let Self { op, ranks, backend } = self;
        let (number, rounds) = (round + 1, flags.rounds());
        format!("{op}, {ranks} ranks, {}: {} ({number}/{rounds})", backend.name(), library.name())
    }
}
