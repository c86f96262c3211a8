//! The trait all stores implement, and the rules they share.

use phalanx_core::{Deadline, Error, OpKind, Result};
use std::sync::Arc;
use std::time::Instant;

/// Longest key, in bytes.
pub const KEY_LEN_MAX: usize = 1 << 10;
/// Longest value, in bytes.
pub const VALUE_LEN_MAX: usize = 1 << 20;

/// A key-value table that all processes of a job see.
///
/// For rendezvous, not for bulk data: keys have at most [`KEY_LEN_MAX`] bytes, values at most [`VALUE_LEN_MAX`]. Any string
/// is a key, the empty one and those with `/`, `..` or NUL included. Each call is atomic: what it does happens at one
/// moment between its beginning and its end, the same moment for all clients. The suite
/// `phalanx_testkit::store_conformance!` is the long form of this contract; a new store joins it with one line.
///
/// # Errors
/// Every method returns [`Error::Misuse`] for a key or value that is too long, and [`Error::Io`] when the store cannot be
/// reached any more. [`Error::Rendezvous`] means that a wait was in vain and nothing else. A store does not know
/// the rank of its user: rank and world size are 0 there.
pub trait Store: Send + Sync {
    /// Sets `key` to `value` and wakes who waits for it.
    fn set(&self, key: &str, value: &[u8]) -> Result<()>;

    /// The value of `key`; waits until there is one. A value that is already there is returned even if the
    /// deadline has passed.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] when the deadline passes first; it names the key.
    fn get(&self, key: &str, deadline: &Deadline) -> Result<Vec<u8>>;

    /// The value of `key`, if it has one now.
    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>>;

    /// Adds `delta` to the counter `key`, which starts at 0, and returns the sum. The counter's value is its decimal
    /// text, so [`get`](Self::get) reads it and [`set`](Self::set) can reset it.
    ///
    /// # Errors
    /// [`Error::Misuse`] if the value is not a decimal number or the sum does not fit; it stays as it was.
    fn add(&self, key: &str, delta: i64) -> Result<i64>;

    /// Sets `key` to `new` if its value is `expected` (`None`: if it has none). Whether it did.
    fn compare_set(&self, key: &str, expected: Option<&[u8]>, new: &[u8]) -> Result<bool>;

    /// Removes `key`. Whether it was there.
    fn delete(&self, key: &str) -> Result<bool>;

    /// The values of all `keys`, in their order; waits until the last is there.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] when the deadline passes first; it names the keys that are missing.
    fn get_all(&self, keys: &[&str], deadline: &Deadline) -> Result<Vec<Vec<u8>>> {
        let (mut values, mut missing) = (Vec::with_capacity(keys.len()), Vec::new());
        for key in keys {
            match self.get(key, deadline) {
                Ok(value) => values.push(value),
                // The others are asked for nevertheless: those that are there come at once.
                Err(Error::Rendezvous { .. }) => missing.push(*key),
                Err(error) => return Err(error),
            }
        }
        if missing.is_empty() { Ok(values) } else { Err(not_set(&missing, keys.len(), deadline)) }
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        (**self).set(key, value)
    }
    fn get(&self, key: &str, deadline: &Deadline) -> Result<Vec<u8>> {
        (**self).get(key, deadline)
    }
    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        (**self).try_get(key)
    }
    fn add(&self, key: &str, delta: i64) -> Result<i64> {
        (**self).add(key, delta)
    }
    fn compare_set(&self, key: &str, expected: Option<&[u8]>, new: &[u8]) -> Result<bool> {
        (**self).compare_set(key, expected, new)
    }
    fn delete(&self, key: &str) -> Result<bool> {
        (**self).delete(key)
    }
}

/// The error of a call that breaks a rule of the store.
pub(crate) fn misuse(what: impl Into<String>) -> Error {
    // Stores serve the ranks while they come together.
    Error::misuse(OpKind::Init, what)
}

/// The error of a wait for `missing`, out of `asked` keys, that took too long.
pub(crate) fn not_set(missing: &[&str], asked: usize, deadline: &Deadline) -> Error {
    const NAMED_MAX: usize = 8;
    let mut what = match missing {
        [_] if asked == 1 => "nobody set the key ".to_owned(),
        _ => format!("nobody set {} of {asked} keys: ", missing.len()),
    };
    for (i, key) in missing.iter().take(NAMED_MAX).enumerate() {
        what.push_str(if i > 0 { ", " } else { "" });
        what.push_str(&format!("{key:?}"));
    }
    if missing.len() > NAMED_MAX {
        what.push_str(", …");
    }
    Error::Rendezvous { rank: 0, world_size: 0, what, waited: deadline.elapsed(Instant::now()) }
}

/// Refuses a key that is too long.
pub(crate) fn check_key(key: &str) -> Result<(), String> {
    match key.len() {
        0..=KEY_LEN_MAX => Ok(()),
        len => Err(format!("a store's key has at most {KEY_LEN_MAX} bytes, this one has {len}")),
    }
}

/// Refuses a key or value that is too long.
pub(crate) fn check(key: &str, value: &[u8]) -> Result<(), String> {
    check_key(key)?;
    match value.len() {
        0..=VALUE_LEN_MAX => Ok(()),
        len => {
            Err(format!("a store's value has at most {VALUE_LEN_MAX} bytes; the one for {key:?} has {len}"))
        }
    }
}

/// The counter `key` after `delta`, from its present value.
pub(crate) fn count(key: &str, present: Option<&[u8]>, delta: i64) -> Result<i64, String> {
    let present = match present {
        None => 0,
        Some(text) => std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.parse::<i64>().ok())
            .ok_or_else(|| format!("cannot add to {key:?}: its value is not a decimal number"))?,
    };
    present
        .checked_add(delta)
        .ok_or_else(|| format!("cannot add {delta} to {key:?}: {present} is too close to the limit"))
}
