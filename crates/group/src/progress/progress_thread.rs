//! Operations over a transport that were begun: whoever has the turn polls them all, side by side. That is the progress thread of the group, or a
//! thread that waits for one of them.

use super::backoff::Backoff;
use super::{Begun, Engine, Job, Wakers};
use crate::engine::attempt::{Attempt, Outcome};
use crate::engine::core::Core;
use crate::group::pending::Driver;
use crate::quick_mutex::QuickGuard;
use phalanx_core::{Error, Result};
use phalanx_transport::{Direction, Waker};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Starts the progress thread of `engine`, if nobody has. Before an operation takes its number: one that could not be
/// submitted must not leave a gap.
///
/// # Errors
/// [`Error::Io`] if no thread can be started.
pub(crate) fn start(engine: &Arc<Engine>) -> Result<()> {
    let mut known = engine.wakers();
    if known.is_none() {
        let waker = || engine.waker().map_err(|e| Error::io("making a wake-up pipe", e));
        let wakers = Wakers { own_thread: waker()?, waiter: waker()? };
        let (theirs, its_waker) = (engine.clone(), wakers.own_thread.clone());
        engine.thread.start(move || run(&theirs, &its_waker))?;
        *known = Some(wakers);
    }
    Ok(())
}

/// Ends the thread, if there is one: waits for what it still has to do, but not for long.
pub(crate) fn end(engine: &Engine) {
    engine.jobs.close();
    // It may still sleep for what a waiter has performed.
    wake(engine);
    engine.thread.end(&engine.health);
}

/// Has `job` performed by the thread, which was started, or by whoever waits for it.
pub(crate) fn submit(engine: &Engine, job: Box<dyn Job>) {
    let attempt = Attempt::of_job(Instant::now(), job.limit());
    engine.jobs.push(|| (job, attempt));
    wake(engine);
}

/// As [`submit`], for a job that does little at a time: it is polled once here, since to wake a thread would take longer.
pub(crate) fn submit_short(engine: &Engine, mut job: Box<dyn Job>) {
    let mut attempt = Attempt::of_job(Instant::now(), job.limit());
    let polled = engine.health.contain(|| attempt.poll(&mut engine.lock(), job.as_mut(), Instant::now));
    match polled {
        Ok(Outcome::Finished) => job.complete(Ok(())),
        Ok(Outcome::Failed(error)) | Err(error) => {
            engine.withdraw();
            engine.health.finish_trace();
            job.complete(Err(error));
        }
        Ok(Outcome::Moved | Outcome::Idle) => {
            engine.jobs.push(|| (job, attempt));
            wake(engine);
        }
    }
}

/// Whoever performs the jobs is to look at them again.
pub(crate) fn wake(engine: &Engine) {
    if let Some(wakers) = &*engine.wakers() {
        // A waiter that goes away wakes the thread if anything is left to do.
        let waker = if engine.jobs.is_with_waiter() { &wakers.waiter } else { &wakers.own_thread };
        waker.wake();
    }
}

fn run(engine: &Engine, waker: &Waker) {
    let mut jobs = Vec::new();
    let mut backoff = Backoff::sleeping_on(waker, engine.host_place);
    while let Some(mut turn) = engine.jobs.own_turn() {
        turn.take(&mut jobs);
        let round = engine.health.contain(|| {
            let Some(core) = poll_all(engine, &mut jobs) else {
                backoff.reset();
                turn.put_back(&mut jobs);
                return;
            };
            // While the program computes, this core is not ours to stay awake on.
            if !jobs.iter().any(|(job, _)| job.is_awaited()) {
                backoff.end();
            }
            let (wants, limit) = waits_for(&core, &jobs, &backoff);
            engine.thread_sleeps.store(true, Ordering::SeqCst);
            // Asleep, it keeps no waiter from performing them.
            turn.put_back(&mut jobs);
            drop(turn);
            drop(engine.idle(core, &mut backoff, &wants, limit, || engine.jobs.is_with_waiter()));
            engine.thread_sleeps.store(false, Ordering::SeqCst);
        });
        if let Err(error) = round {
            fail_all(engine, &mut jobs, &error);
        }
    }
}

/// Polls every job once, and ends those that are over. If none moved, returns the core for whoever waits.
fn poll_all<'e>(engine: &'e Engine, jobs: &mut Vec<Begun>) -> Option<QuickGuard<'e, Core>> {
    // Before the lock, which is then let go first if a poll panics.
    let mut over = Vec::new();
    let mut core = engine.lock();
    let mut moved = false;
    let mut at = 0;
    while at < jobs.len() {
        let (job, attempt) = &mut jobs[at];
        let outcome = match attempt.poll(&mut core, job.as_mut(), Instant::now) {
            Outcome::Idle => {
                at += 1;
                continue;
            }
            Outcome::Moved => {
                moved = true;
                at += 1;
                continue;
            }
            Outcome::Finished => Ok(()),
            Outcome::Failed(error) => Err(error),
        };
        over.push((jobs.remove(at).0, outcome));
    }
    if !moved && over.is_empty() {
        return Some(core);
    }
    drop(core);
    if over.iter().any(|(_, outcome)| outcome.is_err()) {
        engine.health.finish_trace();
    }
    for (job, outcome) in over {
        job.complete(outcome);
    }
    None
}

