//! The starts of a job, which may be started again with a store that outlives it: a directory, or a server that somebody else runs.

use phalanx_core::Result;
use phalanx_rendezvous::{PrefixStore, Store};
use phalanx_transport::{Secret, random_number};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The starts that this process has been in.
static JOINED: Mutex<BTreeSet<Start>> = Mutex::new(BTreeSet::new());

/// The key of the latest start's number in the job's store.
const KEY: &str = "start";

/// One start of a job: a number that its rank 0 has chosen at random.
///
/// All that the ranks leave in the store lies under it, and all their handshakes prove it. So nothing of a start that was killed is taken for
/// something of the next: not the address of its rank 0, nor who was to go on after a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Start(u64);

impl Start {
    /// Begins one: what rank 0 does when it comes.
    ///
    /// # Errors
    /// Those of the store; there is no randomness.
    pub(crate) fn begin(job: &dyn Store) -> Result<Self> {
        let start = Self(random_number()?);
        job.set(KEY, &start.0.to_le_bytes())?;
        Ok(start)
    }

    /// The latest one; `None` if rank 0 has not come yet. It may be one that has ended.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn latest(job: &dyn Store) -> Result<Option<Self>> {
        // What somebody else wrote there is none.
        Ok(job.try_get(KEY)?.and_then(|bytes| Some(Self(u64::from_le_bytes(bytes.try_into().ok()?)))))
    }

    /// Keeps that this process has been in it.
    pub(crate) fn remember(self) {
        all_joined().insert(self);
    }

    /// Whether this process has been in it. Who leaves its job and joins it again waits for another start: the rank 0 of this one may
    /// still be there, and would refuse it.
    pub(crate) fn was_joined(self) -> bool {
        all_joined().contains(&self)
    }

    /// Whether this process has been in any.
    pub(crate) fn any_was_joined() -> bool {
        !all_joined().is_empty()
    }

    /// The secret of its processes.
    pub(crate) fn secret(self, job: &Secret) -> Secret {
        job.of_start(self.0)
    }

    /// Its part of the job's store.
    pub(crate) fn corner(self, job: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(PrefixStore::new(format!("start {:016x}", self.0), job))
    }
}

fn all_joined() -> MutexGuard<'static, BTreeSet<Start>> {
    JOINED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_rendezvous::MemoryStore;

    #[test]
    fn nothing_of_one_start_is_found_by_the_next() {
        let job: Arc<dyn Store> = Arc::new(MemoryStore::new());
        assert_eq!(Start::latest(&job).unwrap(), None);
        let first = Start::begin(&job).unwrap();
        first.corner(job.clone()).set("arbiter", b"10.0.0.7:4000").unwrap();
        let second = Start::begin(&job).unwrap();
        assert_eq!(Start::latest(&job).unwrap(), Some(second));
        assert_eq!(second.corner(job.clone()).try_get("arbiter").unwrap(), None);
        let secret = Secret::generate().unwrap();
        assert!(first.secret(&secret) != second.secret(&secret));
        second.remember();
        assert!(second.was_joined() && !first.was_joined() && Start::any_was_joined());
        job.set(KEY, b"what is this").unwrap();
        assert_eq!(Start::latest(&job).unwrap(), None);
    }
}
