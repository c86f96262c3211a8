//! The two ends of an operation that is not over: one waits, the other performs it and completes it.

use crate::sync::{Condvar, Mutex, MutexGuard};
use phalanx_core::{Element, Error, Result};
use std::any::Any;
use std::sync::{Arc, PoisonError};

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

type Shared = Arc<(Mutex<State>, Condvar)>;

#[derive(Default)]
struct State {
    outcome: Option<Result<Box<dyn Bytes>>>,
    /// Whether somebody does nothing but wait for it.
    awaited: bool,
}

fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    shared.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end of a pending operation that is waited for.
pub struct Pending(Shared);

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

    fn settle(&mut self, outcome: Result<Box<dyn Bytes>>) {
        if let Some(shared) = self.0.take() {
            lock(&shared).outcome = Some(outcome);
            shared.1.notify_all();
        }
    }
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
        (Self(shared.clone()), Completion(Some(shared)))
    }

    pub(crate) fn is_done(&self) -> bool {
        lock(&self.0).outcome.is_some()
    }

    /// Ends because every job is completed: with success, by its deadline, or by being dropped.
    pub(crate) fn wait(self) -> Result<Box<dyn Bytes>> {
        let mut state = lock(&self.0);
        state.awaited = true;
        loop {
            if let Some(outcome) = state.outcome.take() {
                return outcome;
            }
            state = self.0.1.wait(state).unwrap_or_else(PoisonError::into_inner);
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
    fn an_operation_that_is_dropped_wakes_who_waits() {
        who_waits_is_woken(drop, false);
    }
}
