//! What the launcher of an elastic job tells its processes: who was started, and who has ended.

use crate::Store;
use phalanx_core::{Error, Result};

/// Where it stands in the store.
const KEY: &str = "workers";

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
/// Workers { started: 5, ended: vec![2] }.publish(&store)?;
/// let workers = Workers::read(&store)?.unwrap();
/// assert_eq!(workers.living().collect::<Vec<_>>(), [0, 1, 3, 4]);
/// # Ok::<(), phalanx_core::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workers {
    /// Workers `0..started` have been started.
    pub started: u64,
    /// Those of them that have ended, however.
    pub ended: Vec<u64>,
}

impl Workers {
    /// Those that have not ended.
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
        store.set(KEY, text.join(" ").as_bytes())
    }

    /// What was told last; `None` in a job whose launcher tells nothing.
    ///
    /// # Errors
    /// Those of the store; [`Error::Config`] if something else wrote there.
    pub fn read(store: &(impl Store + ?Sized)) -> Result<Option<Self>> {
        let Some(text) = store.try_get(KEY)? else { return Ok(None) };
        let text = String::from_utf8_lossy(&text);
        let numbers: Option<Vec<u64>> = text.split(' ').map(|number| number.parse().ok()).collect();
        match numbers.as_deref() {
            Some([started, ended @ ..]) => Ok(Some(Self { started: *started, ended: ended.to_vec() })),
            _ => Err(Error::config(format!("the store says of the job's workers: {text:?}"))),
        }
    }
}
