//! A thread that looks after operations for which nobody waits, and stops NCCL when the group has failed.

use super::in_flight::InFlight;
use phalanx_core::{Error, Result};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often it looks while something is on its way. Who waits for an operation looks for himself.
const INTERVAL: Duration = Duration::from_millis(1);

/// A handle on the thread that looks after operations for which nobody waits.
#[derive(Default)]
pub(crate) struct Watchdog(Arc<Watched>);

#[derive(Default)]
struct Watched {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    flights: Vec<Arc<InFlight>>,
    /// The thread holds some of them.
    is_busy: bool,
    is_started: bool,
    is_closed: bool,
}

impl Watchdog {
    /// Looks after `flight` until it is known what becomes of it.
    pub(crate) fn add(&self, flight: Arc<InFlight>) -> Result<()> {
        let mut state = self.0.lock();
        if !state.is_started {
            let watched = self.0.clone();
            let named = std::thread::Builder::new().name("phalanx-nccl-watchdog".into());
            let started = named.spawn(move || watched.run());
            started.map_err(|e| Error::io("starting the thread that watches NCCL", e))?;
            state.is_started = true;
        }
        state.flights.push(flight);
        self.0.changed.notify_all();
        Ok(())
    }

    /// Waits until the thread holds nothing of the group, for as long as `limit`.
    pub(crate) fn settle(&self, limit: Duration) {
        let holds = |state: &mut State| state.is_busy || !state.flights.is_empty();
        drop(self.0.changed.wait_timeout_while(self.0.lock(), limit, holds));
    }

    pub(crate) fn close(&self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Watched {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        while let Some(flights) = self.next() {
            let over = stop_failed(&flights, InFlight::look, |flight| flight.connection().abort());
            self.lock().flights.retain(|flight| !over.iter().any(|over| Arc::ptr_eq(over, flight)));
            // The last to hold a group may be this thread.
            drop((over, flights));
            self.lock().is_busy = false;
            self.changed.notify_all();
            std::thread::sleep(INTERVAL);
        }
    }

    /// Waits for operations in flight, and returns them. `None` when there will be none.
    fn next(&self) -> Option<Vec<Arc<InFlight>>> {
        let mut state = self.lock();
        loop {
            if !state.flights.is_empty() {
                state.is_busy = true;
                return Some(state.flights.clone());
            }
            if state.is_closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Stops what has failed, and returns what is over. Each is looked at once: it may fail between two looks, and would then be forgotten without being stopped.
fn stop_failed<F>(
    flights: &[Arc<F>],
    look: impl Fn(&F) -> Option<Result<()>>,
    stop: impl Fn(&F),
) -> Vec<Arc<F>> {
    let mut over = Vec::new();
    for flight in flights {
        let outcome = look(flight);
        if let Some(Err(_)) = outcome {
            stop(flight);
        }
        if outcome.is_some() {
            over.push(flight.clone());
        }
    }
    over
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

    /// Fails at the look after so many others.
    struct Fails {
        after: usize,
        looks: AtomicUsize,
        is_stopped: AtomicBool,
    }

    #[test]
    fn what_fails_at_any_look_is_stopped_before_it_is_forgotten() {
        for after in 0..4 {
            let flight = Arc::new(Fails { after, looks: 0.into(), is_stopped: false.into() });
            let mut flights = vec![flight.clone()];
            let look = |flight: &Fails| {
                let has_failed = flight.looks.fetch_add(1, SeqCst) >= flight.after;
                has_failed.then(|| Err(Error::Internal { what: "a test's".into() }))
            };
            while !flights.is_empty() {
                let over = stop_failed(&flights, look, |flight| flight.is_stopped.store(true, SeqCst));
                flights.retain(|flight| !over.iter().any(|over| Arc::ptr_eq(over, flight)));
            }
            assert!(flight.is_stopped.load(SeqCst), "it failed at look {after}");
        }
    }
}
