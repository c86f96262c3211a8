//! Ctrl-C in calls that wait: the group is aborted, so the call ends, and `KeyboardInterrupt` is raised.
//!
//! Python's own handler only notes that the signal came, and raises when Python code runs next, which is when the call is over. So a thread of
//! ours hears of the signal too. It acts only where Python's handler is the default one: a program with a handler of its own decides for itself.

use phalanx::ProcessGroup;
use pyo3::prelude::*;
use signal_hook::consts::SIGINT;
use signal_hook::iterator::Signals;
use std::sync::{Mutex, Once, PoisonError};

/// The group in which Python's main thread waits: that is where `KeyboardInterrupt` is raised.
static WAITING: Mutex<Option<ProcessGroup>> = Mutex::new(None);

thread_local! {
    static IS_MAIN: bool = rustix::thread::gettid() == rustix::process::getpid();
}

/// Says that this thread waits, until it is dropped.
#[derive(Debug)]
pub(crate) struct Waits(());

impl Waits {
    /// In an operation of this group. `None` where this is not Python's main thread.
    pub(crate) fn in_group(group: &ProcessGroup) -> Option<Self> {
        IS_MAIN.with(|is_main| *is_main).then(|| {
            *waiting() = Some(group.clone());
            Self(())
        })
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let last = waiting().take();
        drop(last);
    }
}

fn waiting() -> std::sync::MutexGuard<'static, Option<ProcessGroup>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Listens for the signal from now on, if Python's handler of it is the default one. Python's handler stays where it is.
pub(crate) fn listen(py: Python<'_>) -> PyResult<()> {
    static LISTENS: Once = Once::new();
    if !is_default(py)? {
        return Ok(());
    }
    LISTENS.call_once(|| {
        // Without it calls end when their time is over.
        if let Ok(mut signals) = Signals::new([SIGINT]) {
            let thread = std::thread::Builder::new().name("phalanx-ctrl-c".into());
            let _ = thread.spawn(move || signals.forever().for_each(|_| interrupt()));
        }
    });
    Ok(())
}

fn is_default(py: Python<'_>) -> PyResult<bool> {
    let signal = py.import("signal")?;
    let handler = signal.call_method1("getsignal", (SIGINT,))?;
    Ok(handler.is(&signal.getattr("default_int_handler")?))
}

fn interrupt() {
    // The main thread has let go of the interpreter while it waits.
    if Python::try_attach(|py| is_default(py).unwrap_or(false)) != Some(true) {
        return;
    }
    let group = waiting().clone();
    if let Some(group) = group {
        group.abort("KeyboardInterrupt");
    }
}
