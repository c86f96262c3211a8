//! Writes a rank's trace into a folder, on a thread of its own: who found out that a group has failed must not wait for a
//! disk that hangs, nor lose the trace by ending the process at once.

use super::{Trace, clock};
use crate::atomic_write::atomic_write;
use crate::warning::warn;
use phalanx_core::{Cause, Error, Peer, Result};
use phalanx_trace::{GroupRecord, Recorded};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a failing call waits for the trace to be written.
pub(crate) const WRITING_TIME: Duration = Duration::from_secs(2);

/// The rank whose operations are remembered, how many of each group are, and where they are written.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) me: Peer,
    pub(crate) world_size: usize,
    /// How long operations may take.
    pub(crate) timeout: Duration,
    /// How many are kept.
    pub(crate) len: usize,
    /// `None`: nothing is written unless the program says so.
    pub(crate) folder: Option<PathBuf>,
    pub(crate) writing: Mutex<Writing>,
    pub(crate) wrote: Condvar,
}

/// What is being written: by one thread, however much happens at once.
#[derive(Debug, Default)]
pub(crate) struct Writing {
    busy: bool,
    /// Why to write a trace that is not begun yet. It will tell of all that has happened until it is.
    reason: Option<String>,
    /// Until when calls wait for that.
    until: Option<Instant>,
}

impl Recorder {
    pub(crate) fn new(me: Peer, world_size: usize, timeout: Duration) -> Self {
        let len = phalanx_rendezvous::TRACE_LEN;
        let (folder, writing, wrote) = Default::default();
        Self { me, world_size, timeout, len, folder, writing, wrote }
    }

    pub(crate) fn trace(&self, groups: &[GroupRecord<'_>], first: Option<&Cause>, reason: &str) -> Trace {
        let of = Recorded { me: self.me.clone(), world_size: self.world_size, timeout: self.timeout };
        phalanx_trace::snapshot(&of, clock::of_trace(), groups, first, reason)
    }

    /// Begins to write what `next` gives until it gives nothing more, if there is a folder for it. `next` asks
    /// [`next_reason`](Self::next_reason).
    pub(crate) fn begin_to_write(
        self: &Arc<Self>,
        next: impl Fn() -> Option<Trace> + Send + 'static,
        reason: String,
    ) {
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
            while let Some(trace) = next() {
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
    pub(crate) fn next_reason(&self) -> Option<String> {
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
        let recorder = Recorder::new(Peer { rank: 0, host: "h".into() }, 2, Duration::from_secs(1));
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
