//! How a thread waits: first awake, because waking a sleeper takes longer than most messages; then asleep.

use super::core_placement::{CorePlacement, LocalPlace};
use phalanx_transport::wait_policy::{AWAKE_TIME, Company};
use phalanx_transport::{Wait, WakeSource, Waker};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a thread keeps its core to itself, where every rank should have one. Long enough for a peer that is at work;
/// who gives the core away earlier may lose it to a stranger for milliseconds.
const ALONE_TIME: Duration = Duration::from_micros(50);
thread_local! {
    /// A thread's waker is made once and used for all its waits.
    static WAIT: RefCell<Option<Wait>> = const { RefCell::new(None) };
    static CORE: Cell<Core> = const { Cell::new(Core::UNKNOWN) };
}

/// A thread's knowledge of the core it is on.
#[derive(Debug, Clone, Copy)]
struct Core {
    company: Company,
    placement: CorePlacement,
}

impl Core {
    const UNKNOWN: Self = Self { company: Company::UNKNOWN, placement: CorePlacement::NOT_LOOKED };
}

/// A rank's place on its host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostPlace {
    /// Whether ranks outnumber cores: then whoever spins keeps another from working.
    pub(crate) crowded: bool,
    /// Its place among the ranks of the host, if there are others.
    pub(crate) local: Option<LocalPlace>,
}

/// One operation's waiting.
pub(crate) struct Backoff {
    host_place: HostPlace,
    idle_since: Option<Instant>,
    ended: bool,
    wait: Option<Wait>,
    /// Whether the wait is the thread's, for its other operations too.
    is_kept: bool,
}

impl Backoff {
    pub(crate) fn new(host_place: HostPlace) -> Self {
        Self { host_place, idle_since: None, ended: false, wait: None, is_kept: false }
    }

    /// For a thread that drives the jobs of a group, whose waker others know. The rank's core is the program's.
    pub(crate) fn sleeping_on(waker: &Waker, host_place: HostPlace) -> Self {
        Self { wait: Some(Wait::on(waker.clone())), ..Self::new(HostPlace { local: None, ..host_place }) }
    }

    /// Something moved.
    pub(crate) fn reset(&mut self) {
        self.idle_since = None;
        self.ended = false;
    }

    /// Skips spinning: sleeps at the next wait.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Whether it is time to sleep.
    pub(crate) fn is_at_end(&self) -> bool {
        self.ended
    }

    /// Stays awake a little longer.
    pub(crate) fn pause(&mut self) {
        let now = Instant::now();
        let mut core = CORE.get();
        let idle = now.saturating_duration_since(*self.idle_since.get_or_insert(now));
        let yields = core.company.may_yield(now);
        let alone_time = core.company.spin_time(self.host_place.crowded, yields, ALONE_TIME);
        self.ended = idle >= if yields { AWAKE_TIME } else { alone_time };
        if idle < alone_time {
            std::hint::spin_loop();
        } else if yields {
            std::thread::yield_now();
            let back = Instant::now();
            core.company.judge(back - now, back);
            if let Some(local) = self.host_place.local.filter(|_| core.company.was_seen()) {
                core.placement.look(local, back);
            }
            CORE.set(core);
        }
    }

    /// The wait to sleep on, at the transport's wake source if it has one; `None` when the process has no descriptors left.
    pub(crate) fn wait(&mut self, source: Option<&Arc<dyn WakeSource>>) -> Option<&mut Wait> {
        if self.wait.is_none() {
            self.wait = match source {
                Some(source) => Some(Wait::on(Waker::at(source.clone()))),
                None => WAIT.with(|wait| wait.borrow_mut().take()).or_else(|| Wait::new().ok()),
            };
            self.is_kept = source.is_none();
        }
        self.wait.as_mut()
    }
}

impl Drop for Backoff {
    fn drop(&mut self) {
        if let Some(mut wait) = self.wait.take().filter(|_| self.is_kept) {
            wait.clear();
            // At a thread's very end there is nobody left to keep it for.
            let _ = WAIT.try_with(|slot| *slot.borrow_mut() = Some(wait));
        }
    }
}
