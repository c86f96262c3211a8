//! Collectives that nobody waits for, where a backend performs them on whichever thread calls: one after the other on
//! a thread of the group, in the order of the calls.

use crate::control::group_health::GroupHealth;
use crate::group::call::{HostCall, OwnedCall};
use crate::group::pending::{Completion, Pending};
use crate::progress::own_thread::ThreadWithQueue;
use crate::trace::clock;
use phalanx_core::{Error, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
    thread: ThreadWithQueue<Job>,
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

    /// Blocking calls come after what was begun before them. It ends: every job has a deadline, and none ends the thread.
    pub(crate) fn wait_until_empty(&self) {
        if self.unfinished.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut finishing = self.finishing();
        while self.unfinished.load(Ordering::Acquire) > 0 {
            finishing = self.finished.1.wait(finishing).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The last handle on the group is gone: waits for what the thread still has to do, but not for long.
    pub(crate) fn end(&self, health: &GroupHealth) {
        self.thread.end(health);
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
    call_thread.thread.submit(|| {
        // Not before: what never begins must not stand in the log.
        performer.health().latch.collectives.schedule(call.signature(), clock::now);
        Job { call, completion, limit }
    });
    Ok(pending)
}

fn run(performer: &impl Performer) {
    let call_thread = performer.call_thread();
    while let Some(Job { mut call, completion, limit }) = call_thread.thread.next() {
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
        let _finishing = call_thread.finishing();
        call_thread.unfinished.fetch_sub(1, Ordering::Release);
        call_thread.finished.1.notify_all();
    }
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
        fragile.call_thread.wait_until_empty();
        fragile.call_thread.end(&fragile.health);
    }
}
