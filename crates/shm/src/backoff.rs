//! The wait policy: awake while that is cheap, asleep before it harms. Why it is as it is: `docs/design/waiting.md`.

use crate::waker::Waker;
use crate::{Stopped, WaitCheck};
use phalanx_transport::wait_policy::{AWAKE_TIME, Company};
use std::time::{Duration, Instant};

/// How long a rank keeps its core to itself while it waits, where every rank should have one. What is about to come comes
/// within that; and should the rank it waits for sit on the same core, no more is lost.
const ALONE_TIME: Duration = Duration::from_micros(4);
/// The longest sleep: then the check looks around.
const NAP_TIME: Duration = Duration::from_millis(20);

/// How one rank waits, and what it has learnt about its core.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    /// Whether ranks outnumber cores: then whoever spins keeps another from working.
    crowded: bool,
    company: Company,
}

impl Backoff {
    pub(crate) fn new(crowded: bool) -> Self {
        Self { crowded, company: Company::UNKNOWN }
    }

    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded
    }

    /// Waits, from `began` on, until `ready`, which comes true before `waker` wakes it. `peer` is whom the check is told to look for.
    pub(crate) fn wait(
        &mut self,
        began: Instant,
        ready: impl Fn() -> bool,
        waker: &Waker,
        peer: usize,
        wait_check: &mut dyn WaitCheck,
    ) -> Result<(), Stopped> {
        let mut now = began;
        let yields = self.company.may_yield(now);
        let spin_time = self.company.spin_time(self.crowded, yields, ALONE_TIME);
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
            let lost = self.company.judge(back - now, back);
            if ready() {
                return Ok(());
            }
            if lost {
                break;
            }
            now = back;
        }
        loop {
            wait_check.look(peer, now - began)?;
            waker.sleep(&ready, NAP_TIME);
            if ready() {
                return Ok(());
            }
            now = Instant::now();
        }
    }
}
