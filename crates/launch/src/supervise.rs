//! What to do when a rank ends, a signal arrives or time runs out: a state machine without processes, threads or clock.
//!
//! ```text
//!             a rank fails                 0.5 s, or all have ended
//! Running ───────────────────▶ Settling ──────────────────────────────┐
//!    │                            │  a signal                         ▼
//!    ├────────────────────────────┴─────────────────────────────▶  Ending ──────────▶ Killing ─────▶ over
//!    │  a signal, or out of time: passed on to all           (SIGTERM)  grace, or   (SIGKILL)  10 s
//!    │                                                                  a signal
//!    └─▶ over                     … and from everywhere to "over" as soon as no rank is left
//! ```
//!
//! An elastic job stays in Running after a failure as long as enough ranks are left: a lost one is replaced, or given up.

use crate::outcome::ExitKind;
use std::time::{Duration, Instant};

pub(crate) const SIGKILL: i32 = 9;
pub(crate) const SIGTERM: i32 = 15;
const SIGABRT: i32 = 6;

/// How long exits are collected before one of them is called the first failure.
///
/// When a rank dies, the others fail of it within milliseconds, and on a busy machine their exits may be seen before
/// the one that caused them. Half a second also lets them write what they saw before they are asked to end.
const SETTLE: Duration = Duration::from_millis(500);

/// How long a process may take to vanish after SIGKILL. One that does not is stuck in the kernel (a dead disk or
/// device driver), and waiting longer would not help.
const REAP: Duration = Duration::from_secs(10);

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// A rank ended.
    Exited { rank: usize, exit: ExitKind },
    /// The launcher was sent a signal.
    Signal(i32),
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send this signal to every rank that has not ended.
    Signal(i32),
    /// Start another process in the place of this one, which has ended.
    Replace { rank: usize },
}

/// How an elastic job goes on after a failure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spares {
    /// The fewest ranks with which it goes on.
    pub(crate) min: usize,
    /// Replacements that may still be started.
    pub(crate) left: usize,
}

/// Why the job is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Success,
    Failed { rank: usize, exit: ExitKind, at: Instant },
    Interrupted { signal: i32 },
    TimedOut,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Running { until: Option<Instant> },
    Settling { until: Instant },
    Ending { verdict: Verdict, until: Instant },
    Killing { verdict: Verdict, until: Instant },
    Over { verdict: Verdict },
}

/// What signals have asked for, whatever else ended the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Nothing,
    /// That the job ends.
    ToEnd,
    /// That nothing is waited for any more.
    AtOnce,
}

/// The state of a job.
#[derive(Debug)]
pub(crate) struct Supervisor {
    /// Per rank, when and how it ended.
    exits: Vec<Option<(Instant, ExitKind)>>,
    grace: Duration,
    /// `None` in a job that no failure may happen to.
    spares: Option<Spares>,
    phase: Phase,
    asked: Asked,
}

impl Supervisor {
    /// `ranks` processes were started at `now`.
    pub(crate) fn new(
        ranks: usize,
        grace: Duration,
        timeout: Option<Duration>,
        spares: Option<Spares>,
        now: Instant,
    ) -> Self {
        let until = timeout.and_then(|limit| now.checked_add(limit));
        let phase = Phase::Running { until };
        Self { exits: vec![None; ranks], grace, spares, phase, asked: Asked::Nothing }
    }

