//! Waiting for what can only be asked: neither library wakes anybody in time.

use phalanx_core::{Deadline, Result};
use std::time::{Duration, Instant};

/// How often is asked without sleeping: for some tens of microseconds, in which short operations end.
const EAGER: u32 = 200;
const SLEEP_MIN: Duration = Duration::from_micros(20);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// Asks until it is so; `false` when the deadline has passed before.
pub(crate) fn wait_until(deadline: &Deadline, mut is_so: impl FnMut() -> Result<bool>) -> Result<bool> {
    let mut sleep = SLEEP_MIN;
    for asked in 0u32.. {
        if is_so()? {
            return Ok(true);
        }
        if deadline.has_passed(Instant::now()) {
            break;
        }
        if asked < EAGER {
            std::thread::yield_now();
        } else {
            std::thread::sleep(sleep);
            sleep = (sleep * 2).min(SLEEP_MAX);
        }
    }
    Ok(false)
}
