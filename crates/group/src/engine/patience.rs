//! How a thread waits: first awake, because waking a sleeper takes longer than most messages; then asleep.

use super::home::Home;
use phalanx_transport::{Bell, Doorbell, Wait};
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a thread keeps its core to itself, where every rank should have one. Long enough for a peer that is at work;
/// who gives the core away earlier may lose it to a stranger for milliseconds.
const ALONE_TIME: Duration = Duration::from_micros(50);
/// The same while the core must not be given away. A core that sleeps takes 30–50 µs to wake on the machines this was measured
/// on; less than twice that, and two ranks can put each other to sleep at every message.
const SPIN_TIME: Duration = Duration::from_micros(100);
/// How long it stays awake in all, giving the core to whoever else wants it again and again.
const AWAKE_TIME: Duration = Duration::from_micros(300);
/// To give the core away and get it back this late means that somebody else has used it …
const SWITCH_TIME: Duration = Duration::from_nanos(1500);
/// … and for so long only who does not wait for us.
const SLICE_TIME: Duration = Duration::from_millis(1);
/// How often in a row nobody else must have used it to be taken for alone again.
const LONELY_AFTER: u32 = 64;
/// How long we don't give the core away after a slice was lost …
const BAN_MIN: Duration = Duration::from_millis(1);
/// … and how long at most, after one loss soon after the other.
const BAN_MAX: Duration = Duration::from_millis(512);
/// Losses that follow each other within so many bans are one foreign load; the ban grows.
const BANS_APART: u32 = 8;

thread_local! {
    /// A thread's bell is made once and used for all its waits.
    static WAIT: RefCell<Option<Wait>> = const { RefCell::new(None) };
    static CORE: Cell<Core> = const { Cell::new(Core::UNKNOWN) };
}

/// What a thread has learnt about the core it is on.
#[derive(Debug, Clone, Copy)]
struct Core {
    /// Above zero if another rank was seen here lately: the scheduler puts a woken rank next to its
    /// waker when the machine is busy. There whoever keeps the core awake keeps the other from working.
    company: u32,
    ban: Duration,
    banned_until: Option<Instant>,
    home: Home,
}

impl Core {
    const UNKNOWN: Self = Self { company: 0, ban: BAN_MIN, banned_until: None, home: Home::NOT_LOOKED };

    fn may_yield(&self, now: Instant) -> bool {
        self.banned_until.is_none_or(|until| until <= now)
    }

    /// What giving the core away for so long says about who else is on it.
    fn judge(&mut self, away: Duration, now: Instant) {
        self.company = match away {
            _ if away < SWITCH_TIME => self.company.saturating_sub(1),
            _ if away < SLICE_TIME => LONELY_AFTER,
            _ => 0,
        };
        if away >= SLICE_TIME {
            // For a while we sleep instead, which costs a wake-up but no slice.
            let again = self.banned_until.is_some_and(|until| now - until < self.ban * BANS_APART);
            self.ban = if again { (self.ban * 2).min(BAN_MAX) } else { BAN_MIN };
            self.banned_until = Some(now + self.ban);
        }
    }
}

/// A rank's place on its host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seat {
    /// Whether ranks outnumber cores: then whoever spins keeps another from working.
    pub(crate) crowded: bool,
    /// Its number among the ranks of the host, if there are others.
    pub(crate) home: Option<usize>,
}

/// One operation's waiting.
pub(crate) struct Patience {
    seat: Seat,
    idle_since: Option<Instant>,
    ended: bool,
    wait: Option<Wait>,
    /// Whether the wait is the thread's, for its other operations too.
    is_kept: bool,
}

impl Patience {
    pub(crate) fn new(seat: Seat) -> Self {
        Self { seat, idle_since: None, ended: false, wait: None, is_kept: false }
    }

    /// For the progress thread, whose bell others know. The rank's core is the program's.
    pub(crate) fn sleeping_on(bell: &Bell, seat: Seat) -> Self {
        Self { wait: Some(Wait::on(bell.clone())), ..Self::new(Seat { home: None, ..seat }) }
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
        let mut core = CORE.get();
        let idle = now.saturating_duration_since(*self.idle_since.get_or_insert(now));
        let yields = core.may_yield(now);
        let alone_time = match (self.seat.crowded || core.company > 0, yields) {
            (true, _) => Duration::ZERO,
            (false, true) => ALONE_TIME,
            (false, false) => SPIN_TIME,
        };
        self.ended = idle >= if yields { AWAKE_TIME } else { alone_time };
        if idle < alone_time {
            std::hint::spin_loop();
        } else if yields {
            std::thread::yield_now();
            let back = Instant::now();
            core.judge(back - now, back);
            if let Some(local_rank) = self.seat.home.filter(|_| core.company > 0) {
                core.home.look(local_rank, back);
            }
            CORE.set(core);
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