    /// Takes note of an event.
    #[must_use]
    pub(crate) fn handle(&mut self, event: Event, now: Instant) -> Option<Action> {
        match event {
            Event::Exited { rank, exit } => {
                self.exits[rank].get_or_insert((now, exit));
                if let Phase::Running { .. } = self.phase
                    && !exit.is_success()
                {
                    if self.replaces() {
                        self.exits[rank] = None;
                        return Some(Action::Replace { rank });
                    }
                    if !self.goes_on() {
                        self.phase = Phase::Settling { until: now + SETTLE };
                    }
                }
                self.poll(now)
            }
            Event::Signal(signal) => {
                let first = self.asked == Asked::Nothing && signal != SIGKILL;
                self.asked = if first { Asked::ToEnd } else { Asked::AtOnce };
                match self.phase {
                    Phase::Running { .. } => self.end(Verdict::Interrupted { signal }, signal, now),
                    Phase::Settling { .. } => self.end(self.first_failure(), signal, now),
                    Phase::Ending { verdict, .. } => self.kill(verdict, now),
                    Phase::Killing { .. } | Phase::Over { .. } => None,
                }
            }
        }
    }

    /// Takes a replacement from the spares, if there is one and it would find the others still at work: once a rank has succeeded,
    /// the job is about to end.
    fn replaces(&mut self) -> bool {
        let ends = self.exits.iter().flatten().any(|(_, exit)| exit.is_success());
        let Some(spares) = self.spares.as_mut().filter(|spares| spares.left > 0 && !ends) else {
            return false;
        };
        spares.left -= 1;
        true
    }

    /// Whether enough ranks have not failed.
    fn goes_on(&self) -> bool {
        let sound = self.exits.iter().filter(|exit| exit.is_none_or(|(_, exit)| exit.is_success())).count();
        self.spares.is_some_and(|spares| sound >= spares.min)
    }

    /// Does what is due at `now`.
    #[must_use]
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Action> {
        if self.living().next().is_none() {
            let verdict = match self.phase {
                Phase::Running { .. } => Verdict::Success,
                Phase::Settling { .. } => self.first_failure(),
                Phase::Ending { verdict, .. } | Phase::Killing { verdict, .. } | Phase::Over { verdict } => {
                    verdict
                }
            };
            self.phase = Phase::Over { verdict };
        }
        if self.deadline().is_none_or(|due| now < due) {
            return None;
        }
        match self.phase {
            Phase::Running { .. } => self.end(Verdict::TimedOut, SIGTERM, now),
            Phase::Settling { .. } => self.end(self.first_failure(), SIGTERM, now),
            Phase::Ending { verdict, .. } => self.kill(verdict, now),
            Phase::Killing { verdict, .. } | Phase::Over { verdict } => {
                self.phase = Phase::Over { verdict };
                None
            }
        }
    }

    /// When [`poll`](Self::poll) has something to do if nothing happens before.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Running { until } => until,
            Phase::Settling { until } | Phase::Ending { until, .. } | Phase::Killing { until, .. } => {
                Some(until)
            }
            Phase::Over { .. } => None,
        }
    }

    /// Why the job ends, as soon as that is decided: possibly before it has ended.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        match self.phase {
            Phase::Running { .. } | Phase::Settling { .. } => None,
            Phase::Ending { verdict, .. } | Phase::Killing { verdict, .. } | Phase::Over { verdict } => {
                Some(verdict)
            }
        }
    }

    /// What signals have asked for until now. The verdict need not tell: the failure that came first stays the reason.
    pub(crate) fn asked(&self) -> Asked {
        self.asked
    }

    /// Whether there is nothing left to wait for.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over { .. })
    }

    /// The ranks that have not ended; once the job is over, those that even SIGKILL could not end.
    pub(crate) fn living(&self) -> impl Iterator<Item = usize> {
        self.exits.iter().enumerate().filter(|(_, exit)| exit.is_none()).map(|(rank, _)| rank)
    }

    fn end(&mut self, verdict: Verdict, signal: i32, now: Instant) -> Option<Action> {
        if signal == SIGKILL {
            return self.kill(verdict, now);
        }
        // A grace beyond the end of time is as good as a day.
        let until = now.checked_add(self.grace).unwrap_or(now + Duration::from_secs(86_400));
        self.phase = Phase::Ending { verdict, until };
        Some(Action::Signal(signal))
    }

    fn kill(&mut self, verdict: Verdict, now: Instant) -> Option<Action> {
        self.phase = Phase::Killing { verdict, until: now + REAP };
        Some(Action::Signal(SIGKILL))
    }

    /// The failure at the root, among those seen until now.
    ///
    /// A death by signal goes before an exit code, because a rank that fails of another's death exits with a code;
    /// except SIGABRT, which is also how a program compiled with `panic = "abort"` reports such an error. Then the
    /// earliest counts.
    fn first_failure(&self) -> Verdict {
        let failures = self.exits.iter().enumerate().filter_map(|(rank, exit)| {
            let (at, exit) = (*exit)?;
            (!exit.is_success()).then_some((rank, at, exit))
        });
        let (rank, at, exit) = failures
            .min_by_key(|&(_, at, exit)| (!matches!(exit, ExitKind::Signal(signal) if signal != SIGABRT), at))
            .expect("settling begins with a failure");
        Verdict::Failed { rank, exit, at }
    }
}

