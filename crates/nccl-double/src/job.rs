//! What NCCL does behind a caller's back.
//!
//! Until 2.26 it is kept in memory of the thread that called. When that has ended, whoever looks at the job reads what is not there any more, as does the job
//! itself when it is over. The real library crashes then, or hangs, as chance has it; here the process always ends.

use crate::result::{INVALID_USAGE, NcclResult, OK};
use crate::{lock, version};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

pub(crate) struct Job {
    caller_has_ended: Arc<AtomicBool>,
    outcome: Mutex<Option<NcclResult>>,
    ended: Condvar,
}

/// What a thread has of this.
#[derive(Default)]
struct Caller {
    has_ended: Arc<AtomicBool>,
    last: RefCell<Option<Arc<Job>>>,
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::SeqCst);
    }
}

thread_local! {
    static CALLER: Caller = Caller::default();
}

impl Job {
    /// One of this thread.
    pub(crate) fn begin() -> Arc<Self> {
        CALLER.with(|caller| {
            let caller_has_ended = caller.has_ended.clone();
            let job = Arc::new(Self { caller_has_ended, outcome: Mutex::default(), ended: Condvar::new() });
            *caller.last.borrow_mut() = Some(job.clone());
            job
        })
    }

    pub(crate) fn end(&self, outcome: NcclResult) {
        self.look("a job ends");
        *lock(&self.outcome) = Some(outcome);
        self.ended.notify_all();
    }

    /// Waits for its end.
    pub(crate) fn join(&self) {
        self.look("a job is joined");
        let mut outcome = lock(&self.outcome);
        while outcome.is_none() {
            outcome = self.ended.wait(outcome).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn look(&self, what: &str) {
        if version::keeps_jobs_in_threads() && self.caller_has_ended.load(Ordering::SeqCst) {
            die(&format!("{what} whose state was that of a thread that has ended"));
        }
    }
}

/// Waits for the end of the latest job of this thread. A test that ends before it ends the process, where jobs are kept in threads.
#[cfg(test)]
pub(crate) fn join_last() {
    let last = CALLER.with(|caller| caller.last.borrow_mut().take());
    last.into_iter().for_each(|job| job.join());
}

/// What a group begins with on this thread.
pub(crate) fn before_group() -> NcclResult {
    if !version::has_busy_groups() {
        return OK;
    }
    CALLER.with(|caller| {
        let mut last = caller.last.borrow_mut();
        let outcome = last.as_ref().map_or(Some(OK), |job| *lock(&job.outcome));
        // It is said once.
        last.take_if(|_| outcome.is_some());
        outcome.unwrap_or(INVALID_USAGE)
    })
}

/// A group of this thread is cleared away, because a call in it was refused. Where a job of the thread goes on, both clear away the same.
pub(crate) fn clear_group() {
    let is_at_work =
        CALLER.with(|caller| caller.last.borrow().as_ref().is_some_and(|job| lock(&job.outcome).is_none()));
    if version::keeps_jobs_in_threads() && is_at_work {
        die("a group failed on a thread whose last job still goes on");
    }
}

#[expect(clippy::print_stderr, reason = "whoever looks for the reason of a process's end finds it there")]
fn die(what: &str) -> ! {
    eprintln!("NCCL {} would have crashed here: {what}", version::version());
    std::process::abort()
}
