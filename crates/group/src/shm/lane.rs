//! Collectives that nobody waits for: performed one after the other by a thread of the group, in the order of the calls.

use super::Shared;
use crate::backend::{Buffers, Collective};
use crate::work::{Bytes, Pending};
use phalanx_core::{Error, Result};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A collective with the buffer it owns.
pub(super) struct Job {
    pub(super) call: Collective,
    pub(super) buffer: Box<dyn Bytes>,
    pub(super) pending: Pending,
    pub(super) limit: Duration,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Lane {
    state: Mutex<State>,
    changed: Condvar,
    /// Jobs that are not finished. One load tells a blocking call that nothing is before it.
    unfinished: AtomicUsize,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("unfinished", &self.unfinished).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    started: bool,
    closing: bool,
}

impl Lane {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a job to the thread, and starts that if need be.
    ///
    /// # Errors
    /// [`Error::Io`] if no thread can be started; the job is dropped.
    pub(super) fn submit(&self, shared: &Arc<Shared>, job: Job) -> Result<()> {
        let mut state = self.lock();
        if !state.started {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("phalanx-progress".into())
                .spawn(move || shared.lane.run(&shared))
                .map_err(|e| Error::io("starting the progress thread", e))?;
            state.started = true;
        }
        self.unfinished.fetch_add(1, Ordering::Relaxed);
        state.jobs.push_back(job);
        self.changed.notify_all();
        Ok(())
    }

    /// Blocking calls come after what was begun before them. It ends: every job has a deadline.
    pub(super) fn wait_until_empty(&self) {
        if self.unfinished.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.lock();
        while self.unfinished.load(Ordering::Acquire) > 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The last handle on the group is gone: the thread ends when its work is done.
    pub(super) fn close(&self) {
        self.lock().closing = true;
        self.changed.notify_all();
    }

    fn run(&self, shared: &Shared) {
        loop {
            let mut state = self.lock();
            let mut job = loop {
                match state.jobs.pop_front() {
                    Some(job) => break job,
                    None if state.closing => return,
                    None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(state);
            let outcome = shared.perform(&job.call, Buffers::InPlace(job.buffer.bytes()), job.limit);
            let _state = self.lock();
            self.unfinished.fetch_sub(1, Ordering::Release);
            self.changed.notify_all();
            job.pending.complete(outcome.map(|()| job.buffer));
        }
    }
}
