//! Drives the operations of one group, on whichever thread waits for them.
//!
//! A blocking call drives its own operation to the end on the caller's thread. Asynchronous ones are driven by whoever waits for one of them, and
//! while nobody does by one progress thread a group, started at first use. All share the [`Core`] behind one lock, which nobody holds while
//! sleeping; a thread that finds nothing to do lets the others in. What operations do when they are polled is `phalanx-engine`.

pub(crate) mod backoff;
mod core_placement;
pub(crate) mod job_list;
pub(crate) mod own_thread;
pub(crate) mod progress_thread;
#[cfg(test)]
mod tests;

use crate::control::group_health::GroupHealth;
use crate::engine::attempt::{Attempt, Outcome};
use crate::engine::core::Core;
use crate::engine::operation::Operation;
use crate::quick_mutex::{QuickGuard, QuickMutex};
use crate::trace::clock;
use backoff::{Backoff, HostPlace};
use core_placement::LocalPlace;
use job_list::JobList;
use own_thread::OwnThread;
use phalanx_core::Result;
use phalanx_transport::wait_policy::CoreSharing;
use phalanx_transport::{AtOnce, Direction, WakeSource, Waker, Wire};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often an operation is polled before the clock is read, where each rank has a core: a peer that is at work answers sooner than the clock
/// would have been read a few times.
const UNTIMED_POLLS: u32 = 500;
/// How often a message in shared memory is looked for before it becomes one that others wait behind, where ranks share cores: the core is given away after each look, and
/// the ranks that share it may each have to run before the sender does. Over TCP a look is a system call, and there is one.
const CROWDED_POLLS: u32 = 32;

/// An operation that owns its buffer and knows whom to tell.
pub(crate) trait Job: Operation + Send {
    fn complete(self: Box<Self>, outcome: Result<()>);
    /// Whether somebody does nothing but wait for it.
    fn is_awaited(&self) -> bool;
    /// How long it may take, once its turn has come.
    fn limit(&self) -> Duration;
}

/// A job that was begun.
type Begun = (Box<dyn Job>, Attempt);

/// What wakes those that perform jobs where they sleep for links. Each sleeps at a waker of its own.
#[derive(Debug, Clone)]
struct Wakers {
    own_thread: Waker,
    waiter: Waker,
}

/// Drives the operations of one group on one rank.
#[derive(Debug)]
pub(crate) struct Engine {
    /// Held for a poll, or for many while no other thread wants it.
    core: QuickMutex<Core>,
    /// Threads that want the core.
    contenders: AtomicUsize,
    pub(crate) health: Arc<GroupHealth>,
    /// There if the progress thread is.
    wakers: Mutex<Option<Wakers>>,
    jobs: JobList<Begun>,
    thread: OwnThread,
    /// The progress thread sleeps for links, or will soon.
    thread_sleeps: AtomicBool,
    host_place: HostPlace,
    /// The transport's: whoever sleeps for links sleeps there.
    source: Option<Arc<dyn WakeSource>>,
}

impl Engine {
    pub(crate) fn new(health: Arc<GroupHealth>, wire: Wire) -> Self {
        let source = wire.wake_source();
        let place = health.job.place();
        // Those that wake each other through memory exchange messages through it.
        let sharing = if source.is_some() { CoreSharing::WithNeighbours } else { CoreSharing::WithOthers };
        let (rank, world_size) = (place.local_rank, place.local_world_size);
        let local = (world_size > 1).then_some(LocalPlace { rank, world_size, sharing });
        let core = Core::new(health.clone(), wire, clock::now);
        Self {
            core: QuickMutex::new(core),
            contenders: AtomicUsize::new(0),
            host_place: HostPlace { crowded: health.job.ranks_share_cores(), local },
            health,
            wakers: Mutex::default(),
            jobs: JobList::default(),
            thread: OwnThread::default(),
            thread_sleeps: AtomicBool::new(false),
            source,
        }
    }

    /// A waker for one thread that sleeps for links.
    fn waker(&self) -> std::io::Result<Waker> {
        self.source.clone().map_or_else(Waker::new, |source| Ok(Waker::at(source)))
    }

    fn wakers(&self) -> MutexGuard<'_, Option<Wakers>> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock(&self) -> QuickGuard<'_, Core> {
        if let Some(core) = self.core.try_lock() {
            return core;
        }
        self.contenders.fetch_add(1, Ordering::Relaxed);
        let core = self.core.lock();
        self.contenders.fetch_sub(1, Ordering::Relaxed);
        core
    }

    /// The operations have failed, and their memory is their callers' again.
    fn withdraw(&self) {
        self.lock().wire.withdraw();
    }

