//! Operations in flight.

use crate::failure::{Failure, Result, entry, entry_with};
use crate::memory::Users;
use crate::status::Status;
use phalanx::Error;
use std::ffi::c_int;
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

/// An operation in flight. The buffers belong to it until it is over.
#[derive(Debug)]
pub struct Work {
    running: RwLock<Option<Running>>,
    users: Mutex<Option<Users>>,
    /// Of `recv_any`, the rank that has sent the message.
    outcome: OnceLock<Result<Option<usize>>>,
    /// A process that was forked has not got the threads that perform it.
    process: u32,
}

/// What runs, and what comes of it.
#[derive(Debug)]
pub(crate) enum Running {
    Nothing(phalanx::Work<()>),
    /// The rank that sent a message.
    Rank(phalanx::Work<usize>),
}

impl Running {
    fn wait_timeout(&self, timeout: Duration) -> bool {
        match self {
            Self::Nothing(work) => work.wait_timeout(timeout),
            Self::Rank(work) => work.wait_timeout(timeout),
        }
    }

    fn finish(self) -> phalanx::Result<Option<usize>> {
        match self {
            Self::Nothing(work) => work.wait().map(|()| None),
            Self::Rank(work) => work.wait().map(Some),
        }
    }
}

impl Work {
    pub(crate) fn new(running: Running, users: Users) -> Self {
        Self {
            running: RwLock::new(Some(running)),
            users: Mutex::new(Some(users)),
            outcome: OnceLock::new(),
            process: std::process::id(),
        }
    }

    /// # Safety
    /// `work` is null, or a work that was not freed.
    unsafe fn of<'w>(work: *const Self) -> Result<&'w Self> {
        // SAFETY: the caller says so.
        let work = unsafe { work.as_ref() };
        work.ok_or_else(|| Failure::misuse("the work is a null pointer: no operation has begun there"))
    }

    /// What came of it, if it is over within this time. Nobody uses the memory of its buffers any more then.
    fn wait(&self, timeout: Duration) -> Result<Option<&Result<Option<usize>>>> {
        if self.process != std::process::id() {
            return Err(Failure::misuse(
                "the work was begun by another process, from which this one was forked",
            ));
        }
        let is_over = self.outcome.get().is_some() || {
            let running = self.running.read().unwrap_or_else(PoisonError::into_inner);
            // Another thread may just be taking what came of it.
            running.as_ref().is_none_or(|running| running.wait_timeout(timeout))
        };
        Ok(is_over.then(|| self.outcome.get_or_init(|| self.finish())))
    }

    fn finish(&self) -> Result<Option<usize>> {
        let running = self.running.write().unwrap_or_else(PoisonError::into_inner).take();
        let twice = || Error::Internal { what: "what came of an operation was taken twice".into() };
        let done = running.ok_or_else(twice).and_then(Running::finish);
        if let Some(users) = self.users.lock().unwrap_or_else(PoisonError::into_inner).take() {
            users.wait();
        }
        Ok(done?)
    }
}

/// A time in seconds; infinity is no limit.
pub(crate) fn duration(seconds: f64) -> std::result::Result<Duration, String> {
    if seconds == f64::INFINITY {
        return Ok(Duration::MAX);
    }
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| format!("{seconds} is no time in seconds: it must be 0 or more"))
}

/// Waits until the operation is over, for at most so many seconds (`INFINITY`: as long as it takes, which the group's time limit bounds). Returns
/// `PHALANX_PENDING` if it is not over then, and how it has ended otherwise, as often as asked. After that the buffers are the program's again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_work_wait(work: *const Work, seconds: f64) -> Status {
    let waited = entry_with(|| {
        let timeout = duration(seconds).map_err(Failure::misuse)?;
        // SAFETY: the caller's part.
        match unsafe { Work::of(work) }?.wait(timeout)? {
            Some(outcome) => outcome.clone().map(|_| Status::Ok),
            None => Ok(Status::Pending),
        }
    });
    waited.unwrap_or_else(|status| status)
}

/// 1 if the operation is over, well or not, and the buffers are the program's again; 0 if it is not, or if `work` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_work_is_done(work: *const Work) -> c_int {
    let done = entry_with(|| {
        // SAFETY: the caller's part.
        Ok(unsafe { Work::of(work) }?.wait(Duration::ZERO)?.is_some())
    });
    c_int::from(done.unwrap_or(false))
}

/// The rank whose message `phalanx_recv_any_async` received; -1 before that is over, if it failed, and of other operations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_work_source(work: *const Work) -> c_int {
    let source = entry_with(|| {
        // SAFETY: the caller's part.
        let outcome = unsafe { Work::of(work) }?.wait(Duration::ZERO)?;
        Ok(outcome.and_then(|outcome| outcome.clone().ok().flatten()))
    });
    source.ok().flatten().and_then(|rank| c_int::try_from(rank).ok()).unwrap_or(-1)
}

/// Waits until the operation is over, since it uses the program's memory, and frees the work. How the operation ended is what `phalanx_work_wait` says;
/// nobody hears of it here. Null is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn phalanx_work_free(work: *mut Work) {
    entry(|| {
        if work.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's part: it was made by `Box::into_raw`, and is freed once.
        let work = unsafe { Box::from_raw(work) };
        if let Err(elsewhere) = work.wait(Duration::MAX).map(|_| ()) {
            // What it holds is that of another process.
            std::mem::forget(work);
            return Err(elsewhere);
        }
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_bounded_by_nothing_but_sense() {
        assert_eq!(duration(1.5), Ok(Duration::from_millis(1500)));
        assert_eq!(duration(f64::INFINITY), Ok(Duration::MAX));
        for wrong in [-1.0, f64::NAN, f64::NEG_INFINITY, 1e300] {
            assert!(duration(wrong).unwrap_err().contains("no time in seconds"));
        }
    }
}
