//! Operations in flight.

use crate::group::handles::InFlight;
use crate::group::pending::{Bytes, Pending};
use phalanx_core::{Element, Error, Result};
use std::any::Any;
use std::time::{Duration, Instant};

/// What an operation gives back for its buffer.
pub(crate) type Given = Box<dyn Any + Send>;

/// A buffer of elements that an asynchronous operation can own: a `Vec`, or a [`RegisteredBuffer`](crate::RegisteredBuffer), of
/// which it copies nothing between ranks of one host.
pub trait Buffer: Bytes {
    /// The type of its elements.
    type Element: Element;
}

impl<T: Element> Buffer for Vec<T> {
    type Element = T;
}

/// An operation in flight. It owns the buffer, so nobody can touch that meanwhile.
///
/// Operations of a group are performed in the order in which they were begun; they may be waited for in any order, from
/// any thread. Dropping a `Work` does not cancel it: the operation runs on, and the buffer goes with it.
///
/// The group lasts until its last handle and its last `Work` are gone. Operations that nobody waits for any more are given five
/// seconds then; if they are not done, the group fails on all its ranks.
///
/// # Examples
/// ```
/// # use phalanx_group::{threads, ReduceOp};
/// # std::thread::scope(|s| { for group in threads(2) { s.spawn(move || -> phalanx_core::Result<()> {
/// let first = group.all_reduce_async(vec![1.0f32; 4], ReduceOp::Sum)?;
/// let second = group.all_reduce_async(vec![1i64; 4], ReduceOp::Sum)?;
/// // … compute …
/// assert_eq!(second.wait()?, [2; 4]);
/// assert_eq!(first.wait()?, [2.0; 4]);
/// # Ok(()) }); } });
/// ```
#[must_use = "the result of the operation is in here"]
pub struct Work<T> {
    /// One, or those of a call that is performed in several.
    pending: Vec<Pending>,
    finish: Box<dyn FnOnce(Vec<Given>) -> Result<T> + Send + Sync>,
    group: Option<InFlight>,
}

impl<T> std::fmt::Debug for Work<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").field("pending", &self.pending).finish_non_exhaustive()
    }
}

impl<T> Work<T> {
    /// The result of `pending`, whose buffer is a `B`.
    pub(crate) fn new<B: 'static>(
        pending: Pending,
        finish: impl FnOnce(B) -> T + Send + Sync + 'static,
    ) -> Self {
        Self::try_new(pending, |buffer| Ok(finish(buffer)))
    }

    /// As `new`, where `finish` may fail.
    pub(crate) fn try_new<B: 'static>(
        pending: Pending,
        finish: impl FnOnce(B) -> Result<T> + Send + Sync + 'static,
    ) -> Self {
        Self::of_several(vec![pending], |given| {
            given.into_iter().map(taken_back).next().unwrap_or_else(lost).and_then(finish)
        })
    }

    /// The result of several operations of one call, which are performed in this order. `finish` is given what each gave back.
    pub(crate) fn of_several(
        pending: Vec<Pending>,
        finish: impl FnOnce(Vec<Given>) -> Result<T> + Send + Sync + 'static,
    ) -> Self {
        Self { pending, finish: Box::new(finish), group: None }
    }

    /// An operation of a group, which lasts at least as long.
    pub(crate) fn of(self, group: InFlight) -> Self {
        Self { group: Some(group), ..self }
    }

    /// Whether [`wait`](Self::wait) would return at once.
    ///
    /// # Examples
    /// ```
    /// # phalanx_group::on_threads(2, |group| {
    /// let work = group.barrier_async()?;
    /// while !work.is_done() {
    ///     std::thread::yield_now(); // … or compute …
    /// }
    /// work.wait()?; // at once
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn is_done(&self) -> bool {
        self.pending.iter().all(Pending::is_done)
    }

    /// Waits at most so long. Returns whether [`wait`](Self::wait) would return at once.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// # phalanx_group::on_threads(2, |group| {
    /// let work = group.barrier_async()?;
    /// while !work.wait_timeout(Duration::from_millis(100)) {
    ///     println!("still waiting"); // … or look whether the user has had enough …
    /// }
    /// work.wait()?; // at once
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        if self.group.as_ref().is_some_and(|group| group.check_process().is_err()) {
            // A forked child is told so by `wait`.
            return true;
        }
        let end = Instant::now().checked_add(timeout);
        self.pending.iter().all(|pending| pending.wait_until(end))
    }

    /// Calls `then` when the operation is over, well or not, on the thread that ends it; at once on this one if it is over. [`wait`](Self::wait) returns
    /// soon after. `then` should be short and wait for nothing, since the operations that follow wait for it; and take no lock that a thread holds
    /// while it waits for an operation of this group, since it may be called on that thread.
    ///
    /// # Panics
    /// A panic in `then` is an error of the operation.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::mpsc::channel;
    /// # phalanx_group::on_threads(2, |group| {
    /// let (done, is_done) = channel();
    /// let work = group.barrier_async()?.on_done(move || drop(done.send(())));
    /// is_done.recv().unwrap(); // … or an event loop is woken …
    /// work.wait()?;
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn on_done(mut self, then: impl FnOnce() + Send + 'static) -> Self {
        // Those of one call are performed in their order, so the last one ends last.
        match self.pending.pop() {
            Some(last) => self.pending.push(last.then(|outcome| {
                then();
                outcome
            })),
            None => then(),
        }
        self
    }

    /// Waits for the operation and takes its result. It ends: every operation has a deadline.
    ///
    /// # Errors
    /// What went wrong with the operation; the buffer is gone then. [`Misuse`](Error::Misuse) in a process that was forked
    /// from the one that began it.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::ReduceOp;
    /// # phalanx_group::on_threads(2, |group| {
    /// let work = group.all_reduce_async(vec![1.5; 2], ReduceOp::Sum)?;
    /// assert_eq!(work.wait()?, [3.0; 2]);
    /// # Ok(())
    /// # }).unwrap();
    /// ```
    pub fn wait(self) -> Result<T> {
        if let Some(group) = &self.group {
            group.check_process()?;
        }
        // The first to fail knows why; those after it only that the group has failed.
        let given =
            self.pending.into_iter().map(|pending| Ok(pending.wait()?.into_any())).collect::<Result<_>>()?;
        (self.finish)(given)
    }
}

/// The buffer that an operation gave back.
pub(crate) fn taken_back<B: 'static>(given: Given) -> Result<B> {
    given.downcast().map_or_else(|_| lost(), |buffer| Ok(*buffer))
}

fn lost<B>() -> Result<B> {
    Err(Error::Internal { what: "a buffer came back as another type".into() })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_waits_hears_of_an_operation_that_was_dropped() {
        let (pending, completion) = Pending::new();
        let work = Work::new(pending, |buffer: Vec<u8>| buffer);
        assert!(!work.is_done());
        drop(completion);
        // Else to wait for it would hang.
        assert!(work.is_done());
        assert!(matches!(work.wait(), Err(Error::Internal { .. })));
    }
}