#[cfg(test)]
mod tests {
    use super::Action::{Replace, Signal};
    use super::*;

    const GRACE: Duration = Duration::from_secs(5);
    const FAILED: ExitKind = ExitKind::Code(1);
    const FINE: ExitKind = ExitKind::Code(0);

    /// A supervisor and a clock that stands still unless told.
    struct Job {
        supervisor: Supervisor,
        start: Instant,
        now: Instant,
    }

    impl Job {
        fn of(ranks: usize, timeout: Option<Duration>) -> Self {
            let start = Instant::now();
            Self { supervisor: Supervisor::new(ranks, GRACE, timeout, None, start), start, now: start }
        }

        fn after_ms(&mut self, ms: u64) -> &mut Self {
            self.now += Duration::from_millis(ms);
            self
        }

        fn exit(&mut self, rank: usize, exit: ExitKind) -> Option<Action> {
            self.supervisor.handle(Event::Exited { rank, exit }, self.now)
        }

        fn signal(&mut self, signal: i32) -> Option<Action> {
            self.supervisor.handle(Event::Signal(signal), self.now)
        }

        /// Lets time run to the deadline.
        fn due(&mut self) -> Option<Action> {
            self.now = self.supervisor.deadline().expect("a deadline");
            self.supervisor.poll(self.now)
        }

        fn over(&self) -> Option<Verdict> {
            self.supervisor.is_over().then(|| self.supervisor.verdict()).flatten()
        }
    }

    #[test]
    fn a_job_is_over_when_all_ranks_have_succeeded() {
        let mut job = Job::of(2, None);
        assert_eq!(job.supervisor.deadline(), None, "a job without a timeout may take for ever");
        assert_eq!(job.exit(1, FINE), None);
        assert_eq!(job.over(), None);
        assert_eq!(job.after_ms(60_000).exit(0, FINE), None);
        assert_eq!(job.over(), Some(Verdict::Success));
    }

    #[test]
    fn after_a_failure_the_others_are_asked_then_killed() {
        let mut job = Job::of(3, None);
        assert_eq!(job.after_ms(1000).exit(1, FAILED), None, "first, others may fail of it too");
        assert_eq!(job.due(), Some(Signal(SIGTERM)));
        assert_eq!(job.now, job.start + Duration::from_secs(1) + SETTLE);
        assert_eq!(job.exit(0, ExitKind::Signal(SIGTERM)), None);
        assert_eq!(job.due(), Some(Signal(SIGKILL)));
        assert_eq!(job.now, job.start + Duration::from_secs(1) + SETTLE + GRACE);
        assert_eq!(job.supervisor.living().collect::<Vec<_>>(), [2]);
        assert_eq!(job.exit(2, ExitKind::Signal(SIGKILL)), None);
        let at = job.start + Duration::from_secs(1);
        assert_eq!(job.over(), Some(Verdict::Failed { rank: 1, exit: FAILED, at }));
    }

