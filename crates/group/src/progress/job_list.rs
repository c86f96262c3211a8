//! The jobs of a group that were begun and are not over, and whose turn it is to perform them.
//!
//! The group's own thread performs them while the program does other things. A thread that waits for one of them performs them itself meanwhile:
//! to wake another thread, and to be woken by it, takes longer than most operations.

use crate::sync::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::PoisonError;
use std::time::Instant;

/// Jobs in the order in which they were begun.
pub(crate) struct JobList<J> {
    state: Mutex<State<J>>,
    changed: Condvar,
}

struct State<J> {
    /// Those that nobody has taken.
    jobs: VecDeque<J>,
    closing: bool,
    /// The group's own thread has the turn.
    own_thread: bool,
    /// A thread that waits has the turn, or will have it next.
    waiter: bool,
}

impl<J> Default for JobList<J> {
    fn default() -> Self {
        let state = State { jobs: VecDeque::new(), closing: false, own_thread: false, waiter: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl<J> std::fmt::Debug for JobList<J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobList").field("jobs", &self.lock().jobs.len()).finish_non_exhaustive()
    }
}

impl<J> JobList<J> {
    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pushes the job that `make` makes. Jobs are made one after the other, in their order.
    pub(crate) fn push(&self, make: impl FnOnce() -> J) {
        let mut state = self.lock();
        let job = make();
        state.jobs.push_back(job);
        let is_taken = state.own_thread || state.waiter;
        drop(state);
        // Who has the turn looks again before giving it away.
        if !is_taken {
            self.changed.notify_all();
        }
    }

    /// Nothing more will be pushed: the group's own thread ends when its work is done.
    pub(crate) fn close(&self) {
        self.lock().closing = true;
        self.changed.notify_all();
    }

    /// Whether a thread that waits performs the jobs.
    pub(crate) fn is_with_waiter(&self) -> bool {
        self.lock().waiter
    }

    /// The turn of the group's own thread, once there is a job that no other thread performs. `None` if none will come. It ends: whoever can push
    /// closes at last, and whoever waits goes on at last.
    pub(crate) fn own_turn(&self) -> Option<Turn<'_, J>> {
        let mut state = self.lock();
        loop {
            if !state.waiter && !state.jobs.is_empty() {
                state.own_thread = true;
                return Some(Turn { list: self, is_waiter: false });
            }
            if !state.waiter && state.closing {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The turn of a thread that waits, once the group's own thread gives it away. `None` if what it waits for is over, if another thread that waits
    /// has the turn, or from `end` on.
    pub(crate) fn waiters_turn(
        &self,
        end: Option<Instant>,
        is_over: &dyn Fn() -> bool,
    ) -> Option<Turn<'_, J>> {
        let mut state = self.lock();
        // Looked at here: the own thread may have gone on to the next job, for which nobody waits.
        if state.waiter || is_over() {
            return None;
        }
        state.waiter = true;
        let turn = Turn { list: self, is_waiter: true };
        while state.own_thread {
            let Some(end) = end else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(state);
                return None;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.map_or_else(|error| error.into_inner().0, |(state, _)| state);
        }
        Some(turn)
    }
}

/// The right to perform jobs, which one thread has at a time, until this is dropped.
pub(crate) struct Turn<'l, J> {
    list: &'l JobList<J>,
    is_waiter: bool,
}

impl<J> Turn<'_, J> {
    /// Takes the next job, if there is one.
    pub(crate) fn next(&mut self) -> Option<J> {
        self.list.lock().jobs.pop_front()
    }

    /// Takes all jobs that are there, after those of `jobs`.
    pub(crate) fn take(&mut self, jobs: &mut Vec<J>) {
        jobs.extend(self.list.lock().jobs.drain(..));
    }

    /// Gives back jobs that are not over.
    pub(crate) fn put_back(&mut self, jobs: &mut Vec<J>) {
        let mut state = self.list.lock();
        for job in jobs.drain(..).rev() {
            state.jobs.push_front(job);
        }
    }
}

