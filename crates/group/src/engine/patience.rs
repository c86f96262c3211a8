//! How a thread waits: first awake, because waking a sleeper takes longer than most messages; then asleep.

use phalanx_transport::{Bell, Wait};
use std::cell::RefCell;
use std::time::{Duration, Instant};

/// How long a thread stays awake while nothing moves. A core that sleeps takes 30–50 µs to wake on the machines
/// this was measured on; less than twice that, and two ranks can put each other to sleep at every message.
const AWAKE_TIME: Duration = Duration::from_micros(200);
/// The same where ranks share cores: there each look gives the core to whoever has work.
const AWAKE_TIME_CROWDED: Duration = Duration::from_micros(200);

thread_local! {
    /// A thread's bell is made once and used for all its waits.
    static WAIT: RefCell<Option<Wait>> = const { RefCell::new(None) };
}

/// One operation's waiting.
pub(crate) struct Patience {
    crowded: bool,
    idle_since: Option<Instant>,
    ended: bool,
    wait: Option<Wait>,
}

impl Patience {
    pub(crate) fn new(crowded: bool) -> Self {
        Self { crowded, idle_since: None, ended: false, wait: None }
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
        let limit = if self.crowded { AWAKE_TIME_CROWDED } else { AWAKE_TIME };
        self.ended = now.saturating_duration_since(since) >= limit;
        if self.crowded {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }

    /// What to sleep on; `None` when the process has no descriptors left.
    pub(crate) fn wait(&mut self) -> Option<&mut Wait> {
        if self.wait.is_none() {
            self.wait = WAIT.with(|wait| wait.borrow_mut().take()).or_else(|| Wait::new().ok());
        }
        self.wait.as_mut()
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        if let Some(mut wait) = self.wait.take() {
            wait.clear();
            // At a thread's very end there is nobody left to keep it for.
            let _ = WAIT.try_with(|slot| *slot.borrow_mut() = Some(wait));
        }
    }
}
