//! Which copies between ranks that share memory are the C library's, and not vectors: [measured](crate::copy_choice) or forced, once in the life of a process.

use std::sync::OnceLock;

/// Which copies to and from the memory that ranks share are the C library's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LibraryCopy {
    /// None.
    Never,
    /// Those that write what another rank has read last.
    Write,
    /// Those, and those that read what another rank has written.
    Always,
}

impl LibraryCopy {
    pub(crate) const ALL: [Self; 3] = [Self::Never, Self::Write, Self::Always];

    pub(crate) fn writes(self) -> bool {
        self != Self::Never
    }

    pub(crate) fn reads(self) -> bool {
        self == Self::Always
    }

    /// In a word that ranks give each other; 0 means that nothing is known.
    pub(crate) fn code(choice: Option<Self>) -> u64 {
        choice.map_or(0, |choice| choice as u64 + 1)
    }

    pub(crate) fn of_code(code: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|&choice| Self::code(Some(choice)) == code)
    }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_chosen_is_told_in_a_word() {
        for choice in LibraryCopy::ALL.map(Some).into_iter().chain([None]) {
            assert_eq!(LibraryCopy::of_code(LibraryCopy::code(choice)), choice);
        }
    }
}
