//! What the progress thread of a group does over a transport: it polls all operations that nobody waits for, side by side.

use super::backoff::Backoff;
use super::{Engine, Job};
use crate::engine::attempt::{Attempt, Outcome};
use phalanx_core::{Error, Result};
use phalanx_transport::Waker;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Starts the progress thread of `engine`, if nobody has. Before an operation takes its number: one that could not be
/// submitted must not leave a gap.
///
/// # Errors
/// [`Error::Io`] if no thread can be started.
pub(crate) fn start(engine: &Arc<Engine>) -> Result<()> {
    let mut known = engine.progress_waker();
    if known.is_none() {
        let waker = engine.waker().map_err(|e| Error::io("making a wake-up pipe", e))?;
        let (theirs, its_waker) = (engine.clone(), waker.clone());
        engine.thread.start(move || run(&theirs, &its_waker))?;
        *known = Some(waker);
    }
    Ok(())
}

/// Ends the thread, if there is one: waits for what it still has to do, but not for long.
pub(crate) fn end(engine: &Engine) {
    engine.thread.end(&engine.health);
}

/// Gives `job` to the thread, which was started.
pub(crate) fn submit(engine: &Engine, job: Box<dyn Job>) {
    engine.thread.submit(|| job);
    // It may sleep for links, with other jobs.
    wake(engine);
}

/// The thread is to look at its jobs again, if there is one.
pub(crate) fn wake(engine: &Engine) {
    if let Some(waker) = &*engine.progress_waker() {
        waker.wake();
    }
}

fn run(engine: &Engine, waker: &Waker) {
    let mut jobs: Vec<(Box<dyn Job>, Attempt)> = Vec::new();
    let mut backoff = Backoff::sleeping_on(waker, engine.host_place);
    loop {
        if jobs.is_empty() && !engine.thread.wait() {
            return;
        }
        engine.thread.take(|job| {
            let attempt = Attempt::new(Instant::now(), job.limit());
            jobs.push((job, attempt));
        });
        if let Err(error) = engine.health.contain(|| round(engine, &mut jobs, &mut backoff)) {
            // The group has failed, and nobody knows what the panic left of them.
            jobs.drain(..).for_each(|(job, _)| job.complete(Err(error.clone())));
        }
    }
}

/// Polls every job once; if none moved, waits.
fn round(engine: &Engine, jobs: &mut Vec<(Box<dyn Job>, Attempt)>, backoff: &mut Backoff) {
    let mut core = engine.lock();
    let mut finished = Vec::new();
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
        moved = true;
        finished.push((jobs.remove(at).0, outcome));
    }
    if moved {
        backoff.reset();
        drop(core);
    } else {
        // While the program computes, this core is not ours to stay awake on.
        if !jobs.iter().any(|(job, _)| job.is_awaited()) {
            backoff.end();
        }
        let mut wants = Vec::new();
        let mut limit = Duration::from_secs(1);
        if backoff.is_at_end() {
            let now = Instant::now();
            for (job, attempt) in jobs.iter() {
                limit = limit.min(attempt.waits_for(&core, job.as_ref(), &mut wants, now));
            }
        }
        drop(engine.idle(core, backoff, &wants, limit));
    }
    if finished.iter().any(|(_, outcome)| outcome.is_err()) {
        engine.health.finish_trace();
    }
    for (job, outcome) in finished {
        job.complete(outcome);
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
