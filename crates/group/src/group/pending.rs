//! The two ends of an operation that is not over: one waits, the other performs it and completes it.

use crate::sync::{Condvar, Mutex, MutexGuard};
use phalanx_core::{Element, Error, Result};
use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// A buffer that an operation owns while it runs, whatever its element type.
pub trait Bytes: Send + 'static {
    /// The elements as bytes: the same slice each time. One of another length fails the operation, and the group.
    fn bytes(&mut self) -> &mut [u8];
    /// Gives the buffer back as what it was.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}

impl<T: Element> Bytes for Vec<T> {
    fn bytes(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// How an operation has ended: with its buffer, if well.
type Outcome = Result<Box<dyn Bytes>>;
type Then = Box<dyn FnOnce(Outcome) -> Outcome + Send>;
type Shared = Arc<(Mutex<State>, Condvar)>;

#[derive(Default)]
struct State {
    outcome: Option<Outcome>,
    /// What is still to be done with the outcome before anybody gets it.
    then: VecDeque<Then>,
    /// Whether somebody does nothing but wait for it.
    awaited: bool,
}

/// What performs operations that were begun. A thread that waits for one of them may have it done on itself.
pub(crate) trait Driver: Send + Sync {
    /// Performs operations on this thread until `is_over`, or until that moment. It may return before, if another thread performs them.
    fn drive_jobs_until(&self, is_over: &dyn Fn() -> bool, end: Option<Instant>);
}

fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    shared.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end of a pending operation that is waited for.
pub struct Pending {
    shared: Shared,
    driver: Option<Arc<dyn Driver>>,
}

/// The end of whoever performs it. The operation is over when this is gone, so nobody waits for what nobody does.
pub struct Completion(Option<Shared>);

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending").field("is_done", &self.is_done()).finish()
    }
}

impl std::fmt::Debug for Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Completion").finish_non_exhaustive()
    }
}

impl Completion {
    /// For the backend: the operation is over.
    ///
    /// # Examples
    /// ```
    /// // In a backend, when the operation is over:
    /// let (pending, completion) = phalanx_group::Pending::new();
    /// completion.complete(Ok(Box::new(vec![1.0f32])));
    /// assert!(format!("{pending:?}").contains("is_done: true"));
    /// ```
    pub fn complete(mut self, outcome: Result<Box<dyn Bytes>>) {
        self.settle(outcome);
    }

    /// Whether somebody does nothing but wait for it.
    pub(crate) fn is_awaited(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| lock(shared).awaited)
    }

    fn settle(&mut self, mut outcome: Outcome) {
        let Some(shared) = self.0.take() else { return };
        loop {
            let mut state = lock(&shared);
            let Some(then) = state.then.pop_front() else {
                state.outcome = Some(outcome);
                break;
            };
            // Without the lock, and before anybody hears that the operation is over.
            drop(state);
            outcome = applied(then, outcome);
        }
        shared.1.notify_all();
    }
}

/// What `then` makes of the outcome. A panic in it is an error of the operation, for somebody waits for it, and others come after it.
fn applied(then: Then, outcome: Outcome) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| then(outcome))).unwrap_or_else(|_| {
        Err(Error::Internal { what: "a backend panicked over the end of an operation".into() })
    })
}

impl Drop for Completion {
    fn drop(&mut self) {
        if self.0.is_some() {
            self.settle(Err(Error::Internal { what: "an operation was dropped before it was over".into() }));
        }
    }
}

impl Pending {
    /// The two ends of an operation that is not over.
    ///
    /// # Examples
    /// ```
    /// // A backend returns `pending`, and gives `completion` to the thread that performs the operation.
    /// let (pending, completion) = phalanx_group::Pending::new();
    /// assert!(format!("{pending:?}").contains("is_done: false"));
    /// # drop(completion);
    /// ```
    pub fn new() -> (Self, Completion) {
        let shared = Shared::default();
        (Self { shared: shared.clone(), driver: None }, Completion(Some(shared)))
    }

    /// Whoever waits may perform it.
    pub(crate) fn driven_by(self, driver: Arc<dyn Driver>) -> Self {
        Self { driver: Some(driver), ..self }
    }

    /// For a backend that has another one perform its operations: `then` is given the outcome when the operation is over, and what it returns is the
    /// outcome for whoever waits. It is called on the thread that ends the operation, or at once on this one if that is over, and others come after it: it should be
    /// short, and wait for no operation. If it panics the operation ends in an error.
    ///
    /// # Examples
    /// ```
    /// use phalanx_core::Result;
    /// use phalanx_group::{Backend, OwnedCall, Pending};
    /// use std::time::{Duration, Instant};
    ///
    /// // `Backend::submit` of a backend that wraps another and measures:
    /// fn submit(inner: &dyn Backend, call: OwnedCall, timeout: Duration) -> Result<Pending> {
    ///     let begun = Instant::now();
    ///     let pending = inner.submit(call, timeout)?;
    ///     Ok(pending.then(move |outcome| {
    ///         println!("{} after {:?}", if outcome.is_ok() { "done" } else { "failed" }, begun.elapsed());
    ///         outcome
    ///     }))
    /// }
    /// # let (pending, completion) = Pending::new();
    /// # let pending = pending.then(|outcome| outcome);
    /// # completion.complete(Ok(Box::new(vec![1u8])));
    /// # assert!(format!("{pending:?}").contains("is_done: true"));
    /// ```
    #[must_use = "who waits, waits for this one"]
    pub fn then(
        self,
        then: impl FnOnce(Result<Box<dyn Bytes>>) -> Result<Box<dyn Bytes>> + Send + 'static,
    ) -> Self {
        let mut state = lock(&self.shared);
        let Some(outcome) = state.outcome.take() else {
            state.then.push_back(Box::new(then));
            drop(state);
            return self;
        };
        // Nobody else has this end, so nobody looks for the outcome meanwhile.
        drop(state);
        let outcome = applied(Box::new(then), outcome);
        lock(&self.shared).outcome = Some(outcome);
        self
    }

