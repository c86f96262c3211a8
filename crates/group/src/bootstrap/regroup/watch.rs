//! One worker's watch over the others, by the beats in the job's store, and its own beats. Without a clock, a thread or a store: whoever
//! drives it does the rounds.

use super::ask::{Answer, Ask};
use super::liveness::Liveness;
use phalanx_transport::sabotage::{Mechanism, breaks};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often the others are looked at, in the time after which silence is a loss …
const LOOKS: u32 = 20;
/// … but not more rarely.
const LOOK_INTERVAL_MAX: Duration = Duration::from_millis(500);
/// Tells one beat of this process from the next, whichever of its watches makes it.
static BEATS: AtomicU64 = AtomicU64::new(0);

/// One worker's watch.
#[derive(Debug)]
pub(crate) struct Watch {
    worker: u64,
    limit: Duration,
    liveness: Mutex<Liveness>,
}

/// A round: a look at each that is watched, then a beat if it is time.
#[derive(Debug)]
pub(crate) struct Round {
    left: Vec<u64>,
    asked: Option<u64>,
    has_beaten: bool,
}

impl Watch {
    /// A worker that does not beat for as long as `limit` is silent.
    pub(crate) fn new(worker: u64, limit: Duration, now: Instant) -> Self {
        Self { worker, limit, liveness: Mutex::new(Liveness::new(limit, now)) }
    }

    fn lock(&self) -> MutexGuard<'_, Liveness> {
        self.liveness.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker that watches.
    pub(crate) fn worker(&self) -> u64 {
        self.worker
    }

    /// How long silence may last.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// Looks at these workers, and at nobody else.
    pub(crate) fn over(&self, mut workers: BTreeSet<u64>, now: Instant) {
        workers.remove(&self.worker);
        self.lock().watch(&workers, now);
    }

    /// Takes these workers for living, whether they beat or not.
    pub(crate) fn heard(&self, workers: impl Iterator<Item = u64>, now: Instant) {
        let mut liveness = self.lock();
        workers.for_each(|worker| liveness.heard(worker, now));
    }

    /// The workers of these that have not beaten for the whole time.
    pub(crate) fn silent(&self) -> BTreeSet<u64> {
        self.lock().silent().clone()
    }

    /// How long to wait between two rounds.
    pub(crate) fn pause(&self) -> Duration {
        (self.limit / LOOKS).min(LOOK_INTERVAL_MAX)
    }

    /// Begins a round.
    pub(crate) fn round(&self) -> Round {
        Round { left: self.lock().watched(), asked: None, has_beaten: false }
    }

    /// Takes the answer to what was asked last in this round. Returns what to ask next; nothing when the round is over.
    pub(crate) fn step(&self, round: &mut Round, answer: Option<Answer>, now: Instant) -> Option<Ask> {
        let mut liveness = self.lock();
        if let (Some(worker), Some(Answer::Value(beat))) = (round.asked.take(), answer) {
            liveness.saw(worker, beat, now);
        }
        if let Some(worker) = round.left.pop() {
            round.asked = Some(worker);
            return Some(Ask::TryGet(key(worker)));
        }
        if std::mem::replace(&mut round.has_beaten, true) || !liveness.poll(now) || breaks(Mechanism::Beat) {
            return None;
        }
        let number = BEATS.fetch_add(1, Ordering::Relaxed);
        Some(Ask::Set(key(self.worker), format!("{} {number}", std::process::id()).into_bytes()))
    }
}

/// The key of a worker's beat.
fn key(worker: u64) -> String {
    format!("alive/{worker}")
}
