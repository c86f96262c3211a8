//! Writes a rank's trace into a folder, on a thread of its own: who found out that a group has failed must not wait for a
//! disk that hangs, nor lose the trace by ending the process at once.

use super::{Trace, snapshot};
use crate::control::watch::{Alarm, Watch};
use crate::launcher::Launcher;
use crate::replace::replace;
use crate::warning::warn;
use phalanx_core::{Cause, Error, Peer, Result};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
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
    /// Who is told what went wrong first.
    pub(crate) launcher: Option<Launcher>,
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
        let (folder, launcher, writing, wrote) = Default::default();
        Self { me, world_size, timeout, len, folder, launcher, writing, wrote }
    }

    pub(crate) fn trace(&self, groups: &[Arc<Alarm>], first: Option<&Cause>, reason: &str) -> Trace {
        snapshot::trace(self, groups, first, reason)
    }

    /// Begins to write the trace of the rank that `watch` belongs to, if there is a folder for it.
    pub(crate) fn begin_to_write(&self, watch: Arc<Watch>, reason: String) {
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
        let write = move || {
            let _panics = Panics(&watch.recorder);
            while let Some(trace) = watch.next_trace() {
                let reason = &trace.reason;
                match write(&file, &trace) {
                    Ok(()) => {
                        tracing::info!(file = %file.display(), reason, "wrote what this rank did lately");
                    }
                    Err(error) => watch.recorder.not_written(&error),
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
    replace(file, &serde_json::to_vec(trace).expect("traces are plain data"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::notice::Verdict;
    use phalanx_core::{Cause, GroupId, Loss, WORLD};

    /// A rank of many groups, and where it writes.
    fn rank(name: &str) -> (Arc<Watch>, Vec<Arc<Alarm>>, PathBuf) {
        let folder = std::env::temp_dir().join(format!("phalanx_{name}_{}", std::process::id()));
        let recorder = Recorder::new(Peer { rank: 0, host: "h".into() }, 2, Duration::from_secs(1));
        let watch = Watch::new(Recorder { folder: Some(folder.clone()), ..recorder });
        let groups = (0..200).map(|group| if group == 0 { WORLD } else { GroupId(group) });
        let alarms = groups.map(|group| watch.alarm(group, vec![0, 1])).collect();
        (watch, alarms, folder)
    }

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

    fn lost() -> Verdict {
        let cause = Cause::Lost { peer: Peer { rank: 1, host: "h".into() }, how: Loss::Died };
        Verdict::Lost { rank: 1, is_gone: true, cause, through: None }
    }

    #[test]
    fn what_fails_at_once_is_written_once() {
        let (watch, _alarms, folder) = rank("once");
        watch.hear(lost(), Instant::now());
        watch.recorder.finish_writing();
        let text = std::fs::read(folder.join("trace_rank_0.json")).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        let trace: Trace = serde_json::from_slice(&text).unwrap();
        assert!(trace.reason.starts_with("world: "), "the first reason: {}", trace.reason);
        assert!(trace.pg_status.values().all(|status| status.failed.is_some()));
    }

    #[test]
    fn a_disk_that_hangs_is_waited_for_once() {
        let (watch, alarms, folder) = rank("hangs");
        let begun = Instant::now();
        watch.while_locked(|| {
            // Who writes waits for the lock, as for a disk.
            for alarm in &alarms {
                alarm.raise(Cause::Aborted { peer: watch.recorder.me.clone(), reason: "r".into() }, None);
                watch.recorder.finish_writing();
            }
        });
        assert!(begun.elapsed() < 10 * WRITING_TIME, "{:?}", begun.elapsed());
        watch.recorder.finish_writing();
        let _ = std::fs::remove_dir_all(folder);
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing_behind() {
        let (watch, _alarms, folder) = rank("nothing");
        // In its place is what no file can take the place of.
        let file = folder.join("trace.json");
        std::fs::create_dir_all(file.join("a folder")).unwrap();
        write(&file, &watch.trace("")).unwrap_err();
        let left = std::fs::read_dir(&folder).unwrap().count();
        std::fs::remove_dir_all(folder).unwrap();
        assert_eq!(left, 1);
    }
}