impl<J> Drop for Turn<'_, J> {
    fn drop(&mut self) {
        let mut state = self.list.lock();
        let somebody_waits = if self.is_waiter {
            state.waiter = false;
            state.closing || !state.jobs.is_empty()
        } else {
            state.own_thread = false;
            state.waiter
        };
        drop(state);
        if somebody_waits {
            self.list.changed.notify_all();
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;
    use std::sync::Arc;

    fn model(check: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        // Four threads in every order would take hours.
        model.preemption_bound = Some(2);
        model.check(check);
    }

    /// As the group's own thread does it: a look at all of them, which only the second ends.
    fn perform(list: &JobList<(u32, bool)>, over: &Mutex<Vec<u32>>) {
        let mut jobs = Vec::new();
        while let Some(mut turn) = list.own_turn() {
            turn.take(&mut jobs);
            look(&mut jobs, over);
            turn.put_back(&mut jobs);
        }
    }

    fn look(jobs: &mut Vec<(u32, bool)>, over: &Mutex<Vec<u32>>) {
        jobs.retain_mut(|(job, was_seen)| {
            if *was_seen {
                over.lock().unwrap().push(*job);
            }
            !std::mem::replace(was_seen, true)
        });
    }

    #[test]
    fn every_job_is_performed_once_whoever_has_the_turn_and_the_thread_ends() {
        model(|| {
            let list = Arc::new(JobList::default());
            let over = Arc::new(Mutex::new(Vec::new()));
            let (its_list, its_over) = (list.clone(), over.clone());
            let own = thread::spawn(move || perform(&its_list, &its_over));
            let another = list.clone();
            let pushing = thread::spawn(move || another.push(|| (2, false)));
            list.push(|| (1, false));
            // It waits for the first.
            if let Some(mut turn) = list.waiters_turn(None, &|| false) {
                let mut jobs = Vec::new();
                while !over.lock().unwrap().contains(&1) {
                    turn.take(&mut jobs);
                    look(&mut jobs, &over);
                }
                turn.put_back(&mut jobs);
            }
            pushing.join().unwrap();
            list.close();
            own.join().unwrap();
            let mut over = over.lock().unwrap().clone();
            over.sort_unstable();
            assert_eq!(over, [1, 2]);
        });
    }

    #[test]
    fn jobs_are_performed_in_order_and_one_at_a_time() {
        model(|| {
            let list = Arc::new(JobList::default());
            let over = Arc::new(Mutex::new(Vec::new()));
            let (its_list, its_over) = (list.clone(), over.clone());
            let own = thread::spawn(move || {
                while let Some(mut turn) = its_list.own_turn() {
                    let job = turn.next();
                    its_over.lock().unwrap().extend(job);
                }
            });
            list.push(|| 1);
            list.push(|| 2);
            if let Some(mut turn) = list.waiters_turn(None, &|| false) {
                let job = turn.next();
                over.lock().unwrap().extend(job);
            }
            list.close();
            own.join().unwrap();
            assert_eq!(*over.lock().unwrap(), [1, 2]);
        });
    }

    #[test]
    fn one_thread_has_the_turn_and_another_that_waits_goes_on() {
        model(|| {
            let (list, alone) = (Arc::new(JobList::default()), Arc::new(Mutex::new(())));
            let (its_list, its_alone) = (list.clone(), alone.clone());
            let (theirs, their_alone) = (list.clone(), alone.clone());
            let next = |mut turn: Turn<'_, u32>, alone: &Mutex<()>| {
                let _alone = alone.try_lock().expect("two have the turn");
                turn.next().map_or(0, |_| 1)
            };
            let own = thread::spawn(move || {
                std::iter::from_fn(|| its_list.own_turn().map(|turn| next(turn, &its_alone))).sum::<u32>()
            });
            let other = thread::spawn(move || {
                theirs.waiters_turn(None, &|| false).map_or(0, |turn| next(turn, &their_alone))
            });
            list.push(|| 1);
            let here = list.waiters_turn(None, &|| false).map_or(0, |turn| next(turn, &alone));
            list.close();
            assert_eq!(here + other.join().unwrap() + own.join().unwrap(), 1);
        });
    }

    #[test]
    fn a_thread_whose_job_is_over_does_not_wait_for_the_next() {
        model(|| {
            let (list, over) = (Arc::new(JobList::default()), Arc::new(Mutex::new(false)));
            let has_returned = Arc::new((Mutex::new(false), Condvar::new()));
            list.push(|| 1);
            list.push(|| 2);
            let (its_list, its_over, returns) = (list.clone(), over.clone(), has_returned.clone());
            let own = thread::spawn(move || {
                while let Some(mut turn) = its_list.own_turn() {
                    match turn.next() {
                        Some(1) => *its_over.lock().unwrap() = true,
                        // As an operation in which the other ranks come later.
                        Some(_) => {
                            let mut returned = returns.0.lock().unwrap();
                            while !*returned {
                                returned = returns.1.wait(returned).unwrap();
                            }
                        }
                        None => {}
                    }
                }
            });
            let is_over = || *over.lock().unwrap();
            if !is_over()
                && let Some(mut turn) = list.waiters_turn(None, &is_over)
                && !is_over()
            {
                assert_eq!(turn.next(), Some(1));
                *over.lock().unwrap() = true;
            }
            *has_returned.0.lock().unwrap() = true;
            has_returned.1.notify_all();
            list.close();
            own.join().unwrap();
        });
    }
}