    #[test]
    fn the_root_is_a_death_by_signal_even_if_seen_late() {
        for (root, other) in [(9, FAILED), (11, FAILED), (9, ExitKind::Signal(SIGABRT)), (15, FAILED)] {
            let mut job = Job::of(3, None);
            assert_eq!(job.exit(0, other), None);
            assert_eq!(job.after_ms(20).exit(2, ExitKind::Signal(root)), None);
            assert_eq!(job.after_ms(20).exit(1, other), None);
            assert!(
                matches!(job.over(), Some(Verdict::Failed { rank: 2, exit: ExitKind::Signal(s), .. }) if s == root)
            );
        }
    }

    #[test]
    fn among_equals_the_earliest_is_the_root() {
        for exit in [FAILED, ExitKind::Signal(9), ExitKind::Signal(SIGABRT), ExitKind::Unknown] {
            let mut job = Job::of(3, None);
            assert_eq!(job.exit(0, FINE), None);
            assert_eq!(job.after_ms(1).exit(2, exit), None);
            assert_eq!(job.after_ms(1).exit(1, exit), None);
            assert!(matches!(job.over(), Some(Verdict::Failed { rank: 2, .. })), "{exit:?}");
        }
        let mut job = Job::of(2, None);
        assert_eq!(job.exit(1, FAILED), None);
        assert_eq!(job.after_ms(1).exit(0, ExitKind::Signal(SIGABRT)), None);
        assert!(matches!(job.over(), Some(Verdict::Failed { rank: 1, .. })), "an abort may be a reaction");
    }

    #[test]
    fn a_signal_is_passed_on_and_a_second_one_kills() {
        let mut job = Job::of(2, None);
        assert_eq!(job.signal(2), Some(Signal(2)));
        assert_eq!(job.signal(2), Some(Signal(SIGKILL)));
        assert_eq!(job.signal(2), None, "there is nothing stronger");
        assert_eq!(job.exit(0, ExitKind::Signal(SIGKILL)), None);
        assert_eq!(job.exit(1, FINE), None);
        assert_eq!(job.over(), Some(Verdict::Interrupted { signal: 2 }));
    }

    #[test]
    fn after_a_signal_grace_ends_too() {
        let mut job = Job::of(1, None);
        assert_eq!(job.signal(SIGTERM), Some(Signal(SIGTERM)));
        assert_eq!(job.due(), Some(Signal(SIGKILL)));
        assert_eq!(job.now, job.start + GRACE);
    }

    #[test]
    fn a_signal_while_settling_does_not_hide_the_failure() {
        let mut job = Job::of(2, None);
        assert_eq!(job.exit(1, FAILED), None);
        assert_eq!(job.signal(2), Some(Signal(2)));
        assert_eq!(job.exit(0, ExitKind::Signal(2)), None);
        assert!(matches!(job.over(), Some(Verdict::Failed { rank: 1, .. })));
    }

    #[test]
    fn that_the_end_was_asked_for_is_not_forgotten_over_a_failure() {
        let mut job = Job::of(2, None);
        assert_eq!(job.exit(1, FAILED), None);
        assert_eq!(job.supervisor.asked(), Asked::Nothing);
        assert_eq!(job.signal(2), Some(Signal(2)));
        assert_eq!(job.supervisor.asked(), Asked::ToEnd);
        assert_eq!(job.signal(2), Some(Signal(SIGKILL)));
        assert_eq!(job.supervisor.asked(), Asked::AtOnce);
        let mut job = Job::of(2, None);
        assert_eq!(job.exit(1, FAILED), None);
        assert_eq!(job.due(), Some(Signal(SIGTERM)));
        assert_eq!(job.signal(2), Some(Signal(SIGKILL)), "the ranks have had a signal");
        assert_eq!(job.supervisor.asked(), Asked::ToEnd);
        let mut job = Job::of(1, None);
        assert_eq!(job.signal(SIGKILL), Some(Signal(SIGKILL)));
        assert_eq!(job.supervisor.asked(), Asked::AtOnce);
    }

