//! What the ranks write: shown line by line, kept in files, its end remembered.

use crate::lines::{End, Lines, Tail};
use phalanx_core::{Deadline, Error, Result};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Where lines go. One write holds whole lines, so those of different ranks never mix.
pub(crate) type Sink = Arc<Mutex<dyn Write + Send>>;

/// How long output may still come after the last rank has ended. A process that a rank started in a session of its
/// own can hold the pipe open for ever.
const DRAIN: Duration = Duration::from_secs(1);

/// The files that keep a rank's output.
pub(crate) struct LogFiles {
    stdout: File,
    stderr: File,
}

/// Path of a rank's stderr log within its folder.
pub(crate) fn stderr_log(folder: &Path) -> PathBuf {
    folder.join("stderr.log")
}

impl LogFiles {
    /// Creates `folder`, which must not exist, and the files in it.
    pub(crate) fn create(folder: &Path) -> Result<Self> {
        let refused = |path: &Path, error: std::io::Error| {
            let hint =
                if error.kind() == ErrorKind::AlreadyExists { "; a job id is for one job" } else { "" };
            Error::config(format!("cannot create the log {}: {error}{hint}", path.display()))
        };
        let create = |path: PathBuf| File::create_new(&path).map_err(|error| refused(&path, error));
        std::fs::create_dir_all(folder).map_err(|error| refused(folder, error))?;
        Ok(Self { stdout: create(folder.join("stdout.log"))?, stderr: create(stderr_log(folder))? })
    }
}

/// The threads that read the ranks' output: two a process.
#[derive(Debug)]
pub(crate) struct Logs {
    tails: Vec<Arc<Mutex<Tail>>>,
    /// Set when nobody is interested any more.
    closed: Arc<AtomicBool>,
    /// Each thread holds a sender; the channel closes when the last has finished.
    finished: (Sender<()>, Receiver<()>),
}

impl Logs {
    pub(crate) fn new() -> Self {
        Self { tails: Vec::new(), closed: Arc::default(), finished: channel() }
    }

    /// Begins to read the output of one more process. The number that comes back is its place in what [`drain`](Self::drain) returns.
    pub(crate) fn add(
        &mut self,
        prefix: &str,
        (stdout, stderr): (impl Read + Send + 'static, impl Read + Send + 'static),
        (out, err): (&Sink, &Sink),
        files: Option<LogFiles>,
    ) -> Result<usize> {
        let (out_file, err_file) = files.map(|files| (files.stdout, files.stderr)).unzip();
        let tail = Arc::new(Mutex::new(Tail::default()));
        self.tails.push(Arc::clone(&tail));
        let pump = |sink: &Sink, file, tail| Pump {
            prefix: prefix.as_bytes().to_vec(),
            sink: Some(Arc::clone(sink)),
            file,
            tail,
            closed: Arc::clone(&self.closed),
            _finished: self.finished.0.clone(),
        };
        start(pump(out, out_file, None), stdout)?;
        start(pump(err, err_file, Some(tail)), stderr)?;
        Ok(self.tails.len() - 1)
    }

    /// Waits until everything is written, but no longer than [`DRAIN`]; then returns the end of each process's stderr.
    pub(crate) fn drain(self) -> Vec<Vec<String>> {
        let Self { tails, closed, finished: (sender, receiver) } = self;
        drop(sender);
        let deadline = Deadline::after(Instant::now(), DRAIN);
        if receiver.recv_timeout(deadline.limit()) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            tracing::warn!("a process started by a rank is still running and holds the rank's output open");
            closed.store(true, Ordering::Relaxed);
        }
        tails.iter().map(|tail| lock(tail).to_vec()).collect()
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start(pump: Pump, input: impl Read + Send + 'static) -> Result<()> {
    thread::Builder::new()
        .name("phalanx-log".to_owned())
        .spawn(move || pump.run(input))
        .map(drop)
        .map_err(|error| Error::io("starting a thread that reads a rank's output", error))
}

/// One stream of one rank.
struct Pump {
    prefix: Vec<u8>,
    /// `None` once it failed. A launcher whose own output is gone (`| head`) must not take the job with it.
    sink: Option<Sink>,
    file: Option<File>,
    tail: Option<Arc<Mutex<Tail>>>,
    closed: Arc<AtomicBool>,
    _finished: Sender<()>,
}

impl Pump {
    fn run(mut self, mut input: impl Read) {
        let mut lines = Lines::default();
        let mut chunk = vec![0; 16 * 1024];
        let mut shown = Vec::new();
        loop {
            let n = match input.read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            if self.closed.load(Ordering::Relaxed) {
                return;
            }
            self.keep(&chunk[..n]);
            lines.push(&chunk[..n], |line, end| self.take(line, end, &mut shown));
            self.show(&mut shown);
        }
        lines.finish(|line, end| self.take(line, end, &mut shown));
        self.show(&mut shown);
    }

    /// Writes bytes to the log file just as they came.
    fn keep(&mut self, bytes: &[u8]) {
        if let Some(file) = &mut self.file
            && let Err(error) = file.write_all(bytes)
        {
            tracing::warn!("a rank's log file ends here: {error}");
            self.file = None;
        }
    }

    fn take(&self, line: &[u8], end: End, shown: &mut Vec<u8>) {
        if let Some(tail) = &self.tail {
            lock(tail).push(line, end);
        }
        if self.sink.is_some() {
            shown.extend_from_slice(&self.prefix);
            shown.extend_from_slice(line);
            shown.push(if end == End::Redraw { b'\r' } else { b'\n' });
        }
    }

    fn show(&mut self, shown: &mut Vec<u8>) {
        if let Some(sink) = &self.sink
            && !shown.is_empty()
        {
            let mut sink = lock(&**sink);
            let written = sink.write_all(shown).and_then(|()| sink.flush());
            drop(sink);
            if written.is_err() {
                self.sink = None;
            }
        }
        shown.clear();
    }
}
