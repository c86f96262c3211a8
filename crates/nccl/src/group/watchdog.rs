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
            for flight in &flights {
                if let Some(Err(_)) = flight.look() {
                    flight.connection().abort();
                }
            }
            let mut state = self.lock();
            state.flights.retain(|flight| flight.look().is_none());
            drop(state);
            // The last to hold a group may be this thread.
            drop(flights);
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
