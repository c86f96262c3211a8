//! The wait policy: awake while that is cheap, asleep before it harms. Why it is as it is: `docs/waiting.md`.

use crate::bell::Bell;
use crate::{Lookout, Stopped};
use std::time::{Duration, Instant};

/// How long a rank keeps its core to itself while it waits, where every rank should have one. What is about to come comes
/// within that; and should the rank it waits for sit on the same core, no more is lost.
const ALONE_TIME: Duration = Duration::from_micros(4);
/// The same while the core must not be given away. About twice what it takes to wake a core that sleeps: with less, two
/// ranks can put each other to sleep in every operation.
const SPIN_TIME: Duration = Duration::from_micros(100);
/// How long it then stays awake, giving the core to whoever else wants it again and again.
const AWAKE_TIME: Duration = Duration::from_micros(300);
/// To give the core away and get it back this late means that somebody else has used it …
const SWITCH_TIME: Duration = Duration::from_nanos(1500);
/// … and a rank that waits as we do gives it back within microseconds. Who keeps it for longer is a stranger, or at work.
const SLICE_TIME: Duration = Duration::from_millis(1);
/// How often in a row nobody else must have used the core for this rank to take itself for alone on it.
const LONELY_AFTER: u32 = 64;
/// How long we don't give the core away after a slice was lost …
const BAN_MIN: Duration = Duration::from_millis(1);
/// … and how long at most, after one loss soon after the other.
const BAN_MAX: Duration = Duration::from_millis(512);
/// Losses that follow each other within so many bans are one foreign load; the ban grows.
const BANS_APART: u32 = 8;
/// The longest sleep: then the lookout looks around.
const NAP_TIME: Duration = Duration::from_millis(20);

/// How one rank waits, and what it has learnt about its core.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Whether ranks outnumber cores: then whoever spins keeps another from working.
    crowded: bool,
    /// Above zero if another rank was seen on this core lately.
    company: u32,
    ban: Duration,
    banned_until: Option<Instant>,
}

impl Patience {
    pub(crate) fn new(crowded: bool) -> Self {
        Self { crowded, company: 0, ban: BAN_MIN, banned_until: None }
    }

    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// Waits, from `began` on, until `ready`, which comes true before `bell` rings. `peer` is whom the lookout is told to look for.
    pub(crate) fn wait(
        &mut self,
        began: Instant,
        ready: impl Fn() -> bool,
        bell: &Bell,
        peer: usize,
        lookout: &mut dyn Lookout,
    ) -> Result<(), Stopped> {
        let mut now = began;
        let yields = self.may_yield(now);
        let spin_time = match (self.crowded || self.company > 0, yields) {
            (true, _) => Duration::ZERO,
            (false, true) => ALONE_TIME,
            (false, false) => SPIN_TIME,
        };
        while now - began < spin_time {
            for _ in 0..32 {
                if ready() {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            now = Instant::now();
        }
        while yields && now - began < AWAKE_TIME {
            std::thread::yield_now();
            let back = Instant::now();
            let lost = self.judge(back - now, back);
            if ready() {
                return Ok(());
            }
            if lost {
                break;
            }
            now = back;
        }
        loop {
            lookout.look(peer, now - began)?;
            bell.sleep(&ready, NAP_TIME);
            if ready() {
                return Ok(());
            }
            now = Instant::now();
        }
    }

    fn may_yield(&self, now: Instant) -> bool {
        self.banned_until.is_none_or(|until| until <= now)
    }

    /// What giving the core away for so long says about who else is on it. `true`: somebody who does not wait for us.
    fn judge(&mut self, away: Duration, now: Instant) -> bool {
        self.company = match away {
            _ if away < SWITCH_TIME => self.company.saturating_sub(1),
            _ if away < SLICE_TIME => LONELY_AFTER,
            _ => 0,
        };
        if away < SLICE_TIME {
            return false;
        }
        // For a while we sleep instead, which costs a wake-up but no slice.
        let again = self.banned_until.is_some_and(|until| now - until < self.ban * BANS_APART);
        self.ban = if again { (self.ban * 2).min(BAN_MAX) } else { BAN_MIN };
        self.banned_until = Some(now + self.ban);
        true
    }
}
