//! A corner of a store.

use crate::Store;
use phalanx_core::{Deadline, Result};

/// Puts `prefix/` before every key, so that several users of one store don't meet.
///
/// Prefixes nest like directories: `a` in `b` is `b/a`. The prefix counts towards the limit of a key's length.
///
/// ```
/// use phalanx_rendezvous::{MemoryStore, PrefixStore, Store};
///
/// let store = MemoryStore::new();
/// PrefixStore::new("attempt 0", store.clone()).set("address", b"10.0.0.7:41234")?;
/// assert_eq!(PrefixStore::new("attempt 1", store.clone()).try_get("address")?, None);
/// assert!(store.try_get("attempt 0/address")?.is_some());
/// # Ok::<(), phalanx_core::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct PrefixStore<S> {
    prefix: String,
    inner: S,
}

impl<S: Store> PrefixStore<S> {
    /// The part of `inner` whose keys begin with `prefix/`.
    ///
    /// # Examples
    /// ```
    /// use phalanx_rendezvous::{MemoryStore, PrefixStore, Store};
    ///
    /// let store = MemoryStore::new();
    /// PrefixStore::new("attempt 0", store.clone()).set("address", b"10.0.0.7:41234")?;
    /// assert!(store.try_get("attempt 0/address")?.is_some());
    /// # Ok::<(), phalanx_core::Error>(())
    /// ```
    pub fn new(prefix: impl Into<String>, inner: S) -> Self {
        Self { prefix: prefix.into(), inner }
    }

    fn full(&self, key: &str) -> String {
        format!("{}/{key}", self.prefix)
    }
}

impl<S: Store> Store for PrefixStore<S> {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.inner.set(&self.full(key), value)
    }

    fn get(&self, key: &str, deadline: &Deadline) -> Result<Vec<u8>> {
        self.inner.get(&self.full(key), deadline)
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.inner.try_get(&self.full(key))
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        self.inner.add(&self.full(key), delta)
    }

    fn compare_set(&self, key: &str, expected: Option<&[u8]>, new: &[u8]) -> Result<bool> {
        self.inner.compare_set(&self.full(key), expected, new)
    }

    fn delete(&self, key: &str) -> Result<bool> {
        self.inner.delete(&self.full(key))
    }
}
