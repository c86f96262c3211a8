//! Waits for ranks that may be late, which Ctrl-C ends.

use crate::errors::exception;
use pyo3::prelude::*;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long a wait goes on before it is looked whether a signal has come for Python.
const LOOK_AFTER: Duration = Duration::from_millis(50);

/// Runs `meet`, in which ranks may be late, on another thread, while this one listens for Ctrl-C. After one the other thread is left behind.
pub(crate) fn meeting<R: Send + 'static>(
    py: Python<'_>,
    name: &str,
    meet: impl FnOnce() -> phalanx::Result<R> + Send + 'static,
) -> PyResult<R> {
    let (met, have_met) = channel::<phalanx::Result<R>>();
    let started = std::thread::Builder::new().name(name.into()).spawn(move || drop(met.send(meet())));
    if let Err(error) = started {
        return Err(exception(py, &phalanx::Error::io(format!("starting the thread {name}"), error)));
    }
    // `mpsc` needs a receiver that only one thread has.
    let have_met = Mutex::new(have_met);
    loop {
        let ended = py.detach(|| {
            let have_met = have_met.lock().unwrap_or_else(PoisonError::into_inner);
            have_met.recv_timeout(LOOK_AFTER)
        });
        match ended {
            Ok(outcome) => return outcome.map_err(|error| exception(py, &error)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                let what = format!("the thread {name} panicked");
                return Err(exception(py, &phalanx::Error::Internal { what }));
            }
        }
    }
}
