//! The ranks' output: shown line by line, kept in files, its end remembered.

use crate::label::Label;
use crate::lines::{End, Lines, Quote, Tail};
use crate::stream::{Output, Stream, Taker};
use crate::watcher::Watcher;
use crate::writer::{WAITING_MAX, Writer, Writers};
use phalanx_core::{Deadline, Error, Result};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// How long output may still come after the last rank has ended. A process that a rank started in a session of its
/// own can hold the pipe open for ever.
pub(crate) const DRAIN: Duration = Duration::from_secs(1);

/// The files that keep a rank's output.
pub(crate) struct LogFiles {
    stdout: LogFile,
    stderr: LogFile,
}

/// The log file of one stream.
#[derive(Debug)]
struct LogFile {
    file: File,
    path: PathBuf,
}

impl LogFile {
    /// Writes bytes just as they came. The error says whose log ends where, and why.
    fn keep(&mut self, rank: usize, bytes: &[u8]) -> Result<(), String> {
        self.file.write_all(bytes).map_err(|error| {
            format!(
                "the log of rank {rank}, {}, is not complete: writing to it failed: {error}",
                self.path.display()
            )
        })
    }
}

fn stdout_log(folder: &Path) -> PathBuf {
    folder.join("stdout.log")
}

/// Path of a rank's stderr log within its folder.
pub(crate) fn stderr_log(folder: &Path) -> PathBuf {
    folder.join("stderr.log")
}

impl LogFiles {
    /// Creates `folder`, and the files in it, which must not exist: both or none.
    pub(crate) fn create(folder: &Path) -> Result<Self> {
        let refused = |path: &Path, error: std::io::Error| {
            let hint =
                if error.kind() == ErrorKind::AlreadyExists { "; a job id is for one job" } else { "" };
            Error::config(format!("cannot create the log {}: {error}{hint}", path.display()))
        };
        let create = |path: &Path| {
            let file = File::create_new(path).map_err(|error| refused(path, error))?;
            Ok(LogFile { file, path: path.to_owned() })
        };
        std::fs::create_dir_all(folder).map_err(|error| refused(folder, error))?;
        let stdout_log = stdout_log(folder);
        let files = create(&stdout_log).and_then(|stdout| {
            // Only what was made here goes again: the other file is an earlier job's.
            let stderr = create(&stderr_log(folder)).inspect_err(|_| remove(&stdout_log))?;
            Ok(Self { stdout, stderr })
        });
        files.inspect_err(|_| remove_empty(folder))
    }
}

/// Removes what [`LogFiles::create`] made, as far as nothing was written, and the folders of the job that are empty then: a job that
/// could not be started is to be had again under its name.
pub(crate) fn discard(folder: &Path) {
    for file in [stdout_log(folder), stderr_log(folder)] {
        if file.metadata().is_ok_and(|file| file.len() == 0) {
            remove(&file);
        }
    }
    remove_empty(folder);
}

/// Removes a log. If it stays, so does the job's id: the next error says so.
fn remove(file: &Path) {
    let _ = std::fs::remove_file(file);
}

/// Removes the folders of a rank, of its attempt and of the job. One that is not empty stays, and all above it.
fn remove_empty(folder: &Path) {
    folder.ancestors().take(3).try_for_each(std::fs::remove_dir).ok();
}

/// The thread that reads the output of all ranks.
pub(crate) struct Logs {
    reader: Watcher<Stream>,
    tails: Vec<Arc<Mutex<Tail>>>,
    /// Set when nobody is interested any more.
    closed: Arc<AtomicBool>,
    /// A channel of which each stream holds a sender; it closes when the last one is at its end.
    finished: (Sender<()>, Receiver<()>),
}

impl Logs {
    /// Of an attempt, which is shown by these.
    pub(crate) fn start(writers: &Writers) -> Result<Self> {
        let reader = Watcher::start("phalanx-log", "reads the ranks' output")?;
        [&writers.out, &writers.err].into_iter().for_each(|writer| writer.set_waker(reader.waker()));
        Ok(Self { reader, tails: Vec::new(), closed: Arc::default(), finished: channel() })
    }

    /// Begins to read the output of one more process. The number that comes back is its place in what [`drain`](Self::drain) returns.
    pub(crate) fn add(
        &mut self,
        rank: usize,
        label: Label,
        (stdout, stderr): Output,
        writers: &Writers,
        files: Option<LogFiles>,
    ) -> usize {
        let (out_file, err_file) = files.map(|files| (files.stdout, files.stderr)).unzip();
        let tail = Arc::new(Mutex::new(Tail::default()));
        self.tails.push(Arc::clone(&tail));
        let pump = |writer: &Writer, file, tail| Pump {
            label: label.clone(),
            writer: writer.clone(),
            file,
            rank,
            tail,
            lines: Lines::default(),
            closed: Arc::clone(&self.closed),
            finished: Some(self.finished.0.clone()),
        };
        Stream::start(stdout, pump(&writers.out, out_file, None), &self.reader);
        Stream::start(stderr, pump(&writers.err, err_file, Some(tail)), &self.reader);
        self.tails.len() - 1
    }