/// For which links to sleep, and how long at most.
fn waits_for(core: &Core, jobs: &[Begun], backoff: &Backoff) -> (Vec<(usize, Direction)>, Duration) {
    let mut wants = Vec::new();
    let mut limit = Duration::from_secs(1);
    if backoff.is_at_end() {
        let now = Instant::now();
        for (job, attempt) in jobs {
            limit = limit.min(attempt.waits_for(core, job.as_ref(), &mut wants, now));
        }
    }
    (wants, limit)
}

/// The group has failed, and nobody knows what a panic left of them.
fn fail_all(engine: &Engine, jobs: &mut Vec<Begun>, error: &Error) {
    engine.withdraw();
    jobs.drain(..).for_each(|(job, _)| job.complete(Err(error.clone())));
}

impl Driver for Engine {
    fn drive_jobs_until(&self, is_over: &dyn Fn() -> bool, end: Option<Instant>) {
        // A forked child has no part in what its parent began.
        if !self.health.is_here() {
            return;
        }
        let Some(Wakers { waiter, own_thread }) = self.wakers().clone() else { return };
        let Some(mut turn) = self.jobs.waiters_turn(end, is_over) else {
            // Meanwhile others may have taken this thread for the one to wake.
            if end.is_some() {
                wake(self);
            }
            return;
        };
        if self.thread_sleeps.load(Ordering::SeqCst) {
            // Else peers would wake it for each piece that moves, and it would find nothing to do.
            own_thread.wake();
        }
        let mut jobs = Vec::new();
        let mut backoff = Backoff::sleeping_on(&waiter, self.host_place);
        // Known to wait, once it has for a while. Who waits for a time only can do something when that is over.
        let mut here = None;
        loop {
            turn.take(&mut jobs);
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if is_over() || jobs.is_empty() || left.is_zero() {
                break;
            }
            let round = self.health.contain(|| match poll_all(self, &mut jobs) {
                None => backoff.reset(),
                Some(core) => {
                    if here.is_none() && end.is_none() && backoff.is_at_end() {
                        here = self.health.waits_here();
                    }
                    let (wants, limit) = waits_for(&core, &jobs, &backoff);
                    drop(self.idle(core, &mut backoff, &wants, limit.min(left), || false));
                }
            });
            if let Err(error) = round {
                fail_all(self, &mut jobs, &error);
            }
        }
        let are_left = !jobs.is_empty();
        turn.put_back(&mut jobs);
        drop(turn);
        if are_left {
            wake(self);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Buffers, Bytes, Error, OwnedBuffer, ReduceOp, Request, Work, threads};
    use phalanx_core::{CallSite, DType, Loss, OpKind};
    use std::any::Any;

    /// Its bytes can be had once.
    #[derive(Default)]
    struct Fragile {
        calls: usize,
        bytes: [u8; 1],
    }

    impl Bytes for Fragile {
        fn bytes(&mut self) -> &mut [u8] {
            self.calls += 1;
            assert!(self.calls == 1, "on purpose");
            &mut self.bytes
        }

        fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
            self
        }
    }

    #[test]
    fn a_job_that_panics_fails_the_group_and_those_after_it_end() {
        let groups: [_; 2] = threads(2).try_into().unwrap();
        let [fragile, other] = groups;
        let buffers = Buffers::InPlace(OwnedBuffer::new(Box::new(Fragile::default())));
        let request = Request::AllReduce { buffers, reduce: ReduceOp::Sum };
        let (op, site) = (OpKind::AllReduce, CallSite::caller());
        let call = fragile.call(op, Some(DType::U8), request, 0, site).unwrap();
        let first = fragile.backend.submit(call, fragile.timeout()).unwrap();
        // Refused, or given to a thread that has to be there still.
        let second = fragile.all_reduce_async(vec![1u8], ReduceOp::Sum).and_then(Work::wait);
        let first = Work::new(first, |buffer: Vec<u8>| buffer).wait().unwrap_err();
        assert!(matches!(&first, Error::Internal { what } if what.contains("on purpose")), "{first}");
        assert!(second.is_err());
        let theirs = other.all_reduce(&mut [1u8], ReduceOp::Sum).unwrap_err();
        let Error::PeerLost { peer, how, .. } = &theirs else { panic!("{theirs}") };
        assert_eq!((peer.rank, *how), (0, Loss::Panicked), "{theirs}");
    }
}
