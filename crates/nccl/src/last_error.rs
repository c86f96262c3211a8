//! NCCL's last error as text: one for the whole process, which stays whatever it was about and however long ago.

use crate::sys::nccl::RawComm;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Which of these words are about which communicator, as far as that can be known.
#[derive(Debug)]
pub(crate) struct LastErrors(Mutex<Known>);

/// The last errors of this process.
pub(crate) static LAST_ERRORS: LastErrors = LastErrors::new();

#[derive(Debug)]
struct Known {
    /// The text that was there already when all was well with a communicator, by its address; 0 for text about none.
    stale: BTreeMap<usize, String>,
    /// The text that was told of a communicator, and its address.
    told: Option<(String, usize)>,
}

fn key(comm: Option<RawComm>) -> usize {
    comm.map_or(0, |comm| comm as usize)
}

impl LastErrors {
    const fn new() -> Self {
        Self(Mutex::new(Known { stale: BTreeMap::new(), told: None }))
    }

    /// Notes that `comm` is well: the text so far is not about it.
    pub(crate) fn all_is_well(&self, comm: Option<RawComm>, said: &str) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match known.stale.get_mut(&key(comm)) {
            Some(stale) if stale == said => {}
            Some(stale) => said.clone_into(stale),
            None => drop(known.stale.insert(key(comm), said.to_owned())),
        }
    }

    /// Forgets a communicator that has ended.
    pub(crate) fn forget(&self, comm: RawComm) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.stale.remove(&key(Some(comm)));
    }

    /// Whether `said` may be about an error of `comm`. It is not if it was said before that, or was told of another.
    pub(crate) fn are_about(&self, comm: Option<RawComm>, said: &str) -> bool {
        let (mut known, me) = (self.0.lock().unwrap_or_else(PoisonError::into_inner), key(comm));
        let is_stale = known.stale.get(&me).is_some_and(|stale| stale == said);
        let is_of_another = known.told.as_ref().is_some_and(|(told, whose)| told == said && *whose != me);
        if said.is_empty() || is_stale || is_of_another {
            return false;
        }
        known.told = Some((said.to_owned(), me));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_about_whom_they_came_with() {
        let (one, other) =
            (Some(std::ptr::without_provenance_mut(8)), Some(std::ptr::without_provenance_mut(16)));
        let words = LastErrors::new();
        assert!(!words.are_about(one, ""));
        words.all_is_well(one, "of long ago");
        assert!(!words.are_about(one, "of long ago"));
        assert!(words.are_about(one, "new") && words.are_about(one, "new"));
        assert!(!words.are_about(other, "new") && words.are_about(other, "newer"));
    }
}
