//! Operations in flight.

use crate::background::call_later;
use crate::errors::exception;
use phalanx::Error;
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use std::sync::{OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How long a wait goes on before it is looked whether a signal has come for Python.
const LOOK_AFTER: Duration = Duration::from_millis(50);

/// What runs, and what comes of it.
#[derive(Debug)]
pub(crate) enum Running {
    Nothing(phalanx::Work<()>),
    /// The rank that sent a message.
    Rank(phalanx::Work<usize>),
}

type Outcome = Result<Option<usize>, Error>;

impl Running {
    fn wait_timeout(&self, timeout: Duration) -> bool {
        match self {
            Self::Nothing(work) => work.wait_timeout(timeout),
            Self::Rank(work) => work.wait_timeout(timeout),
        }
    }

    fn finish(self) -> Outcome {
        match self {
            Self::Nothing(work) => work.wait().map(|()| None),
            Self::Rank(work) => work.wait().map(Some),
        }
    }

    fn on_done(self, then: impl FnOnce() + Send + 'static) -> Self {
        match self {
            Self::Nothing(work) => Self::Nothing(work.on_done(then)),
            Self::Rank(work) => Self::Rank(work.on_done(then)),
        }
    }
}

/// An operation in flight. It keeps the memory of its buffers alive until it is over, also when nobody keeps this.
///
/// Operations of a group are performed in the order in which they were begun. ``wait()`` waits for this one and raises what went wrong;
/// ``await work`` does so in an event loop.
#[pyclass(frozen, module = "phalanx")]
#[derive(Debug)]
pub(crate) struct Work {
    running: RwLock<Option<Running>>,
    outcome: OnceLock<Outcome>,
}

impl Work {
    pub(crate) fn new(running: Running) -> Self {
        Self { running: RwLock::new(Some(running)), outcome: OnceLock::new() }
    }

    /// Waits at most so long. Returns whether it is over.
    fn wait_for(&self, timeout: Duration) -> bool {
        let running = self.running.read().unwrap_or_else(PoisonError::into_inner);
        // Somebody else may just be taking what came of it.
        running.as_ref().is_none_or(|running| running.wait_timeout(timeout))
    }

    /// What came of it, when it is over.
    fn settled(&self) -> &Outcome {
        self.outcome.get_or_init(|| {
            let running = self.running.write().unwrap_or_else(PoisonError::into_inner).take();
            running.map_or_else(
                || Err(Error::Internal { what: "what came of an operation was taken twice".into() }),
                Running::finish,
            )
        })
    }

    fn result(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        let settled = py.detach(|| self.settled());
        settled.as_ref().map(|rank| *rank).map_err(|error| exception(py, error))
    }
}

#[pymethods]
impl Work {
    /// Waits until the operation is over, and raises what went wrong. Returns the sender's rank for ``recv_any``, else ``None``.
    ///
    /// It ends, since every operation has a time limit. With ``timeout``, in seconds, it waits at most so long, and raises the builtin
    /// ``TimeoutError`` if the operation is not over then; it goes on.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<usize>> {
        let end = match timeout {
            Some(seconds) => Some(Instant::now().checked_add(duration(seconds)?)),
            None => None,
        };
        while self.outcome.get().is_none() {
            let left = end.flatten().map(|end| end.saturating_duration_since(Instant::now()));
            let is_over = py.detach(|| self.wait_for(left.map_or(LOOK_AFTER, |left| left.min(LOOK_AFTER))));
            if is_over {
                break;
            }
            py.check_signals()?;
            if left.is_some_and(|left| left.is_zero()) {
                let what =
                    format!("the operation is not over after {} s; it goes on", timeout.unwrap_or_default());
                return Err(PyTimeoutError::new_err(what));
            }
        }
        self.result(py)
    }

    /// Whether ``wait()`` would return, or raise, at once.
    fn is_done(&self) -> bool {
        self.outcome.get().is_some()
            // Whoever waits holds it for reading only.
            || self.running.try_read().is_ok_and(|running| {
                running.as_ref().is_none_or(|running| running.wait_timeout(Duration::ZERO))
            })
    }

    /// The error with which the operation ended; ``None`` if it ended well. Waits for the end.
    fn exception(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match self.wait(py, None) {
            Ok(_) => Ok(None),
            Err(error) if error.is_instance_of::<pyo3::exceptions::PyKeyboardInterrupt>(py) => Err(error),
            Err(error) => Ok(Some(error.into_value(py).into_any())),
        }
    }

    /// Calls ``function(work)`` on a thread of phalanx's soon after the operation is over, well or not; at once on this thread if it is over. What it
    /// raises is printed, and goes no further.
    fn add_done_callback(slf: Bound<'_, Self>, function: Bound<'_, PyAny>) {
        let (py, this) = (slf.py(), slf.get());
        let tell = Tell { function: function.unbind(), work: slf.clone().unbind() };
        let is_over = py.detach(|| {
            if this.is_done() {
                return Some(tell);
            }
            // A wait on another thread looks up now and then.
            let mut running = this.running.write().unwrap_or_else(PoisonError::into_inner);
            match running.take() {
                Some(unfinished) => {
                    *running = Some(unfinished.on_done(move || call_later(move |py| tell.call(py))));
                    None
                }
                None => Some(tell),
            }
        });
        if let Some(tell) = is_over {
            tell.call(py);
        }
    }

    fn __await__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("phalanx._waiting")?.call_method1("awaited", (slf,))?.call_method0("__await__")
    }

    fn __repr__(&self) -> &'static str {
        if self.is_done() { "<Work: done>" } else { "<Work: in flight>" }
    }
}

/// A function that wants to hear of the end of an operation.
struct Tell {
    function: Py<PyAny>,
    work: Py<Work>,
}

impl Tell {
    fn call(self, py: Python<'_>) {
        let Self { function, work } = self;
        if let Err(error) = function.call1(py, (work,)) {
            error.write_unraisable(py, Some(function.bind(py)));
        }
    }
}

/// A time in seconds.
pub(crate) fn duration(seconds: f64) -> PyResult<Duration> {
    if seconds == f64::INFINITY {
        return Ok(Duration::MAX);
    }
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("{seconds} is no time in seconds: it must be 0 or more")))
}
