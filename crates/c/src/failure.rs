//! What went wrong with a call: a status for the program, and words for a person, which the calling thread keeps.

use crate::status::Status;
use phalanx::Error;
use phalanx::error::Peer;
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What went wrong with a call.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    words: String,
    /// The rank at fault, where there is one.
    culprit: Option<usize>,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn misuse(words: impl Into<String>) -> Self {
        Self { status: Status::ErrorMisuse, words: words.into(), culprit: None }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let culprit = culprit(&error).map(|peer| peer.rank);
        Self { status: Status::of(&error), words: error.to_string(), culprit }
    }
}

fn culprit(error: &Error) -> Option<&Peer> {
    match error {
        Error::PeerLost { peer, .. } | Error::Protocol { peer, .. } | Error::Aborted { peer, .. } => {
            Some(peer)
        }
        Error::Timeout { missing, .. } => missing.first(),
        Error::Poisoned { cause, .. } => cause.culprit(),
        _ => None,
    }
}

struct Last {
    words: CString,
    culprit: Option<usize>,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::new(Last { words: CString::default(), culprit: None });
}

fn keep(failure: Failure) {
    let mut words = failure.words.into_bytes();
    words.retain(|&byte| byte != 0);
    let words = CString::new(words).unwrap_or_default();
    // A thread that ends has none any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = Last { words, culprit: failure.culprit });
}

/// Runs a function that C calls. What goes wrong in it, panics too, is kept as this thread's last error.
pub(crate) fn entry(run: impl FnOnce() -> Result<()>) -> Status {
    entry_with(|| run().map(|()| Status::Ok)).unwrap_or_else(|status| status)
}

/// As [`entry`], for functions that return something.
pub(crate) fn entry_with<T>(run: impl FnOnce() -> Result<T>) -> std::result::Result<T, Status> {
    // What a panic leaves behind in a group is what it leaves to Rust programs, which may catch it too.
    let done = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(panicked(&*panic)));
    done.map_err(|failure| {
        let status = failure.status;
        keep(failure);
        status
    })
}

fn panicked(panic: &(dyn Any + Send)) -> Failure {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words");
    Error::Internal { what: format!("a panic: {said}") }.into()
}

/// What went wrong in this thread's latest call that failed: a line of text, `""` if none has. It stays until another call of this thread fails.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().words.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The rank at fault in this thread's latest call that failed, among all ranks of the job: the one that died, did not come, or aborted. -1 where there is
/// none.
#[unsafe(no_mangle)]
pub extern "C" fn phalanx_last_error_rank() -> c_int {
    let rank = LAST.try_with(|last| last.borrow().culprit).ok().flatten();
    rank.and_then(|rank| c_int::try_from(rank).ok()).unwrap_or(-1)
}
