//! Signs of life in the job's store, while a generation forms.
//!
//! The arbiter of a generation may end with it. From the moment at which its group has failed until the next one stands, each worker
//! writes a beat into the store, on a thread that does nothing else: so a survivor that computes, and has not called `rejoin` yet, is
//! told from one that is stopped. The same thread looks at the beats of the others. In a job that is in order there is no such thread.

use super::watch::Watch;
use crate::control::failure_latch::FailureLatch;
use phalanx_core::{Deadline, Result};
use phalanx_rendezvous::OpenStore;
use phalanx_transport::{WakeSource, Waker};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Opens the store once more.
type Open = dyn Fn(&Deadline) -> Result<OpenStore> + Send + Sync;

/// One worker's. It stops when this is dropped.
pub(crate) struct StoreHeartbeat(Arc<Shared>);

struct Shared {
    watch: Arc<Watch>,
    open: Box<Open>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// There is a thread.
    beats: bool,
    ended: bool,
}

impl fmt::Debug for StoreHeartbeat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreHeartbeat").field("worker", &self.0.watch.worker()).finish_non_exhaustive()
    }
}

impl StoreHeartbeat {
    /// A heartbeat that does not beat yet. A worker that does not beat for as long as `limit` is silent.
    pub(crate) fn new(
        worker: u64,
        limit: Duration,
        open: impl Fn(&Deadline) -> Result<OpenStore> + Send + Sync + 'static,
    ) -> Self {
        let watch = Arc::new(Watch::new(worker, limit, Instant::now()));
        let (state, changed) = Default::default();
        Self(Arc::new(Shared { watch, open: Box::new(open), state, changed }))
    }

    /// The watch whose beats it makes, and which looks at those of the others.
    pub(crate) fn watch(&self) -> Arc<Watch> {
        self.0.watch.clone()
    }

    /// Beats from now on.
    pub(crate) fn beat(&self) {
        self.0.beat();
    }

    /// Beats when `latch` is raised.
    pub(crate) fn beat_after(&self, latch: &Arc<FailureLatch>) {
        let listener = FailureListener { latch: Arc::downgrade(latch), heartbeat: Arc::downgrade(&self.0) };
        latch.listen(&Waker::at(Arc::new(listener)));
        if latch.cause().is_some() {
            self.beat();
        }
    }

    /// Beats no more: the generation stands, and its arbiter watches over all.
    pub(crate) fn rest(&self) {
        self.0.lock().ended = true;
        self.0.changed.notify_all();
    }
}

impl Drop for StoreHeartbeat {
    fn drop(&mut self) {
        self.rest();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn beat(self: &Arc<Self>) {
        let mut state = self.lock();
        if state.beats || state.ended {
            return;
        }
        let shared = self.clone();
        let thread = std::thread::Builder::new().name("phalanx-heartbeat".into()).spawn(move || shared.run());
        match thread {
            Ok(_) => state.beats = true,
            Err(error) => {
                tracing::warn!(%error, "no thread for signs of life; the others may take this rank for lost");
            }
        }
    }

    fn run(&self) {
        let mut store = None;
        loop {
            match self.round(&mut store) {
                Ok(()) => {}
                Err(error) => {
                    // The others will take this worker for lost if it lasts; the call that forms the generation says why it failed.
                    tracing::debug!(worker = self.watch.worker(), %error, "no sign of life in the store");
                    store = None;
                }
            }
            let state = self.lock();
            let waited = self.changed.wait_timeout_while(state, self.watch.pause(), |state| !state.ended);
            if waited.unwrap_or_else(PoisonError::into_inner).0.ended {
                return;
            }
        }
    }

    /// Looks at all, and beats if it is time.
    fn round(&self, open: &mut Option<OpenStore>) -> Result<()> {
        let store = match open {
            Some(open) => &open.store,
            None => &open.insert((self.open)(&Deadline::after(Instant::now(), self.watch.limit()))?).store,
        };
        let mut round = self.watch.round();
        let mut answer = None;
        while let Some(ask) = self.watch.step(&mut round, answer, Instant::now()) {
            answer = Some(ask.perform(store)?);
        }
        Ok(())
    }
}

/// Waits for a latch, without a thread.
#[derive(Debug)]
struct FailureListener {
    latch: Weak<FailureLatch>,
    heartbeat: Weak<Shared>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("worker", &self.watch.worker()).finish_non_exhaustive()
    }
}

impl WakeSource for FailureListener {
    fn wakes(&self) -> u32 {
        0
    }

    fn wake(&self) {
        let failed = self.latch.upgrade().is_some_and(|latch| latch.first_cause().is_some());
        if let Some(heartbeat) = self.heartbeat.upgrade().filter(|_| failed) {
            heartbeat.beat();
        }
    }

    /// Nobody sleeps there.
    fn sleep(&self, _wakes: u32, _limit: Duration) {}
}