    /// Waits until everything is read, but no longer than [`DRAIN`]; then returns the end of each process's stderr. What the pipes
    /// still held is in the files, and given to the writers whatever they have to do.
    pub(crate) fn drain(self, writers: &Writers) -> Vec<Quote> {
        let Self { reader, tails, closed, finished: (sender, receiver) } = self;
        drop(sender);
        // A pipe holds 64 KiB, of which prefixes make eight times as much at most: room for all that ended ranks have left in theirs.
        // A process that a rank has left behind may write without end, and waits as always.
        writers.set_waiting_max(WAITING_MAX.saturating_mul(1 + tails.len()));
        let deadline = Deadline::after(Instant::now(), DRAIN);
        if receiver.recv_timeout(deadline.limit()) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            let what = "a process started by a rank is still running and holds the rank's output open";
            writers.err.later(move || tracing::warn!("{what}"));
            closed.store(true, Ordering::Relaxed);
            reader.waker().wake();
        }
        writers.set_waiting_max(WAITING_MAX);
        tails.iter().map(|tail| lock(tail).quote()).collect()
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What becomes of one stream of one rank.
struct Pump {
    label: Label,
    writer: Writer,
    file: Option<LogFile>,
    rank: usize,
    tail: Option<Arc<Mutex<Tail>>>,
    lines: Lines,
    closed: Arc<AtomicBool>,
    finished: Option<Sender<()>>,
}

impl Taker for Pump {
    fn room(&self) -> Option<usize> {
        let is_wanted = !self.closed.load(Ordering::Relaxed);
        is_wanted.then(|| if self.writer.has_room() { usize::MAX } else { 0 })
    }

    fn take(&mut self, bytes: &[u8]) {
        self.keep(bytes);
        let mut lines = std::mem::take(&mut self.lines);
        self.show(|emit| lines.push(bytes, emit));
        self.lines = lines;
    }

    fn end(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        if !self.closed.load(Ordering::Relaxed) {
            self.show(|emit| lines.finish(emit));
        }
        self.finished = None;
    }
}

impl Pump {
    /// Writes bytes to the log file just as they came.
    fn keep(&mut self, bytes: &[u8]) {
        let Some(log) = &mut self.file else { return };
        if let Err(what) = log.keep(self.rank, bytes) {
            self.writer.later(move || tracing::warn!("{what}"));
            self.file = None;
        }
    }

    /// Hands on what `cut` cuts.
    fn show(&self, cut: impl FnOnce(&mut dyn FnMut(&[u8], End))) {
        let mut shown = Vec::new();
        let label = self.label.at(SystemTime::now());
        cut(&mut |line, end| {
            if let Some(tail) = &self.tail {
                lock(tail).push(line, end);
            }
            shown.extend_from_slice(label.as_bytes());
            shown.extend_from_slice(line);
            shown.push(if end == End::Redraw { b'\r' } else { b'\n' });
        });
        if !shown.is_empty() {
            self.writer.show(shown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn where_an_earlier_job_has_a_log_nothing_is_made_and_nothing_removed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("nightly/attempt_0/0");
        for (there, other) in [("stdout.log", "stderr.log"), ("stderr.log", "stdout.log")] {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(there), "").unwrap();
            let refusal = LogFiles::create(&folder).map(drop).unwrap_err().to_string();
            assert!(refusal.contains(there), "{refusal}");
            assert!(folder.join(there).exists() && !folder.join(other).exists(), "{there}");
            std::fs::remove_file(folder.join(there)).unwrap();
        }
        LogFiles::create(&folder).unwrap();
    }

    #[test]
    fn a_log_that_ends_names_its_rank_and_its_file() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        // Nothing can be written through this.
        let mut log = LogFile { file: File::open(&path).unwrap(), path: path.to_path_buf() };
        let what = log.keep(3, b"epoch 4").unwrap_err();
        let names = what.contains("rank 3") && what.contains(&path.display().to_string());
        assert!(names, "{what}");
    }

    /// Takes nothing while somebody else has the lock.
    #[derive(Clone, Default)]
    struct Count(Arc<Mutex<usize>>);

    impl Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            *lock(&self.0) += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    #[cfg(unix)]
    fn who_still_writes_when_the_ranks_are_gone_fills_no_memory() {
        let shown = Count::default();
        let held = lock(&shown.0);
        let writers = Writers::start(Box::new(shown.clone()), Box::new(io::sink())).unwrap();
        let mut logs = Logs::start(&writers).unwrap();
        let pipe = || {
            let (from, to) = io::pipe().unwrap();
            (crate::stream::Source::Pipe(from.into()), to)
        };
        let ((out, mut to), (err, _)) = (pipe(), pipe());
        logs.add(0, Label::default(), (out, err), &writers, None);
        // Until nobody reads.
        let writes = std::thread::spawn(move || while to.write_all(&[b'\n'; 4096]).is_ok() {});
        logs.drain(&writers);
        writes.join().unwrap();
        drop(held);
        writers.finish(None, || false);
        // Twice what a stream may have waiting, and what is read in one go.
        let bytes = *lock(&shown.0);
        assert!((WAITING_MAX..3 * WAITING_MAX).contains(&bytes), "{bytes}");
    }
}
