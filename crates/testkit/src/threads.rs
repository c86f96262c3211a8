//! Runs each rank of a test on a thread, and tells which of them panicked or hang.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Runs each rank's body on a thread of its own; what they return, in rank order.
///
/// # Panics
/// If a rank panics, naming all that did, the first one first; or if not all are done in time, naming those that still run.
pub(crate) fn on_threads<R, F>(bodies: Vec<F>, watchdog: Duration) -> Vec<R>
where
    R: Send + 'static,
    F: FnOnce() -> R + Send + 'static,
{
    let world_size = bodies.len();
    let (end, ends) = channel();
    for (rank, body) in bodies.into_iter().enumerate() {
        let end = end.clone();
        let run = move || {
            let outcome = catch_unwind(AssertUnwindSafe(body));
            // Nobody listens any more when the watchdog has spoken.
            let _ = end.send((rank, outcome));
        };
        let thread = std::thread::Builder::new().name(format!("rank {rank}"));
        thread.spawn(run).unwrap_or_else(|error| panic!("no thread for rank {rank}: {error}"));
    }
    drop(end);
    collect(&ends, world_size, watchdog)
}

type Ending<R> = (usize, std::thread::Result<R>);

/// Waits for all ranks; the panics stand in the order in which they came.
fn collect<R>(ends: &Receiver<Ending<R>>, world_size: usize, limit: Duration) -> Vec<R> {
    let begun = Instant::now();
    let mut results: Vec<Option<R>> = (0..world_size).map(|_| None).collect();
    let mut panics: Vec<(usize, String)> = Vec::new();
    loop {
        match ends.recv_timeout(limit.saturating_sub(begun.elapsed())) {
            Ok((rank, Ok(result))) => results[rank] = Some(result),
            Ok((rank, Err(payload))) => panics.push((rank, text(&*payload))),
            Err(RecvTimeoutError::Disconnected) if panics.is_empty() => {
                return results.into_iter().map(|r| r.expect("every rank has ended")).collect();
            }
            Err(error) => {
                let ended = |r: &usize| results[*r].is_some() || panics.iter().any(|(p, _)| p == r);
                let mut story: Vec<_> = panics
                    .iter()
                    .map(|(rank, what)| format!("rank {rank} of {world_size} panicked: {what}"))
                    .collect();
                if error == RecvTimeoutError::Timeout {
                    let running: Vec<_> = (0..world_size).filter(|r| !ended(r)).collect();
                    story.push(format!("ranks {running:?} of {world_size} still run after {limit:?}"));
                }
                panic!("{}", story.join("\n"));
            }
        }
    }
}

/// The words of a panic.
pub(crate) fn text(payload: &(dyn Any + Send)) -> String {
    let text =
        payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
    text.unwrap_or("something that is no text").to_owned()
}
