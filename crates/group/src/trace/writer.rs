//! Writes a rank's trace into a folder, on a thread of its own: who found out that a group has failed must not wait for a
//! disk that hangs, nor lose the trace by ending the process at once.

use super::{Trace, snapshot};
use crate::control::watch::{Alarm, Watch};
use phalanx_core::{Error, Peer, Result};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a failing call waits for the trace to be written.
const WRITING_TIME: Duration = Duration::from_secs(2);

/// Whose operations are remembered, how many of each group, and where they are written.
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
    /// Traces that are being written …
    pub(crate) writing: (Mutex<usize>, Condvar),
    /// … one after the other, so that the latest stays.
    pub(crate) file: Mutex<()>,
}

impl Recorder {
    pub(crate) fn new(me: Peer, world_size: usize, timeout: Duration) -> Self {
        let len = phalanx_rendezvous::TRACE_LEN;
        Self {
            me,
            world_size,
            timeout,
            len,
            folder: None,
            writing: Default::default(),
            file: Mutex::default(),
        }
    }

    pub(crate) fn trace(&self, groups: &[Arc<Alarm>], reason: &str) -> Trace {
        snapshot::trace(self, groups, reason)
    }

    /// Begins to write the trace of the rank that `watch` belongs to, if there is a folder for it.
    pub(crate) fn begin_to_write(&self, watch: Arc<Watch>, reason: String) {
        let Some(folder) = self.folder.clone() else { return };
        *self.count() += 1;
        let write = move || {
            let file = folder.join(format!("trace_rank_{}.json", watch.recorder.me.rank));
            let turn = watch.recorder.file.lock().unwrap_or_else(PoisonError::into_inner);
            match write(&file, &watch.trace(&reason)) {
                Ok(()) => tracing::info!(file = %file.display(), reason, "wrote what this rank did lately"),
                Err(error) => tracing::warn!(%error, "what this rank did lately is not written"),
            }
            drop(turn);
            watch.recorder.wrote();
        };
        if let Err(error) = std::thread::Builder::new().name("phalanx-trace".into()).spawn(write) {
            tracing::warn!(%error, "no thread to write what this rank did lately");
            self.wrote();
        }
    }

    fn wrote(&self) {
        *self.count() -= 1;
        self.writing.1.notify_all();
    }

    /// Waits until what was begun is written, but not for long.
    pub(crate) fn finish_writing(&self) {
        let until = Instant::now() + WRITING_TIME;
        let mut writing = self.count();
        while *writing > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            writing = self.writing.1.wait_timeout(writing, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn count(&self) -> std::sync::MutexGuard<'_, usize> {
        self.writing.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a trace. Whoever reads the file meanwhile finds the one before, or this one whole.
pub(crate) fn write(file: &Path, trace: &Trace) -> Result<()> {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let failed = |error| Error::io(format!("writing {}", file.display()), error);
    let text = serde_json::to_vec(trace).expect("traces are plain data");
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let fresh = file.with_extension(format!("{}.{number}", std::process::id()));
    std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, file)).map_err(failed)
}
