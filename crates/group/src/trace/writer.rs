//! Writes a rank's trace into a folder, on a thread of its own: who found out that a group has failed must not wait for a
//! disk that hangs, nor lose the trace by ending the process at once.

use super::Trace;
use crate::atomic_write::atomic_write;
use crate::warning::warn;
use phalanx_control::runtime::NextTrace;
use phalanx_core::{Error, Peer, Result};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a failing call waits for the trace to be written.
pub(crate) const WRITING_TIME: Duration = Duration::from_secs(2);

/// The rank whose traces are written, and where.
#[derive(Debug)]
pub(crate) struct Recorder {
    me: Peer,
    /// `None`: nothing is written unless the program says so.
    folder: Option<PathBuf>,
    writing: Mutex<Writing>,
    wrote: Condvar,
}

/// What is being written: by one thread, however much happens at once.
#[derive(Debug, Default)]
struct Writing {
    busy: bool,
    /// Why to write a trace that is not begun yet. It will tell of all that has happened until it is.
    reason: Option<String>,
    /// Until when calls wait for that.
    until: Option<Instant>,
}

impl Recorder {
    pub(crate) fn new(me: Peer, folder: Option<PathBuf>) -> Self {
        Self { me, folder, writing: Mutex::default(), wrote: Condvar::new() }
    }

    /// Begins to write what `next` gives until it gives nothing more, if there is a folder for it.
    pub(crate) fn begin_to_write(self: &Arc<Self>, next: NextTrace, reason: String) {
        let Some(folder) = self.folder.clone() else { return };
        let mut writing = self.lock();
        if writing.reason.is_some() {
            return;
        }
        writing.reason = Some(reason);
        writing.until = Some(Instant::now() + WRITING_TIME);
        if std::mem::replace(&mut writing.busy, true) {
            return;
        }
        drop(writing);
        let file = folder.join(format!("trace_rank_{}.json", self.me.rank));
        let recorder = self.clone();
        let write = move || {
            let _panics = Panics(&recorder);
            while let Some(trace) = next(&|| recorder.next_reason()) {
                let reason = &trace.reason;
                match write(&file, &trace) {
                    Ok(()) => {
                        tracing::info!(file = %file.display(), reason, "wrote what this rank did lately");
                    }
                    Err(error) => recorder.not_written(&error),
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("phalanx-trace".into()).spawn(write) {
            self.not_written(&Error::io("starting a thread for that", error));
            self.stop_writing();
        }
    }

    /// Says that this rank's trace is missing from the job's folder, and why.
    fn not_written(&self, error: &Error) {
        warn(&self.me.to_string(), &format!("its trace is not written: {error}"));
    }

    /// Nobody writes any more, though there was something to write.
    fn stop_writing(&self) {
        *self.lock() = Writing::default();
        self.wrote.notify_all();
    }

    /// Why to write the next trace; `None`: all is written.
    fn next_reason(&self) -> Option<String> {
        let mut writing = self.lock();
        let reason = writing.reason.take();
        if reason.is_none() {
            writing.busy = false;
            self.wrote.notify_all();
        }
        reason
    }

    /// Waits until what was begun is written, but not for long, and for a disk that hangs not each time.
    pub(crate) fn finish_writing(&self) {
        let mut writing = self.lock();
        while let Some(until) = writing.until.filter(|_| writing.busy) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            writing = self.wrote.wait_timeout(writing, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Writing> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that writes, and that nobody may wait for if it panics.
struct Panics<'r>(&'r Recorder);

impl Drop for Panics<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop_writing();
        }
    }
}

/// Writes a trace. Whoever reads the file meanwhile finds the one before, or this one whole.
pub(crate) fn write(file: &Path, trace: &Trace) -> Result<()> {
    atomic_write(file, &serde_json::to_vec(trace).expect("traces are plain data"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_a_writer_that_has_panicked() {
        let recorder = Recorder::new(Peer { rank: 0, host: "h".into() }, None);
        // Who is not woken would wait until tomorrow.
        let until = Some(Instant::now() + Duration::from_secs(86_400));
        *recorder.lock() = Writing { busy: true, reason: Some("some".into()), until };
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| recorder.finish_writing());
            let writes = scope.spawn(|| {
                let _panics = Panics(&recorder);
                panic!("on purpose");
            });
            writes.join().unwrap_err();
            waits.join().unwrap();
        });
        assert!(!recorder.lock().busy);
    }
}
