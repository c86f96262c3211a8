//! Kills ranks, so that one can see what their loss does to the training.

use examples_common::progress::Seen;
use phalanx::launch::Running;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::process::Command;
use std::sync::PoisonError;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long the training may take to the next kill; else it has ended.
const PATIENCE: Duration = Duration::from_secs(120);

/// Kills `times` ranks of a job, evenly over its steps: any rank, and at any moment of a step.
pub(crate) fn kill_some(running: &Running, times: usize, seen: &Seen, seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    for i in 1..=times as u64 {
        let reached = || {
            let (step, steps) = *seen.lock().unwrap_or_else(PoisonError::into_inner);
            steps > 0 && step >= steps * i / (times as u64 + 1)
        };
        if !comes(reached) {
            return;
        }
        sleep(Duration::from_micros(random.next_u64() % 10_000));
        let pids = running.pids();
        let rank = random.next_u64() as usize % pids.len();
        let killed = Command::new("kill").args(["-KILL", &pids[rank].to_string()]).status();
        // The next one is to hit the group with the replacement.
        if killed.is_ok_and(|status| status.success()) && comes(|| running.pids()[rank] != pids[rank]) {
            eprintln!("killed process {} of rank {rank}, the {i}. of {times}", pids[rank]);
        }
    }
}

/// Waits for it; false if it does not come.
fn comes(condition: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !condition() {
        if begun.elapsed() > PATIENCE {
            return false;
        }
        sleep(Duration::from_millis(1));
    }
    true
}
