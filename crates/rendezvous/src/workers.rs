//! The record of an elastic job's workers, which the launcher keeps in the store: how many were started, and which have ended.

use crate::Store;
use phalanx_core::{Error, Result};

/// The words behind the numbers once one has succeeded.
const SUCCEEDED: &str = " succeeded";

/// The processes of an elastic job. A worker's number is never given to another process.
///
/// The launcher alone writes this. That a process has ended and that another takes its place is one change, so nobody finds
/// the job complete in between.
///
/// ```
/// use phalanx_rendezvous::{MemoryStore, Workers};
///
/// let store = MemoryStore::new();
/// assert_eq!(Workers::read(&store)?, None);
/// Workers { started: 5, ended: vec![2], succeeded: false }.publish(&store)?;
/// let workers = Workers::read(&store)?.unwrap();
/// assert_eq!(workers.living().collect::<Vec<_>>(), [0, 1, 3, 4]);
/// # Ok::<(), phalanx_core::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workers {
    /// Workers `0..started` have been started.
    pub started: u64,
    /// The workers that have ended, however.
    pub ended: Vec<u64>,
    /// Whether one of those has succeeded: the work is done, or all but done.
    pub succeeded: bool,
}

impl Workers {
    /// The key in the store. The value is the number `started`, and all that have ended.
    pub const KEY: &str = "workers";

    /// The workers that have not ended.
    pub fn living(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.started).filter(|worker| !self.ended.contains(worker))
    }

    /// Tells all who see `store`.
    ///
    /// # Errors
    /// Those of the store.
    pub fn publish(&self, store: &impl Store) -> Result<()> {
        let numbers = std::iter::once(&self.started).chain(&self.ended);
        let text: Vec<String> = numbers.map(u64::to_string).collect();
        let end = if self.succeeded { SUCCEEDED } else { "" };
        store.set(Self::KEY, (text.join(" ") + end).as_bytes())
    }

    /// Reads the record; `None` in a job whose launcher keeps none.
    ///
    /// # Errors
    /// Those of the store; [`Error::Config`] if something else wrote there.
    pub fn read(store: &(impl Store + ?Sized)) -> Result<Option<Self>> {
        store.try_get(Self::KEY)?.map(|value| Self::parse(&value)).transpose()
    }

    /// The record that stands under [`KEY`](Self::KEY) as this value.
    ///
    /// # Errors
    /// [`Error::Config`] if something else wrote it.
    ///
    /// # Examples
    /// ```
    /// use phalanx_rendezvous::Workers;
    ///
    /// assert_eq!(Workers::parse(b"4 2 0")?.ended, [2, 0]);
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn parse(value: &[u8]) -> Result<Self> {
        let text = String::from_utf8_lossy(value);
        let (list, succeeded) = text.strip_suffix(SUCCEEDED).map_or((&*text, false), |list| (list, true));
        let numbers: Option<Vec<u64>> = list.split(' ').map(|number| number.parse().ok()).collect();
        match numbers.as_deref() {
            Some([started, ended @ ..]) => Ok(Self { started: *started, ended: ended.to_vec(), succeeded }),
            _ => Err(Error::config(format!(
                "the store's record of the job's workers cannot be read: {text:?}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;

    #[test]
    fn what_is_told_is_read() {
        let store = MemoryStore::new();
        for (ended, succeeded) in [(vec![], false), (vec![2, 0], false), (vec![3], true)] {
            let told = Workers { started: 4, ended, succeeded };
            told.publish(&store).unwrap();
            assert_eq!(Workers::read(&store).unwrap(), Some(told));
        }
        store.set(Workers::KEY, b"succeeded").unwrap();
        assert!(matches!(Workers::read(&store), Err(Error::Config { .. })));
    }
}
