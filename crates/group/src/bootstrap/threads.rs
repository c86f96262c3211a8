//! Groups whose ranks are threads of one process: for tests, examples, and programs that need no second process.

use crate::ProcessGroup;
use crate::bootstrap::regroup::threads::ThreadBootstrap;
use crate::bootstrap::regroup::{self, Assignment, Bootstrap};
use crate::host::BackendChoice;
use crate::host::backend_registry::BackendKind;
use phalanx_algo::Selector;
use phalanx_core::{Deadline, Result};
use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// How long an operation may take, unless the caller says otherwise.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A group of `world_size` ranks in this process: one handle for each rank, in rank order. Give each to a thread of its own, or let
/// [`on_threads`] do that. An operation may take 10 minutes.
///
/// # Panics
/// If `world_size` is 0.
///
/// # Examples
/// ```
/// use phalanx_group::{ReduceOp, threads};
///
/// std::thread::scope(|scope| {
///     for group in threads(4) {
///         scope.spawn(move || {
///             let mut buffer = [group.rank() as f32, 1.0];
///             group.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
///             assert_eq!(buffer, [6.0, 4.0]); // 0 + 1 + 2 + 3, and 1 from each
///         });
///     }
/// });
/// ```
pub fn threads(world_size: usize) -> Vec<ProcessGroup> {
    threads_with(world_size, TIMEOUT, "").expect("no algorithm is forced")
}

/// Like [`threads`], with the time limit of operations, and algorithms to use instead of the recommended ones
/// (`all_reduce=ring,broadcast=binomial`).
///
/// # Errors
/// [`Config`](phalanx_core::Error::Config) for an algorithm that does not exist.
///
/// # Panics
/// If `world_size` is 0.
///
/// # Examples
/// ```
/// use phalanx_group::threads_with;
/// use std::time::Duration;
///
/// let groups = threads_with(2, Duration::from_secs(5), "all_reduce=ring")?;
/// assert_eq!(groups[0].timeout(), Duration::from_secs(5));
/// assert!(threads_with(2, Duration::from_secs(5), "all_reduce=square").is_err());
/// # Ok::<(), phalanx_group::Error>(())
/// ```
pub fn threads_with(world_size: usize, timeout: Duration, algorithms: &str) -> Result<Vec<ProcessGroup>> {
    assert!(world_size > 0, "a group has at least one rank");
    first_generation(world_size, timeout, Arc::new(BackendChoice::Auto), Selector::forced_from(algorithms)?)
}

/// Runs `rank` on `world_size` threads, each with its handle on their group, and returns what they return, in rank order.
///
/// # Errors
/// The error of the lowest rank that returned one. All ranks have ended then.
///
/// # Panics
/// If `world_size` is 0; if a rank panics, with its panic.
///
/// # Examples
/// ```
/// use phalanx_group::{ReduceOp, on_threads};
///
/// let sums = on_threads(3, |group| {
///     let mut buffer = [group.rank() as u64];
///     group.all_reduce(&mut buffer, ReduceOp::Sum)?;
///     Ok(buffer[0])
/// })?;
/// assert_eq!(sums, [3, 3, 3]); // 0 + 1 + 2, on each
/// # Ok::<(), phalanx_group::Error>(())
/// ```
pub fn on_threads<R: Send>(
    world_size: usize,
    rank: impl Fn(ProcessGroup) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let rank = &rank;
    std::thread::scope(|scope| {
        let running: Vec<_> =
            threads(world_size).into_iter().map(|group| scope.spawn(move || rank(group))).collect();
        let ended: Vec<_> = running.into_iter().map(ScopedJoinHandle::join).collect();
        ended.into_iter().map(|ended| ended.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// The first generation of ranks that are threads.
pub(super) fn first_generation(
    world_size: usize,
    timeout: Duration,
    kind: Arc<dyn BackendKind>,
    selector: Selector,
) -> Result<Vec<ProcessGroup>> {
    let bootstrap: Arc<dyn Bootstrap> = Arc::new(ThreadBootstrap::new(timeout, kind, Arc::new(selector)));
    let deadline = Deadline::after(Instant::now(), timeout);
    let open = bootstrap.open(&BTreeSet::new(), &deadline)?;
    let roster: Vec<u64> = (0..world_size as u64).collect();
    let assignment = |rank| Assignment::new(0, rank, roster.clone());
    (0..world_size).map(|rank| regroup::found(&bootstrap, assignment(rank), &open, &deadline)).collect()
}

/// The former name of [`threads`] and [`threads_with`].
#[derive(Debug)]
pub struct SimulatedBackend;

impl SimulatedBackend {
    /// The former name of [`threads`].
    ///
    /// # Panics
    /// If `world_size` is 0.
    ///
    /// # Examples
    /// ```
    /// let groups = phalanx_group::SimulatedBackend::create_group(2);
    /// assert_eq!((groups[1].rank(), groups[1].world_size()), (1, 2));
    /// ```
    pub fn create_group(world_size: usize) -> Vec<ProcessGroup> {
        threads(world_size)
    }

    /// The former name of [`threads_with`].
    ///
    /// # Errors
    /// [`Config`](phalanx_core::Error::Config) for an algorithm that does not exist.
    ///
    /// # Panics
    /// If `world_size` is 0.
    ///
    /// # Examples
    /// ```
    /// # use std::time::Duration;
    /// let groups = phalanx_group::SimulatedBackend::create_group_with(1, Duration::from_secs(5), "")?;
    /// assert_eq!(groups[0].timeout(), Duration::from_secs(5));
    /// # Ok::<(), phalanx_group::Error>(())
    /// ```
    pub fn create_group_with(
        world_size: usize,
        timeout: Duration,
        algorithms: &str,
    ) -> Result<Vec<ProcessGroup>> {
        threads_with(world_size, timeout, algorithms)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use phalanx_core::Error;

    #[test]
    fn results_stand_in_rank_order_and_errors_and_panics_reach_the_caller() {
        assert_eq!(on_threads(3, |group| Ok(group.rank())).unwrap(), [0, 1, 2]);
        let refused = |group: ProcessGroup| match group.rank() {
            1 => Err(Error::config("no good")),
            rank => Ok(rank),
        };
        assert!(matches!(on_threads(3, refused).unwrap_err(), Error::Config { .. }));
        let panics = || on_threads(2, |group| -> Result<()> { panic!("rank {}", group.rank()) });
        let panic = std::panic::catch_unwind(panics).unwrap_err();
        assert_eq!(panic.downcast_ref::<String>().unwrap(), "rank 0");
    }
}
