//! Locks that outlive a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lock, also after a thread has panicked that held it: what it guards is whole after every statement.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