    /// An operation that could not be begun.
    pub(crate) fn failed(error: Error) -> Self {
        let (pending, completion) = Self::new();
        completion.complete(Err(error));
        pending
    }

    pub(crate) fn is_done(&self) -> bool {
        lock(&self.shared).outcome.is_some()
    }

    /// Performs what is before it, and it, unless others do.
    fn drive_until(&self, end: Option<Instant>) {
        let is_past = end.is_some_and(|end| end <= Instant::now());
        if let Some(driver) = self.driver.as_ref().filter(|_| !is_past && !self.is_done()) {
            driver.drive_jobs_until(&|| self.is_done(), end);
        }
    }

    /// Waits until it is done, or until that moment; without one, for as long as it takes. Returns whether it is done.
    pub(crate) fn wait_until(&self, end: Option<Instant>) -> bool {
        self.drive_until(end);
        let mut state = lock(&self.shared);
        while state.outcome.is_none() {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
            state.awaited = true;
            let limit = left.unwrap_or(Duration::MAX);
            state = self
                .shared
                .1
                .wait_timeout(state, limit)
                .map_or_else(|error| error.into_inner().0, |(state, _)| state);
        }
        state.awaited = false;
        state.outcome.is_some()
    }

    /// Ends because every job is completed: with success, by its deadline, or by being dropped.
    pub(crate) fn wait(self) -> Result<Box<dyn Bytes>> {
        self.drive_until(None);
        let mut state = lock(&self.shared);
        state.awaited = true;
        loop {
            if let Some(outcome) = state.outcome.take() {
                return outcome;
            }
            state = self.shared.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_known_whether_somebody_waits() {
        let (pending, completion) = Pending::new();
        assert!(!completion.is_awaited());
        let waiting = std::thread::spawn(|| pending.wait().map(drop));
        let mut looks = (0..10_000).take_while(|_| !completion.is_awaited());
        looks.by_ref().for_each(|_| std::thread::sleep(std::time::Duration::from_millis(1)));
        assert!(completion.is_awaited());
        completion.complete(Ok(Box::new(vec![0u8])));
        waiting.join().unwrap().unwrap();
    }

    fn bytes(pending: Pending) -> Result<Vec<u8>> {
        Ok(*pending.wait()?.into_any().downcast().unwrap())
    }

    /// One more byte.
    fn longer(outcome: Outcome) -> Outcome {
        let mut bytes = *outcome?.into_any().downcast::<Vec<u8>>().unwrap();
        bytes.push(bytes.len() as u8);
        Ok(Box::new(bytes))
    }

    #[test]
    fn whoever_waits_gets_what_was_made_of_the_outcome() {
        let (pending, completion) = Pending::new();
        let pending = pending.then(longer).then(longer);
        assert!(!pending.is_done());
        completion.complete(Ok(Box::new(vec![0u8])));
        // Of one that is over, too.
        assert_eq!(bytes(pending.then(longer)).unwrap(), [0, 1, 2, 3]);

        let (pending, completion) = Pending::new();
        let pending = pending.then(|outcome| outcome.or_else(|_| Ok(Box::new(vec![7u8]))));
        drop(completion);
        assert_eq!(bytes(pending).unwrap(), [7]);
    }

    #[test]
    fn a_panic_over_the_end_is_an_error_of_the_operation() {
        for is_over in [true, false] {
            let (pending, completion) = Pending::new();
            let mut completion = Some(completion);
            let mut complete = || completion.take().unwrap().complete(Ok(Box::new(vec![0u8])));
            if is_over {
                complete();
            }
            let pending = pending.then(|_| std::panic::panic_any("on purpose")).then(longer);
            if !is_over {
                complete();
            }
            let error = bytes(pending).unwrap_err();
            assert!(error.to_string().contains("panicked over the end"), "{error}");
        }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::thread;

    /// The end that waits is woken, however the other end goes.
    fn who_waits_is_woken(end: fn(Completion), is_well: bool) {
        loom::model(move || {
            let (pending, completion) = Pending::new();
            let performing = thread::spawn(move || end(completion));
            // A look changes nothing.
            let _ = pending.is_done();
            let outcome = pending.wait();
            assert_eq!(outcome.map(|mut bytes| bytes.bytes() == [7]).ok(), is_well.then_some(true));
            performing.join().unwrap();
        });
    }

    #[test]
    fn an_operation_that_ends_wakes_who_waits() {
        who_waits_is_woken(|completion| completion.complete(Ok(Box::new(vec![7u8]))), true);
    }

    #[test]
    fn what_is_made_of_the_outcome_is_made_once_and_before_anybody_gets_it() {
        loom::model(|| {
            let (pending, completion) = Pending::new();
            let performing = thread::spawn(move || completion.complete(Ok(Box::new(vec![7u8]))));
            // Whether the operation is over by now or not.
            let pending = pending.then(|outcome| {
                let mut bytes = outcome?;
                bytes.bytes()[0] += 1;
                Ok(bytes)
            });
            assert_eq!(pending.wait().unwrap().bytes(), [8]);
            performing.join().unwrap();
        });
    }

    #[test]
    fn an_operation_that_is_dropped_wakes_who_waits() {
        who_waits_is_woken(drop, false);
    }
}
