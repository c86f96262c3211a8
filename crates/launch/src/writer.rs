//! Threads that write for others, so that who reads slowly, or not at all, never holds up the one who supervises the ranks, and the one
//! who reads what ranks write and keeps it in files only when a mebibyte waits to be shown.

use crate::watcher::Waker;
use phalanx_core::{Error, Result};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The destination of lines.
pub(crate) type Sink = Box<dyn Write + Send>;

/// How many bytes may wait to be written while ranks run. Beyond that what goes there is not read, nor kept in files,
/// and so the ranks wait for the reader, as without a launcher in between.
pub(crate) const WAITING_MAX: usize = 1 << 20;
/// When a sink that would block is tried again.
const AGAIN: Duration = Duration::from_millis(10);
/// How often who waits for the readers looks whether to give up.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A task of a [`Writer`].
enum Task {
    /// Write whole lines, in one piece: those of different ranks never mix.
    Show(Vec<u8>),
    /// Something else that may have to wait for a reader.
    Do(Box<dyn FnOnce() + Send>),
}

struct State {
    tasks: VecDeque<Task>,
    /// How many are to be shown, and may be.
    bytes: usize,
    bytes_max: usize,
    closed: bool,
    /// Woken when there is room again.
    waker: Option<Waker>,
}

impl State {
    fn has_room(&self) -> bool {
        self.bytes < self.bytes_max || self.closed
    }

    fn wake(&self) {
        self.waker.iter().for_each(Waker::wake);
    }
}

struct Shared {
    state: Mutex<State>,
    /// Notified when there is something to do, or no more.
    work: Condvar,
}

/// The hands of a thread that writes to one sink, in the order of what it is given.
#[derive(Clone)]
pub(crate) struct Writer(Arc<Shared>);

impl Writer {
    /// Starts the thread. `what` of the ranks it writes, for a complaint.
    pub(crate) fn start(what: &'static str, mut sink: Sink) -> Result<Self> {
        let state =
            State { tasks: VecDeque::new(), bytes: 0, bytes_max: WAITING_MAX, closed: false, waker: None };
        let writer = Self(Arc::new(Shared { state: Mutex::new(state), work: Condvar::new() }));
        let hands = writer.clone();
        let run = move || {
            // Also if a sink panics: nobody may wait for who is gone.
            let closes = Closes(hands);
            let mut complained = false;
            while let Some(task) = closes.0.next() {
                match task {
                    Task::Show(bytes) => {
                        if let Err(error) = closes.0.write(&mut sink, &bytes)
                            && !std::mem::replace(&mut complained, true)
                        {
                            tracing::warn!("not all of the ranks' {what} is shown: {error}");
                        }
                    }
                    Task::Do(act) => act(),
                }
            }
        };
        let thread = thread::Builder::new().name("phalanx-show".to_owned()).spawn(run);
        thread.map_err(|error| Error::io("starting a thread that shows output", error))?;
        Ok(writer)
    }

    /// Shows `lines` after what was given before. Never waits: whoever has more first asks for [room](Self::has_room).
    pub(crate) fn show(&self, lines: Vec<u8>) {
        let mut state = self.lock();
        state.bytes += lines.len();
        self.add(state, Task::Show(lines));
    }

    /// Whether no more is to be shown than may wait.
    pub(crate) fn has_room(&self) -> bool {
        self.lock().has_room()
    }

    /// What to wake from now on when there is room again.
    pub(crate) fn set_waker(&self, waker: &Waker) {
        self.lock().waker = Some(waker.clone());
    }

    /// Does something after what was given before. Never waits.
    pub(crate) fn later(&self, act: impl FnOnce() + Send + 'static) {
        self.add(self.lock(), Task::Do(Box::new(act)));
    }

    /// How many bytes may wait from now on.
    pub(crate) fn set_waiting_max(&self, bytes: usize) {
        let mut state = self.lock();
        state.bytes_max = bytes;
        state.wake();
    }

    /// Takes no more, and forgets what was not yet done.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.tasks.clear();
        state.wake();
        drop(state);
        self.0.work.notify_all();
    }

    fn add(&self, mut state: MutexGuard<'_, State>, task: Task) {
        if !state.closed {
            state.tasks.push_back(task);
            self.0.work.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next task; `None` when there are no more.
    fn next(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.tasks.pop_front() {
                if let Task::Show(lines) = &task {
                    let had_room = state.has_room();
                    state.bytes -= lines.len();
                    if !had_room && state.has_room() {
                        state.wake();
                    }
                }
                return Some(task);
            }
            if state.closed {
                return None;
            }
            state = self.0.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes all of it, however long the sink takes.
    fn write(&self, sink: &mut Sink, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.patiently(|| sink.write(bytes))? {
                0 => return Err(ErrorKind::WriteZero.into()),
                n => bytes = &bytes[n..],
            }
        }
        self.patiently(|| sink.flush())
    }

    /// Tries again what would block: another program may have made our terminal nonblocking.
    fn patiently<T>(&self, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match attempt() {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && !self.lock().closed => {
                    thread::sleep(AGAIN);
                }
                done => return done,
            }
        }
    }
}

/// The writers of a job, which end with it.
pub(crate) struct Writers {
    pub(crate) out: Writer,
    /// For what is logged, too.
    pub(crate) err: Writer,
}

impl Writers {
    pub(crate) fn start(out: Sink, err: Sink) -> Result<Self> {
        let out = Writer::start("stdout", out)?;
        let err = Writer::start("stderr", err).inspect_err(|_| out.close())?;
        Ok(Self { out, err })
    }

    /// How many bytes may wait in each from now on.
    pub(crate) fn set_waiting_max(&self, bytes: usize) {
        [&self.out, &self.err].into_iter().for_each(|writer| writer.set_waiting_max(bytes));
    }

    /// Waits until all is written: for as long as the readers take, unless there is a limit, or somebody gives up.
    pub(crate) fn finish(&self, limit: Option<Duration>, mut given_up: impl FnMut() -> bool) {
        let (done, all_done) = channel::<()>();
        for writer in [&self.out, &self.err] {
            let done = done.clone();
            writer.later(move || drop(done));
        }
        drop(done);
        let begun = Instant::now();
        while all_done.recv_timeout(LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout)
            && limit.is_none_or(|limit| begun.elapsed() < limit)
            && !given_up()
        {}
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        [&self.out, &self.err].into_iter().for_each(Writer::close);
    }
}

/// Closes a writer when its thread ends.
struct Closes(Writer);

impl Drop for Closes {
    fn drop(&mut self) {
        self.0.close();
    }
}
