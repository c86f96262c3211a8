//! Which copies between ranks that share memory are the C library's, and not vectors: [measured](crate::copy_choice) or forced, once in the life of a process.

use phalanx_core::LibraryCopy;
use std::sync::OnceLock;

/// Whether those that write what another rank has read last are the C library's.
pub(crate) fn writes(choice: LibraryCopy) -> bool {
    choice != LibraryCopy::Never
}

/// Whether those that read what another rank has written are.
pub(crate) fn reads(choice: LibraryCopy) -> bool {
    choice == LibraryCopy::Always
}

/// Whose copies they are: different ones may be the fastest for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Among {
    /// Two ranks.
    Pair,
    /// More.
    Many,
}

impl Among {
    pub(crate) fn of(world_size: usize) -> Self {
        if world_size == 2 { Self::Pair } else { Self::Many }
    }
}

/// What this process has found out as rank 0, or was told by one.
static FOUND: [OnceLock<LibraryCopy>; 2] = [OnceLock::new(), OnceLock::new()];

/// From now on ranks that share memory, of which this process is rank 0, let the C library copy so. The first that is said in the life of a process counts, and what was measured before.
pub fn force_library_copy(choice: LibraryCopy) {
    [Among::Pair, Among::Many].into_iter().for_each(|among| remember(among, choice));
}

/// This process has found that out, or was told.
pub(crate) fn remember(among: Among, choice: LibraryCopy) {
    FOUND[among as usize].get_or_init(|| choice);
}

/// What this process has found, or was told, if it has.
pub(crate) fn found(among: Among) -> Option<LibraryCopy> {
    FOUND[among as usize].get().copied()
}

/// What the pipes of this process go by: vectors, until anything was found.
pub(crate) fn library_copy() -> LibraryCopy {
    found(Among::Pair).or_else(|| found(Among::Many)).unwrap_or(LibraryCopy::Never)
}
