//! Jobs on their way to the thread that performs them.

use crate::sync::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::PoisonError;

/// Jobs for the progress thread, and their end.
pub(crate) struct Queue<J> {
    state: Mutex<State<J>>,
    changed: Condvar,
}

struct State<J> {
    jobs: VecDeque<J>,
    closing: bool,
}

impl<J> Default for Queue<J> {
    fn default() -> Self {
        Self { state: Mutex::new(State { jobs: VecDeque::new(), closing: false }), changed: Condvar::new() }
    }
}

impl<J> std::fmt::Debug for Queue<J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("jobs", &self.lock().jobs.len()).finish_non_exhaustive()
    }
}

impl<J> Queue<J> {
    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pushes the job that `make` makes. Jobs are made one after the other, in their order.
    pub(crate) fn push(&self, make: impl FnOnce() -> J) {
        let mut state = self.lock();
        let job = make();
        state.jobs.push_back(job);
        drop(state);
        self.changed.notify_all();
    }

    /// Nothing more will be pushed: the thread ends when its work is done.
    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.changed.notify_all();
    }

    /// Waits for a job; false if none will come. It ends: whoever can push closes at last.
    pub(crate) fn wait(&self) -> bool {
        !self.filled().jobs.is_empty()
    }

    /// Waits for a job, and takes it; `None` if none will come.
    pub(crate) fn next(&self) -> Option<J> {
        self.filled().jobs.pop_front()
    }

    /// With a job, unless none will come.
    fn filled(&self) -> MutexGuard<'_, State<J>> {
        let mut state = self.lock();
        while state.jobs.is_empty() && !state.closing {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Gives what is there to `taker`, in the order in which it was pushed.
    pub(crate) fn take(&self, taker: impl FnMut(J)) {
        self.lock().jobs.drain(..).for_each(taker);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;
    use std::sync::Arc;

    fn perform(queue: &Queue<u32>) -> Vec<u32> {
        let mut taken = Vec::new();
        while queue.wait() {
            queue.take(|job| taken.push(job));
        }
        taken
    }

    #[test]
    fn every_job_is_taken_once_and_the_thread_ends() {
        let mut model = loom::model::Builder::new();
        // Four threads in every order would take hours.
        model.preemption_bound = Some(2);
        model.check(|| {
            let queue = Arc::new(Queue::default());
            let (worker, first, second) = (queue.clone(), queue.clone(), queue.clone());
            let worker = thread::spawn(move || perform(&worker));
            let pushing = [thread::spawn(move || first.push(|| 1)), thread::spawn(move || second.push(|| 2))];
            pushing.into_iter().for_each(|thread| thread.join().unwrap());
            queue.close();
            let mut taken = worker.join().unwrap();
            taken.sort_unstable();
            assert_eq!(taken, [1, 2]);
        });
    }

    #[test]
    fn what_was_pushed_before_the_end_is_still_taken_in_order() {
        loom::model(|| {
            let queue = Arc::new(Queue::default());
            let worker = queue.clone();
            let worker = thread::spawn(move || perform(&worker));
            queue.push(|| 1);
            queue.push(|| 2);
            queue.close();
            assert_eq!(worker.join().unwrap(), [1, 2]);
        });
    }

    #[test]
    fn jobs_are_taken_one_by_one_until_the_end() {
        loom::model(|| {
            let queue = Arc::new(Queue::default());
            let worker = queue.clone();
            let worker = thread::spawn(move || std::iter::from_fn(|| worker.next()).collect::<Vec<u32>>());
            queue.push(|| 1);
            queue.push(|| 2);
            queue.close();
            assert_eq!(worker.join().unwrap(), [1, 2]);
        });
    }
}
