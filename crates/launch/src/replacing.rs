//! When the lost processes of an elastic job are replaced: a state machine without a clock.
//!
//! A process that fails soon after it was started will most likely fail again: its data is missing, its device is broken, its program has a mistake. So
//! replacements of such processes wait, each time twice as long as before.

use crate::exit_kind::ExitKind;
use std::time::{Duration, Instant};

/// The pause before a process is replaced that did not live long; doubled for each one in its place that did not.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A process that lives so long has not failed at its start.
const LIVED: Duration = Duration::from_secs(10);

/// How an elastic job goes on after a failure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spares {
    /// The fewest ranks with which it goes on.
    pub(crate) min: usize,
    /// Replacements that may still be started.
    pub(crate) left: usize,
}

/// The places of an elastic job, and when the process of each may be replaced.
#[derive(Debug)]
pub(crate) struct Replacing {
    pub(crate) spares: Spares,
    places: Vec<Place>,
}

/// The place of a rank.
#[derive(Debug, Clone, Copy)]
struct Place {
    started: Instant,
    /// How many processes in a row did not live long.
    short_lives: u32,
    next: Option<Next>,
}

/// A replacement that is to be started.
#[derive(Debug, Clone, Copy)]
struct Next {
    due: Instant,
    /// When and how the one before it ended.
    before: (Instant, ExitKind),
}

impl Replacing {
    /// Processes that were all started at `now`.
    pub(crate) fn new(spares: Spares, ranks: usize, now: Instant) -> Self {
        Self { spares, places: vec![Place { started: now, short_lives: 0, next: None }; ranks] }
    }

    /// Takes one of the spares for this rank, whose process has just ended, if there is one. Returns the pause before it is to be started.
    pub(crate) fn take(&mut self, rank: usize, exit: ExitKind, now: Instant) -> Option<Duration> {
        self.spares.left = self.spares.left.checked_sub(1)?;
        let place = &mut self.places[rank];
        let lived = now.saturating_duration_since(place.started) >= LIVED;
        place.short_lives = if lived { 0 } else { place.short_lives + 1 };
        let pause = match place.short_lives {
            0 => Duration::ZERO,
            n => PAUSE.saturating_mul(1 << (n - 1).min(16)).min(PAUSE_MAX),
        };
        place.next = Some(Next { due: now + pause, before: (now, exit) });
        Some(pause)
    }

    /// When the next one is to be started.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.places.iter().filter_map(|place| Some(place.next?.due)).min()
    }

    /// A rank whose replacement is to be started now.
    pub(crate) fn due(&mut self, now: Instant) -> Option<usize> {
        let is_due = |place: &Place| place.next.is_some_and(|next| next.due <= now);
        let rank = self.places.iter().position(is_due)?;
        let place = &mut self.places[rank];
        (place.next, place.started) = (None, now);
        Some(rank)
    }

    /// No more are started. Returns those ranks that have no process, and how the last one ended.
    pub(crate) fn cancel(&mut self) -> Vec<(usize, (Instant, ExitKind))> {
        let places = self.places.iter_mut().enumerate();
        places.filter_map(|(rank, place)| Some((rank, place.next.take()?.before))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: ExitKind = ExitKind::Code(1);

    #[test]
    fn pauses_grow_while_processes_fail_at_their_start() {
        let mut now = Instant::now();
        let mut replacing = Replacing::new(Spares { min: 1, left: 10 }, 2, now);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let pause = replacing.take(1, FAILED, now).unwrap();
            assert_eq!(replacing.deadline(), Some(now + pause));
            assert_eq!(replacing.due(now + pause - Duration::from_nanos(1)), None);
            now += pause;
            assert_eq!(replacing.due(now), Some(1));
            pauses.push(pause.as_millis());
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(replacing.take(0, FAILED, now + LIVED), Some(Duration::ZERO), "this one has lived");
        assert_eq!(replacing.due(now + LIVED), Some(0));
        let again = replacing.take(1, FAILED, now + LIVED);
        assert_eq!(again, Some(Duration::ZERO), "so has this one, in the end");
        assert_eq!(replacing.take(1, FAILED, now + LIVED), None, "all spares are used up");
    }

    #[test]
    fn what_is_cancelled_is_not_started() {
        let now = Instant::now();
        let mut replacing = Replacing::new(Spares { min: 1, left: 2 }, 2, now);
        replacing.take(1, FAILED, now).unwrap();
        assert_eq!(replacing.cancel(), [(1, (now, FAILED))]);
        assert_eq!((replacing.deadline(), replacing.due(now + LIVED)), (None, None));
    }
}
