//! How a thread waits: first awake, because waking a sleeper takes longer than most messages; then asleep.

use phalanx_transport::{Bell, Doorbell, Wait};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a thread stays awake while nothing moves. A core that sleeps takes 30–50 µs to wake on the machines
/// this was measured on; less than twice that, and two ranks can put each other to sleep at every message.
const AWAKE_TIME: Duration = Duration::from_micros(200);
/// How long it keeps its core to itself meanwhile, where every rank should have one. Long enough for a peer that is at work;
/// who gives the core away earlier may lose it to a stranger for milliseconds.
const ALONE_TIME: Duration = Duration::from_micros(50);
/// To give the core away and get it back this late means that somebody else has used it …
const SWITCH_TIME: Duration = Duration::from_nanos(1500);
/// … and for so long only who does not wait for us.
const SLICE_TIME: Duration = Duration::from_millis(1);
/// How often in a row nobody else must have used it to be taken for alone again.
const LONELY_AFTER: u32 = 64;

thread_local! {
    /// A thread's bell is made once and used for all its waits.
    static WAIT: RefCell<Option<Wait>> = const { RefCell::new(None) };
    /// Above zero if another rank was seen on this thread's core lately: the scheduler puts a woken rank next to its
    /// waker when the machine is busy. There whoever keeps the core awake keeps the other from working.
    static COMPANY: Cell<u32> = const { Cell::new(0) };
}

/// One operation's waiting.
pub(crate) struct Patience {
    crowded: bool,
    idle_since: Option<Instant>,
    ended: bool,
    wait: Option<Wait>,
    /// Whether the wait is the thread's, for its other operations too.
    is_kept: bool,
}

impl Patience {
    pub(crate) fn new(crowded: bool) -> Self {
        Self { crowded, idle_since: None, ended: false, wait: None, is_kept: false }
    }

    /// For the progress thread, whose bell others know.
    pub(crate) fn sleeping_on(bell: &Bell, crowded: bool) -> Self {
        Self { wait: Some(Wait::on(bell.clone())), ..Self::new(crowded) }
    }

    /// Something moved.
    pub(crate) fn reset(&mut self) {
        self.idle_since = None;
        self.ended = false;
    }

    /// Whether it is time to sleep.
    pub(crate) fn is_at_end(&self) -> bool {
        self.ended
    }

    /// Stays awake a little longer.
    pub(crate) fn pause(&mut self) {
        let now = Instant::now();
        let since = *self.idle_since.get_or_insert(now);
        let idle = now.saturating_duration_since(since);
        self.ended = idle >= AWAKE_TIME;
        if self.crowded || COMPANY.get() > 0 || idle >= ALONE_TIME {
            std::thread::yield_now();
            COMPANY.set(match now.elapsed() {
                alone if alone < SWITCH_TIME => COMPANY.get().saturating_sub(1),
                rank if rank < SLICE_TIME => LONELY_AFTER,
                _stranger => 0,
            });
        } else {
            std::hint::spin_loop();
        }
    }

    /// What to sleep on, at the transport's door if it has one; `None` when the process has no descriptors left.
    pub(crate) fn wait(&mut self, door: Option<&Arc<dyn Doorbell>>) -> Option<&mut Wait> {
        if self.wait.is_none() {
            self.wait = match door {
                Some(door) => Some(Wait::on(Bell::at(door.clone()))),
                None => WAIT.with(|wait| wait.borrow_mut().take()).or_else(|| Wait::new().ok()),
            };
            self.is_kept = door.is_none();
        }
        self.wait.as_mut()
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        if let Some(mut wait) = self.wait.take().filter(|_| self.is_kept) {
            wait.clear();
            // At a thread's very end there is nobody left to keep it for.
            let _ = WAIT.try_with(|slot| *slot.borrow_mut() = Some(wait));
        }
    }
}
