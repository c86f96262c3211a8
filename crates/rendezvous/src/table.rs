//! The table itself, without clients: what [`MemoryStore`](crate::MemoryStore) shares with the TCP server.

use crate::store::{check, check_key, count};
use std::collections::HashMap;

/// Bytes of all keys and values, far more than any job needs to come together: nobody can make the server hold more and more.
const LEN_MAX: usize = 1 << 30;
/// The bytes that an entry takes besides its key and value.
const ENTRY_LEN: usize = 128;

/// Keys and values. Errors are texts, for they may have to travel.
#[derive(Debug)]
pub(crate) struct Table {
    entries: HashMap<String, Vec<u8>>,
    len: usize,
    len_max: usize,
}

impl Default for Table {
    fn default() -> Self {
        Self { entries: HashMap::new(), len: 0, len_max: LEN_MAX }
    }
}

impl Table {
    pub(crate) fn set(&mut self, key: &str, value: &[u8]) -> Result<(), String> {
        check(key, value)?;
        let len = self.len - self.len_of(key) + ENTRY_LEN + key.len() + value.len();
        if len > self.len_max {
            return Err(format!("the store is full: {} of {} bytes", self.len, self.len_max));
        }
        self.len = len;
        self.entries.insert(key.to_owned(), value.to_vec());
        Ok(())
    }

    pub(crate) fn get(&self, key: &str) -> Result<Option<&[u8]>, String> {
        check_key(key)?;
        Ok(self.entries.get(key).map(Vec::as_slice))
    }

    pub(crate) fn add(&mut self, key: &str, delta: i64) -> Result<i64, String> {
        let sum = count(key, self.get(key)?, delta)?;
        self.set(key, sum.to_string().as_bytes())?;
        Ok(sum)
    }

    pub(crate) fn compare_set(
        &mut self,
        key: &str,
        expected: Option<&[u8]>,
        new: &[u8],
    ) -> Result<bool, String> {
        check(key, new)?;
        check(key, expected.unwrap_or_default())?;
        let same = self.get(key)? == expected;
        if same {
            self.set(key, new)?;
        }
        Ok(same)
    }

    pub(crate) fn delete(&mut self, key: &str) -> Result<bool, String> {
        check_key(key)?;
        self.len -= self.len_of(key);
        Ok(self.entries.remove(key).is_some())
    }

    /// The bytes that the entry of `key` takes; 0 if there is none.
    fn len_of(&self, key: &str) -> usize {
        self.entries.get(key).map_or(0, |value| ENTRY_LEN + key.len() + value.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_takes_no_more_until_something_is_deleted() {
        let mut table = Table { len_max: 2 * (ENTRY_LEN + 2), ..Table::default() };
        table.set("a", b"1").unwrap();
        table.set("a", b"2").unwrap();
        table.set("b", b"1").unwrap();
        assert!(table.set("c", b"1").unwrap_err().contains("full"));
        assert!(table.set("b", b"12").is_err(), "not even a longer value");
        assert_eq!(table.get("b"), Ok(Some(&b"1"[..])));
        table.delete("a").unwrap();
        table.set("c", b"1").unwrap();
    }
}
