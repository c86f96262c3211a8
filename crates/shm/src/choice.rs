//! What ranks that share memory choose by a measurement, once in the life of a process.

use crate::team::Team;
use crate::{Call, Fault};
use std::time::Duration;

/// The way that took the shortest; of several such the first.
pub(crate) fn fastest<T: Copy, const WAYS: usize>(times: &[(T, Duration); WAYS]) -> T {
    times[1..].iter().fold(times[0], |best, &next| if next.1 < best.1 { next } else { best }).0
}

/// A way in a word that ranks give each other; 0 means that none is known.
fn word_of<T: PartialEq>(ways: &[T], way: Option<T>) -> u64 {
    way.and_then(|way| ways.iter().position(|other| *other == way)).map_or(0, |at| at as u64 + 1)
}

fn of_word<T: Copy>(ways: &[T], word: u64) -> Option<T> {
    ways.get(usize::try_from(word.checked_sub(1)?).ok()?).copied()
}

impl Team {
    /// Chooses one of `ways` for all ranks: the one that rank 0 knows, or finds by `measure`, which all ranks perform then. Collective.
    pub(crate) fn choose_way<T: Copy + PartialEq>(
        &mut self,
        ways: &[T],
        known: Option<T>,
        call: &mut Call<'_>,
        measure: impl FnOnce(&mut Self, &mut Call<'_>) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let known = self.exchange([word_of(ways, known), 0, 0], call)?[0][0];
        if let Some(known) = of_word(ways, known) {
            return Ok(known);
        }
        let own = measure(self, call)?;
        let found = self.exchange([word_of(ways, Some(own)), 0, 0], call)?[0][0];
        Ok(of_word(ways, found).unwrap_or(own))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use phalanx_core::{LibraryCopy, Staging};

    fn fastest_of<T: Copy>(ways: [T; 3], times: [u64; 3]) -> T {
        let mut times = times.into_iter().map(Duration::from_nanos);
        fastest(&ways.map(|way| (way, times.next().expect("as many"))))
    }

    #[test]
    fn the_shortest_is_the_best() {
        let best = |times| fastest_of(Staging::ALL, times);
        assert_eq!(best([1, 2, 3]), Staging::Own);
        assert_eq!(best([3, 1, 2]), Staging::Swapped);
        assert_eq!(best([2, 3, 1]), Staging::Claimed);
        assert_eq!(best([2, 2, 2]), Staging::Own, "the simplest");
    }

    #[test]
    fn the_fastest_copies_are_chosen() {
        let best = |times| fastest_of(LibraryCopy::ALL, times);
        assert_eq!(best([3, 2, 1]), LibraryCopy::Always);
        assert_eq!(best([3, 1, 2]), LibraryCopy::Write);
        assert_eq!(best([1, 2, 3]), LibraryCopy::Never);
        assert_eq!(best([2, 2, 2]), LibraryCopy::Never, "as before");
    }

    #[test]
    fn what_was_chosen_is_told_in_a_word() {
        let ways = LibraryCopy::ALL;
        for way in ways.map(Some).into_iter().chain([None]) {
            assert_eq!(of_word(&ways, word_of(&ways, way)), way);
        }
        assert_eq!(of_word(&ways, 4), None, "nonsense");
    }
}
