//! What all tests here share: one goes at a time, and says what it finds.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time, for the descriptors of this process are counted.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[allow(clippy::print_stdout, reason = "a person watches")]
pub(crate) fn say(what: impl std::fmt::Display) {
    println!("{what}");
}
