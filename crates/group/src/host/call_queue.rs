//! The order of a group's collectives, for a backend that another crate writes: those that nobody waits for are performed on a thread of the group.

use crate::control::group_health::GroupHealth;
use crate::group::call::{HostCall, OwnedCall};
use crate::group::pending::Pending;
use crate::host::call_thread::{self, CallThread, Performer};
use crate::host::own_health::Health;
use phalanx_core::Result;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The collectives of one group on one rank, performed one after the other in the order of their calls: blocking ones on the thread that calls, asynchronous ones on a
/// thread of the group. For a backend that knows how to perform a collective while somebody waits, and has no thread of its own.
///
/// The thread is started by the first asynchronous call. Dropping the queue, as the backend is, waits for what was begun: five seconds at most, then the group fails
/// on all its ranks.
///
/// A backend with a thread of its own needs none of this: it returns one end of a [`Pending`], and completes the other when the operation is over.
///
/// # Examples
/// ```
/// use phalanx_core::Result;
/// use phalanx_group::{CallQueue, Health, HostCall, OwnedCall, Pending};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// struct Mine {
///     health: Arc<Health>,
///     calls: CallQueue,
/// }
///
/// impl Mine {
///     fn new(health: Health) -> Self {
///         let health = Arc::new(health);
///         let theirs = health.clone();
///         let perform = move |call: HostCall<'_>, limit: Duration| {
///             let running = theirs.begin(call.signature(), limit)?;
///             // … move the data …
///             running.done();
///             Ok(())
///         };
///         Self { calls: CallQueue::new(health.clone(), perform), health }
///     }
///
///     // `Backend::perform` and `Backend::submit`:
///     fn perform(&self, call: HostCall<'_>, timeout: Duration) -> Result<()> {
///         self.calls.perform(call, timeout)
///     }
///
///     fn submit(&self, call: OwnedCall, timeout: Duration) -> Result<Pending> {
///         self.calls.submit(call, timeout)
///     }
/// }
/// ```
#[derive(Debug)]
pub struct CallQueue {
    own: Arc<Own>,
}

type Perform = dyn Fn(HostCall<'_>, Duration) -> Result<()> + Send + Sync;

/// What the thread works on too.
struct Own {
    health: Arc<Health>,
    call_thread: CallThread,
    perform: Box<Perform>,
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Own").field("call_thread", &self.call_thread).finish_non_exhaustive()
    }
}

impl Performer for Own {
    fn call_thread(&self) -> &CallThread {
        &self.call_thread
    }

    fn health(&self) -> &GroupHealth {
        self.health.inner()
    }

    fn perform(&self, call: HostCall<'_>, limit: Duration) -> Result<()> {
        (self.perform)(call, limit)
    }
}

impl CallQueue {
    /// The order of the collectives of the group whose health this is. `perform` performs one within a time limit, on whichever thread, and ends when the group fails, as
    /// what [begins](Health::begin) by the health does. If it panics over one that was begun, the group fails on all its ranks.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_group::{CallQueue, Health};
    /// # use std::sync::Arc;
    /// fn of_barriers_alone(health: Arc<Health>) -> CallQueue {
    ///     let theirs = health.clone();
    ///     CallQueue::new(health, move |call, limit| {
    ///         let mut running = theirs.begin(call.signature(), limit)?;
    ///         // … tell the others, and wait for them …
    ///         # let _ = &mut running;
    ///         running.done();
    ///         Ok(())
    ///     })
    /// }
    /// ```
    pub fn new(
        health: Arc<Health>,
        perform: impl Fn(HostCall<'_>, Duration) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        let (call_thread, perform) = (CallThread::default(), Box::new(perform));
        Self { own: Arc::new(Own { health, call_thread, perform }) }
    }

    /// Performs a collective on the calling thread, after those that were begun before.
    ///
    /// # Errors
    /// Those of what performs it.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Result;
    /// # use phalanx_group::{CallQueue, HostCall};
    /// // For `Backend::perform`:
    /// fn perform(calls: &CallQueue, call: HostCall<'_>, timeout: std::time::Duration) -> Result<()> {
    ///     calls.perform(call, timeout)
    /// }
    /// ```
    pub fn perform(&self, call: HostCall<'_>, timeout: Duration) -> Result<()> {
        call_thread::wait_until_empty(&*self.own);
        self.own.perform(call, timeout)
    }

    /// Begins a collective, which is performed after those that were begun before, on the thread of the group or on one that waits for it. Its time runs from then.
    ///
    /// # Errors
    /// The group has failed, the call was made for another rank, or no thread can be started: nothing was begun.
    ///
    /// # Examples
    /// ```
    /// # use phalanx_core::Result;
    /// # use phalanx_group::{CallQueue, OwnedCall, Pending};
    /// // For `Backend::submit`:
    /// fn submit(calls: &CallQueue, call: OwnedCall, timeout: std::time::Duration) -> Result<Pending> {
    ///     calls.submit(call, timeout)
    /// }
    /// ```
    pub fn submit(&self, call: OwnedCall, timeout: Duration) -> Result<Pending> {
        let health = &self.own.health;
        call.check_place(health.rank(), health.members().len())?;
        let health = health.inner();
        health.check(call.signature(), || health.latch.next_collective())?;
        call_thread::submit(&self.own, call, timeout)
    }
}

impl Drop for CallQueue {
    fn drop(&mut self) {
        let health = self.own.health.inner();
        if health.is_here() {
            if std::thread::panicking() {
                health.panicked();
            }
            self.own.call_thread.end(health);
        }
    }
}
