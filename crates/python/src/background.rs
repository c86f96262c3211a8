//! Threads that do what takes the interpreter, for threads that must not wait for it: those that perform operations.
//!
//! A program's callback may itself wait for an operation whose end another callback announces, as PyTorch's PowerSGD does. So a call never waits behind
//! one that runs: where no thread is free, there is one more.

use crate::owner::Owner;
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

enum Task {
    Forget(#[allow(dead_code, reason = "it is dropped")] Owner),
    Call(Box<dyn FnOnce(Python<'_>) + Send>),
}

struct Pool {
    tasks: VecDeque<Task>,
    threads: usize,
    /// How many of them wait for a task.
    idle: usize,
    /// A process that was forked has not got the threads.
    process: u32,
    /// The interpreter ends, and nobody may ask for it any more.
    is_closed: bool,
}

/// More callbacks than any program has waiting at once.
const THREADS_MAX: usize = 64;
/// How long the end of the program waits for callbacks that run.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

static POOL: Mutex<Pool> =
    Mutex::new(Pool { tasks: VecDeque::new(), threads: 0, idle: 0, process: 0, is_closed: false });
static CHANGED: Condvar = Condvar::new();

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops `owner` on a thread that has the interpreter.
pub(crate) fn forget_later(owner: Owner) {
    send(Task::Forget(owner), 1);
}

/// Calls `task` with the interpreter, soon.
pub(crate) fn call_later(task: impl FnOnce(Python<'_>) + Send + 'static) {
    send(Task::Call(Box::new(task)), THREADS_MAX);
}

/// Hands `task` to a thread, of which it is worth so many.
fn send(task: Task, threads_max: usize) {
    let mut pool = pool();
    if pool.process != std::process::id() {
        let lost = std::mem::take(&mut pool.tasks);
        std::mem::forget(lost);
        (pool.threads, pool.idle, pool.process) = (0, 0, std::process::id());
    }
    if pool.is_closed {
        return std::mem::forget(task);
    }
    pool.tasks.push_back(task);
    if pool.tasks.len() > pool.idle && pool.threads < threads_max {
        let thread = std::thread::Builder::new().name("phalanx-python".to_owned());
        // Without a thread, what it keeps alive stays, which harms nobody.
        pool.threads += usize::from(thread.spawn(perform).is_ok());
    }
    CHANGED.notify_one();
}

fn perform() {
    while let Some(first) = next() {
        let mut left = Some(first);
        // Those that have come meanwhile are done in one go.
        let done = Python::try_attach(|py| {
            while let Some(task) = left.take().or_else(|| pool().tasks.pop_front()) {
                match task {
                    Task::Forget(owner) => drop(owner),
                    Task::Call(call) => call(py),
                }
            }
        });
        if done.is_none() {
            std::mem::forget(left);
            break;
        }
    }
    pool().threads -= 1;
    CHANGED.notify_all();
}

/// The next task; `None` when there will be none.
fn next() -> Option<Task> {
    let mut pool = pool();
    pool.idle += 1;
    while pool.tasks.is_empty() && !pool.is_closed {
        pool = CHANGED.wait(pool).unwrap_or_else(PoisonError::into_inner);
    }
    pool.idle -= 1;
    pool.tasks.pop_front()
}

/// Ends the threads: from here on nothing is called any more.
pub(crate) fn close(py: Python<'_>) {
    // They may wait for the interpreter.
    py.detach(|| {
        let mut pool = pool();
        pool.is_closed = true;
        CHANGED.notify_all();
        let end = Instant::now() + CLOSE_WITHIN;
        while pool.threads > 0 && pool.process == std::process::id() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            pool = CHANGED.wait_timeout(pool, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    });
}
