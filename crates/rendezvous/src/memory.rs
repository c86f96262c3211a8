//! A store within one process.

use crate::Store;
use crate::store::{misuse, not_set};
use crate::table::Table;
use phalanx_core::{Deadline, Result};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A store for ranks that are threads of one process. Clones share the table.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<Table>,
    changed: Condvar,
}

impl MemoryStore {
    /// An empty store.
    ///
    /// # Examples
    /// ```
    /// use phalanx_rendezvous::{MemoryStore, Store};
    ///
    /// let store = MemoryStore::new();
    /// store.clone().set("epoch", b"3")?; // a clone is the same store
    /// assert_eq!(store.try_get("epoch")?, Some(b"3".to_vec()));
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No call leaves the table half changed, so a panic elsewhere does not spoil it.
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<R>(&self, how: impl FnOnce(&mut Table) -> Result<R, String>) -> Result<R> {
        let result = how(&mut self.table()).map_err(misuse);
        self.0.changed.notify_all();
        result
    }
}

impl Store for MemoryStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.change(|table| table.set(key, value))
    }

    fn get(&self, key: &str, deadline: &Deadline) -> Result<Vec<u8>> {
        let mut table = self.table();
        loop {
            if let Some(value) = table.get(key).map_err(misuse)? {
                return Ok(value.to_vec());
            }
            let left = deadline.remaining(Instant::now());
            if left.is_zero() {
                return Err(not_set(&[key], 1, deadline));
            }
            table = self.0.changed.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.table().get(key).map_err(misuse)?.map(<[u8]>::to_vec))
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        self.change(|table| table.add(key, delta))
    }

    fn compare_set(&self, key: &str, expected: Option<&[u8]>, new: &[u8]) -> Result<bool> {
        self.change(|table| table.compare_set(key, expected, new))
    }

    fn delete(&self, key: &str) -> Result<bool> {
        self.change(|table| table.delete(key))
    }
}