    #[test]
    fn time_runs_out() {
        let mut job = Job::of(2, Some(Duration::from_secs(60)));
        assert_eq!(job.after_ms(59_999).exit(0, FINE), None);
        assert_eq!(job.due(), Some(Signal(SIGTERM)));
        assert_eq!(job.now, job.start + Duration::from_secs(60));
        assert_eq!(job.exit(1, ExitKind::Signal(SIGTERM)), None);
        assert_eq!(job.over(), Some(Verdict::TimedOut));
    }

    #[test]
    fn the_longest_times_there_are_do_not_overflow() {
        let start = Instant::now();
        let mut supervisor = Supervisor::new(1, Duration::MAX, Some(Duration::MAX), None, start);
        assert_eq!(supervisor.deadline(), None);
        assert_eq!(supervisor.handle(Event::Signal(SIGTERM), start), Some(Signal(SIGTERM)));
        assert!(supervisor.deadline() > Some(start));
    }

    #[test]
    fn a_process_that_survives_sigkill_is_given_up() {
        let mut job = Job::of(2, None);
        assert_eq!(job.signal(SIGKILL), Some(Signal(SIGKILL)));
        assert_eq!(job.exit(0, ExitKind::Signal(SIGKILL)), None);
        assert_eq!(job.due(), None);
        assert_eq!(job.over(), Some(Verdict::Interrupted { signal: SIGKILL }));
        assert_eq!(job.supervisor.living().collect::<Vec<_>>(), [1]);
    }

    fn elastic(ranks: usize, min: usize, left: usize) -> Job {
        let mut job = Job::of(ranks, None);
        job.supervisor.spares = Some(Spares { min, left });
        job
    }

    #[test]
    fn an_elastic_job_replaces_what_fails_as_long_as_it_may() {
        let mut job = elastic(3, 2, 2);
        assert_eq!(job.exit(1, FAILED), Some(Replace { rank: 1 }));
        assert_eq!(job.exit(1, ExitKind::Signal(9)), Some(Replace { rank: 1 }), "the replacement too");
        assert_eq!(job.exit(0, FAILED), None, "two are left, which is enough");
        assert_eq!(job.supervisor.verdict(), None);
        assert_eq!(job.after_ms(7).exit(2, ExitKind::Signal(9)), None);
        assert_eq!(job.due(), Some(Signal(SIGTERM)), "one is not");
        assert_eq!(job.exit(1, FINE), None);
        assert!(matches!(job.over(), Some(Verdict::Failed { rank: 2, .. })));
    }

    #[test]
    fn an_elastic_job_that_has_lost_some_may_succeed() {
        let mut job = elastic(3, 1, 0);
        assert_eq!(job.exit(0, FAILED), None);
        assert_eq!(job.exit(1, FINE), None);
        assert_eq!(job.over(), None);
        assert_eq!(job.exit(2, FINE), None);
        assert_eq!(job.over(), Some(Verdict::Success));
    }

    #[test]
    fn nobody_is_replaced_when_the_job_is_about_to_end() {
        let mut job = elastic(2, 1, 9);
        assert_eq!(job.exit(0, FINE), None);
        assert_eq!(job.exit(1, FAILED), None);
        assert_eq!(job.over(), Some(Verdict::Success));
        let mut job = elastic(2, 1, 9);
        assert_eq!(job.signal(SIGTERM), Some(Signal(SIGTERM)));
        assert_eq!(job.exit(0, ExitKind::Signal(SIGTERM)), None);
        assert_eq!(job.exit(1, ExitKind::Signal(SIGTERM)), None);
        assert_eq!(job.over(), Some(Verdict::Interrupted { signal: SIGTERM }));
    }
}