    /// Drives one operation to its end on this thread.
    pub(crate) fn drive(&self, operation: &mut impl Operation, mut attempt: Attempt) -> Result<()> {
        self.drive_until(operation, &mut attempt, |_, _| false).map(drop)
    }

    /// As [`drive`](Self::drive), but asks before it sleeps whether to leave the operation as it is; returns whether it is at its end.
    pub(crate) fn drive_until<O: Operation>(
        &self,
        operation: &mut O,
        attempt: &mut Attempt,
        leaves: impl Fn(&mut Core, &O) -> bool,
    ) -> Result<bool> {
        let _withdrawn = WithdrawnOnPanic(self);
        let mut backoff = Backoff::new(self.host_place);
        let mut untimed = if self.host_place.crowded { 0 } else { UNTIMED_POLLS };
        let mut core = self.lock();
        loop {
            if self.contenders.load(Ordering::Relaxed) > 0 {
                untimed = 0;
            }
            let outcome = if untimed > 0 {
                attempt.poll_untimed(&mut core, operation, Instant::now)
            } else {
                attempt.poll(&mut core, operation, Instant::now)
            };
            match outcome {
                Outcome::Finished => return Ok(true),
                Outcome::Failed(error) => {
                    drop(core);
                    self.health.finish_trace();
                    return Err(error);
                }
                Outcome::Moved => backoff.reset(),
                Outcome::Idle => {}
            }
            if untimed > 0 {
                untimed -= 1;
                std::hint::spin_loop();
                continue;
            }
            let (mut wants, mut limit) = (Vec::new(), Duration::ZERO);
            if backoff.is_at_end() {
                if !attempt.is_troubled() && leaves(&mut core, operation) {
                    return Ok(false);
                }
                limit = attempt.waits_for(&core, operation, &mut wants, Instant::now());
            }
            core = self.idle(core, &mut backoff, &wants, limit, || false);
        }
    }

    /// Asks the core until it has done or refused something, as long as a thread that waits stays awake, and no other thread wants the core.
    /// Whether it is done.
    pub(crate) fn poll_awake(&self, mut poll: impl FnMut(&mut Core) -> AtOnce) -> bool {
        let mut core = self.lock();
        let mut backoff = Backoff::new(self.host_place);
        let polls = match self.host_place.crowded {
            false => UNTIMED_POLLS,
            true if self.source.is_some() => CROWDED_POLLS,
            true => 1,
        };
        for turn in 0..polls {
            // With a core for each rank there is no pause: it takes as long as a line takes from core to core.
            if turn > 0 && self.host_place.crowded {
                backoff.pause();
            }
            match poll(&mut core) {
                AtOnce::Done => return true,
                AtOnce::Impossible => return false,
                AtOnce::NotYet => {}
            }
            let is_contended = self.contenders.load(Ordering::Relaxed) > 0;
            if is_contended || backoff.is_at_end() || self.health.latch.cause().is_some() {
                return false;
            }
        }
        false
    }

    /// Nothing can be done: spins, lets others in, or sleeps until a link in `wants` is ready, unless there is another reason to go on then.
    pub(crate) fn idle<'e>(
        &'e self,
        mut core: QuickGuard<'e, Core>,
        backoff: &mut Backoff,
        wants: &[(usize, Direction)],
        limit: Duration,
        goes_on: impl Fn() -> bool,
    ) -> QuickGuard<'e, Core> {
        let contended = self.contenders.load(Ordering::Relaxed) > 0;
        if contended {
            drop(core);
            std::thread::yield_now();
            core = self.lock();
        }
        if !backoff.is_at_end() {
            backoff.pause();
            return core;
        }
        if contended {
            // Whoever came in may have read for us: look again before sleeping.
            return core;
        }
        let Some(wait) = backoff.wait(self.source.as_ref()) else {
            drop(core);
            std::thread::sleep(Duration::from_millis(1));
            return self.lock();
        };
        wait.clear();
        self.health.latch.listen(wait.waker());
        core.wire.add_sleeper(wait.waker());
        let mut ready = self.health.latch.cause().is_some();
        for &(peer, direction) in wants {
            ready |= core.wire.watch(peer, direction, wait);
        }
        drop(core);
        if !ready && !goes_on() {
            wait.sleep(limit);
        }
        self.health.latch.hush(wait.waker());
        let mut core = self.lock();
        core.wire.remove_sleeper(wait.waker());
        core
    }
}

/// A thread that panics leaves its operation behind.
struct WithdrawnOnPanic<'e>(&'e Engine);

impl Drop for WithdrawnOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.withdraw();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let core = self.core.get_mut();
        if self.health.is_here() && self.health.latch.cause().is_none() {
            for peer in (0..core.world_size).filter(|&p| p != self.health.rank) {
                core.wire.farewell(peer);
            }
        }
    }
}
