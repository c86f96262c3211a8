//! PMIx, by its library `libpmix.so.2`, which is loaded when it is needed: the file that `PHALANX_PMIX_LIBRARY` names, else the one that the launcher has
//! loaded, else the system's.

mod launcher;
mod sys;

use crate::fault::Fault;
use phalanx_core::Deadline;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::Instant;
use sys::Table;

/// Whether a thread is inside the library.
static IS_INSIDE: AtomicBool = AtomicBool::new(false);

/// Says `value`, that of process 0, to all processes of the launcher's job, or hears it. Collective: returns once all have called it. `rank` is
/// the number of this process; the launcher must agree.
///
/// The library stays loaded. Once the deadline has passed, the thread that waits in it stays behind, for as long as the library keeps it: the
/// library's calls can't be called back. Until then another call is refused.
///
/// # Errors
/// [`Fault::Unusable`]: there is no library, or it says what went wrong, or counts the processes otherwise. [`Fault::Late`]: another process did
/// not come in time.
///
/// # Examples
/// Where no launcher has started this process, its library says so, if there is one:
/// ```
/// use phalanx_core::Deadline;
/// use std::time::{Duration, Instant};
///
/// # if std::env::var_os("PMIX_RANK").is_none() {
/// let soon = Deadline::after(Instant::now(), Duration::from_secs(20));
/// assert!(phalanx_pmi::pmix::share(1, "meeting", None, &soon).is_err());
/// # }
/// ```
pub fn share(rank: u32, key: &str, value: Option<&str>, deadline: &Deadline) -> Result<String, Fault> {
    if (rank == 0) != value.is_some() {
        return Err(Fault::unusable("process 0 has the value, and nobody else"));
    }
    if IS_INSIDE.swap(true, Ordering::AcqRel) {
        return Err(Fault::unusable("an earlier call of PMIx's library has not come back"));
    }
    let inside = Inside;
    let (key, value) = (key.to_owned(), value.map(str::to_owned));
    let (done, outcome) = channel();
    let thread = Builder::new().name("phalanx-pmix".into()).spawn(move || {
        let said = Table::load().and_then(|table| table.share(rank, &key, value.as_deref()));
        drop(inside);
        // Nobody hears it after the deadline.
        let _ = done.send(said);
    });
    thread.map_err(|error| Fault::unusable(format!("no thread could be started: {error}")))?;
    match outcome.recv_timeout(deadline.remaining(Instant::now())) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Timeout) => Err(Fault::Late("all processes of the job at PMIx's fence".into())),
        Err(RecvTimeoutError::Disconnected) => Err(Fault::unusable("the thread that calls PMIx ended")),
    }
}

/// The thread that is inside the library; dropped where there is none any more.
struct Inside;

impl Drop for Inside {
    fn drop(&mut self) {
        IS_INSIDE.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn one_call_at_a_time_is_inside_the_library() {
        let share = || {
            let soon = Deadline::after(Instant::now(), Duration::from_secs(20));
            share(1, "key", None, &soon).unwrap_err().to_string()
        };
        IS_INSIDE.store(true, Ordering::Release);
        assert!(share().contains("an earlier call"));
        drop(Inside);
        assert!(!share().contains("an earlier call"));
        assert!(!share().contains("an earlier call"));
    }
}
