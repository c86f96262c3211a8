//! The wait policy: awake while that is cheap, asleep before it harms. Why it is as it is: `docs/waiting.md`.

use crate::bell::Bell;
use crate::{Lookout, Stopped};
use std::time::{Duration, Instant};

/// How long a rank keeps its core to itself while it waits, where every rank has one. About twice what it takes to wake
/// a core that sleeps: with less, two ranks can put each other to sleep in every operation.
const SPIN_TIME: Duration = Duration::from_micros(100);
/// How long it then stays awake, giving the core to whoever else wants it again and again.
const AWAKE_TIME: Duration = Duration::from_micros(300);
/// A rank that waits as we do gives the core back within microseconds. Who keeps it for longer is somebody else, or is at work.
const SLICE_TIME: Duration = Duration::from_micros(300);
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
    ban: Duration,
    banned_until: Option<Instant>,
}

impl Patience {
    pub(crate) fn new(crowded: bool) -> Self {
        Self { crowded, ban: BAN_MIN, banned_until: None }
    }

    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// Waits until `ready`, which comes true before `bell` rings. `peer` is whom the lookout is told to look for.
    pub(crate) fn wait(
        &mut self,
        ready: impl Fn() -> bool,
        bell: &Bell,
        peer: usize,
        lookout: &mut dyn Lookout,
    ) -> Result<(), Stopped> {
        let began = Instant::now();
        let mut now = began;
        if !self.crowded {
            while now - began < SPIN_TIME {
                for _ in 0..64 {
                    if ready() {
                        return Ok(());
                    }
                    std::hint::spin_loop();
                }
                now = Instant::now();
            }
        }
        while now - began < AWAKE_TIME && self.may_yield(now) {
            std::thread::yield_now();
            let back = Instant::now();
            if back - now > SLICE_TIME {
                self.lost_slice(back);
            }
            if ready() {
                return Ok(());
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

    /// Somebody who does not wait for us took the core: for a while we sleep instead, which costs a wake-up but no slice.
    fn lost_slice(&mut self, now: Instant) {
        let again = self.banned_until.is_some_and(|until| now - until < self.ban * BANS_APART);
        self.ban = if again { (self.ban * 2).min(BAN_MAX) } else { BAN_MIN };
        self.banned_until = Some(now + self.ban);
    }
}
