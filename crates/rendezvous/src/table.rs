//! The table itself, without clients: what [`MemoryStore`](crate::MemoryStore) shares with the TCP server.

use crate::store::{check, check_key, count};
use std::collections::HashMap;

/// Keys and values. Errors are texts, for they may have to travel.
#[derive(Debug, Default)]
pub(crate) struct Table(HashMap<String, Vec<u8>>);

impl Table {
    pub(crate) fn set(&mut self, key: &str, value: &[u8]) -> Result<(), String> {
        check(key, value)?;
        self.0.insert(key.to_owned(), value.to_vec());
        Ok(())
    }

    pub(crate) fn get(&self, key: &str) -> Result<Option<&[u8]>, String> {
        check_key(key)?;
        Ok(self.0.get(key).map(Vec::as_slice))
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
        Ok(self.0.remove(key).is_some())
    }
}
