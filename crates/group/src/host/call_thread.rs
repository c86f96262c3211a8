//! Collectives that were begun, where a backend performs them on whichever thread calls: one after the other, in the order of the calls, on
//! a thread of the group or on one that waits for them.

use crate::control::group_health::GroupHealth;
use crate::group::call::{HostCall, OwnedCall};
use crate::group::pending::{Completion, Driver, Pending};
use crate::progress::job_list::JobList;
use crate::progress::own_thread::OwnThread;
use crate::trace::clock;
use phalanx_core::{Error, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What the thread works on.
pub(crate) trait Performer: Send + Sync + 'static {
    fn call_thread(&self) -> &CallThread;
    fn health(&self) -> &GroupHealth;
    /// Performs a collective on the calling thread, after those that it was asked for before.
    fn perform(&self, call: HostCall<'_>, limit: Duration) -> Result<()>;
}

/// A collective with the buffers it owns.
struct Job {
    call: OwnedCall,
    completion: Completion,
    limit: Duration,
}

/// A group's collectives that nobody waits for yet, and the thread that performs them.
#[derive(Default)]
pub(crate) struct CallThread {
    jobs: JobList<Job>,
    thread: OwnThread,
    /// Jobs that are not finished. One load tells a blocking call that nothing is before it.
    unfinished: AtomicUsize,
    /// One more is finished, and whoever waits for it knows.
    finished: (Mutex<()>, Condvar),
}

impl std::fmt::Debug for CallThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallThread").field("unfinished", &self.unfinished).finish_non_exhaustive()
    }
}

impl CallThread {
    fn finishing(&self) -> MutexGuard<'_, ()> {
        self.finished.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last handle on the group is gone: waits for what the thread still has to do, but not for long.
    pub(crate) fn end(&self, health: &GroupHealth) {
        self.jobs.close();
        self.thread.end(health);
    }
}

/// Blocking calls come after what was begun before them, which is performed here unless it is being performed. It ends: every job has a deadline, and
/// none ends the thread.
#[inline]
pub(crate) fn wait_until_empty(performer: &impl Performer) {
    if performer.call_thread().unfinished.load(Ordering::Acquire) != 0 {
        finish_all(performer);
    }
}

