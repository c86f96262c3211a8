//! Collectives that nobody waits for, where a backend performs them on whichever thread calls: one after the other on
//! a thread of the group, in the order of the calls.

use crate::backend::{Buffers, Collective};
use crate::work::{Bytes, Pending};
use phalanx_core::{Error, Result};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What the thread works on.
pub(crate) trait Performer: Send + Sync + 'static {
    fn lane(&self) -> &Lane;
    /// Performs a collective on the calling thread, after those that it was asked for before.
    fn perform(&self, call: &Collective, buffers: Buffers<'_>, limit: Duration) -> Result<()>;
}

/// A collective with the buffer it owns.
struct Job {
    call: Collective,
    buffer: Box<dyn Bytes>,
    pending: Pending,
    limit: Duration,
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Lane {
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

    /// Blocking calls come after what was begun before them. It ends: every job has a deadline.
    pub(crate) fn wait_until_empty(&self) {
        if self.unfinished.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.lock();
        while self.unfinished.load(Ordering::Acquire) > 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The last handle on the group is gone: the thread ends when its work is done.
    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.changed.notify_all();
    }
}

/// Gives a collective to the thread of `performer`, and starts that if need be.
///
/// # Errors
/// [`Error::Io`] if no thread can be started; the buffer is dropped.
pub(crate) fn submit<P: Performer>(
    performer: &Arc<P>,
    call: Collective,
    buffer: Box<dyn Bytes>,
    limit: Duration,
) -> Result<Pending> {
    let lane = performer.lane();
    let mut state = lane.lock();
    if !state.started {
        let performer = performer.clone();
        std::thread::Builder::new()
            .name("phalanx-progress".into())
            .spawn(move || run(&*performer))
            .map_err(|e| Error::io("starting the progress thread", e))?;
        state.started = true;
    }
    let pending = Pending::default();
    lane.unfinished.fetch_add(1, Ordering::Relaxed);
    state.jobs.push_back(Job { call, buffer, pending: pending.clone(), limit });
    lane.changed.notify_all();
    Ok(pending)
}

fn run(performer: &impl Performer) {
    let lane = performer.lane();
    loop {
        let mut state = lane.lock();
        let mut job = loop {
            match state.jobs.pop_front() {
                Some(job) => break job,
                None if state.closing => return,
                None => state = lane.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(state);
        let outcome = performer.perform(&job.call, Buffers::InPlace(job.buffer.bytes()), job.limit);
        let _state = lane.lock();
        lane.unfinished.fetch_sub(1, Ordering::Release);
        lane.changed.notify_all();
        job.pending.complete(outcome.map(|()| job.buffer));
    }
}