#[cold]
fn finish_all(performer: &impl Performer) {
    let call_thread = performer.call_thread();
    let is_empty = || call_thread.unfinished.load(Ordering::Acquire) == 0;
    perform_until(performer, &is_empty);
    let mut finishing = call_thread.finishing();
    while !is_empty() {
        finishing = call_thread.finished.1.wait(finishing).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Gives a collective to the thread of `performer`, and starts that if need be.
///
/// # Errors
/// [`Io`](phalanx_core::Error::Io) if no thread can be started; the buffer is dropped.
pub(crate) fn submit<P: Performer>(performer: &Arc<P>, call: OwnedCall, limit: Duration) -> Result<Pending> {
    let call_thread = performer.call_thread();
    let theirs = performer.clone();
    call_thread.thread.start(move || run(&*theirs))?;
    let (pending, completion) = Pending::new();
    call_thread.unfinished.fetch_add(1, Ordering::Relaxed);
    call_thread.jobs.push(|| {
        // Not before: what never begins must not stand in the log.
        performer.health().latch.collectives.schedule(call.signature(), clock::now);
        Job { call, completion, limit }
    });
    Ok(pending.driven_by(Arc::new(AtWaiter(performer.clone()))))
}

/// A thread that waits performs the jobs, too.
struct AtWaiter<P>(Arc<P>);

impl<P: Performer> Driver for AtWaiter<P> {
    fn drive_jobs_until(&self, is_over: &dyn Fn() -> bool, end: Option<Instant>) {
        // A collective that is being performed can't be left alone, so who waits for a time only does not begin one.
        if end.is_none() {
            perform_until(&*self.0, is_over);
        }
    }
}

fn perform_until(performer: &impl Performer, is_over: &dyn Fn() -> bool) {
    // A forked child has no part in what its parent began.
    if !performer.health().is_here() {
        return;
    }
    let Some(mut turn) = performer.call_thread().jobs.waiters_turn(None, is_over) else { return };
    while !is_over() {
        let Some(job) = turn.next() else { break };
        perform(performer, job);
    }
}

fn run(performer: &impl Performer) {
    while let Some(mut turn) = performer.call_thread().jobs.own_turn() {
        if let Some(job) = turn.next() {
            perform(performer, job);
        }
    }
}

fn perform(performer: &impl Performer, job: Job) {
    let Job { mut call, completion, limit } = job;
    let outcome = performer
        .health()
        .contain(|| {
            let (op, site) = (call.signature().op, call.signature().site.clone());
            match call.lend() {
                Ok(call) => performer.perform(call, limit),
                // A buffer may be of the program's own making, and what the others write of it follows from the call.
                Err(changed) => {
                    let what = changed.describe(op, &site);
                    performer.health().abort(&what);
                    Err(Error::misuse(op, what))
                }
            }
        })
        .flatten();
    // Without a lock: whoever is woken may call this group.
    completion.complete(outcome.map(|()| call.into_buffer()));
    let call_thread = performer.call_thread();
    let _finishing = call_thread.finishing();
    call_thread.unfinished.fetch_sub(1, Ordering::Release);
    call_thread.finished.1.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Work;
    use crate::bootstrap::thread_job::ThreadJob;
    use crate::group::request::Request;
    use phalanx_core::{CallSite, Error, OpKind, Signature, WORLD};

    #[derive(Debug)]
    struct Fragile {
        call_thread: CallThread,
        health: GroupHealth,
    }

    impl Performer for Fragile {
        fn call_thread(&self) -> &CallThread {
            &self.call_thread
        }

        fn health(&self) -> &GroupHealth {
            &self.health
        }

        fn perform(&self, call: HostCall<'_>, _: Duration) -> Result<()> {
            self.health.check(call.signature(), || 1)?;
            panic!("on purpose")
        }
    }

    #[test]
    fn a_job_that_panics_fails_the_group_and_the_thread_works_on() {
        let second = Duration::from_secs(1);
        let job = ThreadJob::create(1, second).remove(0);
        let health = GroupHealth::new(Arc::new(job), WORLD, vec![0]);
        let fragile = Arc::new(Fragile { call_thread: CallThread::default(), health });
        let (op, site) = (OpKind::Barrier, CallSite::caller());
        let signature = Signature::bare(op, site);
        let call = || OwnedCall::new(signature.clone(), Request::Barrier, 0, 1).unwrap();
        let jobs = [(); 2].map(|()| submit(&fragile, call(), second));
        let [first, second] = jobs.map(|pending| Work::new(pending.unwrap(), |buffer: Vec<u8>| buffer));
        let first = first.wait().unwrap_err();
        assert!(matches!(&first, Error::Internal { what } if what.contains("on purpose")), "{first}");
        assert!(matches!(second.wait(), Err(Error::Poisoned { .. })));
        wait_until_empty(&*fragile);
        fragile.call_thread.end(&fragile.health);
    }

    /// The first collective waits to be let go; each notes which thread performs it.
    #[derive(Debug)]
    struct Noting {
        call_thread: CallThread,
        health: GroupHealth,
        lets_go: Mutex<Option<std::sync::mpsc::Receiver<()>>>,
        by: Mutex<Vec<std::thread::ThreadId>>,
    }

    impl Performer for Noting {
        fn call_thread(&self) -> &CallThread {
            &self.call_thread
        }

        fn health(&self) -> &GroupHealth {
            &self.health
        }

        fn perform(&self, _: HostCall<'_>, _: Duration) -> Result<()> {
            self.by.lock().unwrap().push(std::thread::current().id());
            if let Some(lets_go) = self.lets_go.lock().unwrap().take() {
                lets_go.recv().unwrap();
            }
            Ok(())
        }
    }

    #[test]
    fn who_waits_performs_what_the_thread_has_not_begun() {
        let minute = Duration::from_secs(60);
        let job = ThreadJob::create(1, minute).remove(0);
        let health = GroupHealth::new(Arc::new(job), WORLD, vec![0]);
        let (let_go, lets_go) = std::sync::mpsc::channel();
        let (call_thread, by) = (CallThread::default(), Mutex::default());
        let noting = Arc::new(Noting { call_thread, health, lets_go: Mutex::new(Some(lets_go)), by });
        let signature = Signature::bare(OpKind::Barrier, CallSite::caller());
        let call = || OwnedCall::new(signature.clone(), Request::Barrier, 0, 1).unwrap();
        let [first, second, third] = [(); 3].map(|()| submit(&noting, call(), minute).unwrap());
        while noting.by.lock().unwrap().is_empty() {
            std::thread::yield_now();
        }
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| second.wait().map(drop));
            let its_id = waiter.thread().id();
            while !noting.call_thread.jobs.is_with_waiter() {
                std::thread::yield_now();
            }
            let_go.send(()).unwrap();
            waiter.join().unwrap().unwrap();
            assert_eq!(noting.by.lock().unwrap()[1], its_id);
        });
        first.wait().unwrap();
        // Nobody waits for the third.
        while !third.is_done() {
            std::thread::yield_now();
        }
        let by = noting.by.lock().unwrap().clone();
        assert_eq!(by.len(), 3);
        assert_eq!(by[2], by[0]);
        noting.call_thread.end(&noting.health);
    }
}
