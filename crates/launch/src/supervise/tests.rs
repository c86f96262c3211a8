//! Jobs as stories, on a clock that stands still unless told.

use super::Action::{PassOn, Replace, Signal, WillReplace};
use super::*;
use crate::exit_kind::SIGABRT;
use crate::headline::{ReportedCause, Stage};

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
        self.supervisor.exited(rank, exit, true, self.now)
    }

    fn signal(&mut self, signal: i32) -> Option<Action> {
        self.supervisor.signalled(signal, self.now)
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
    let by = NamedBy::Exit;
    assert_eq!(job.over(), Some(Verdict::Failed { rank: 1, exit: FAILED, at, by, code: 1 }));
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
    assert_eq!(supervisor.signalled(SIGTERM, start), Some(Signal(SIGTERM)));
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
    job.supervisor.replacing = Some(Replacing::new(Spares { min, left }, ranks, job.start));
    job
}

#[test]
fn an_elastic_job_replaces_what_fails_as_long_as_it_may() {
    let mut job = elastic(3, 2, 2);
    let ms = Duration::from_millis;
    assert_eq!(job.exit(1, FAILED), Some(WillReplace { rank: 1, after: ms(100) }));
    assert_eq!(job.supervisor.living().count(), 3, "it is as good as there");
    assert_eq!(job.due(), Some(Replace { rank: 1 }));
    assert_eq!(
        job.exit(1, ExitKind::Signal(9)),
        Some(WillReplace { rank: 1, after: ms(200) }),
        "it failed at once, so the next one waits longer"
    );
    assert_eq!(job.due(), Some(Replace { rank: 1 }));
    assert_eq!(job.now, job.start + ms(300));
    assert_eq!(job.exit(0, FAILED), None, "two are left, which is enough");
    assert_eq!(job.supervisor.verdict(), None);
    assert_eq!(job.after_ms(7).exit(2, ExitKind::Signal(9)), None);
    assert_eq!(job.due(), Some(Signal(SIGTERM)), "one is not");
    assert_eq!(job.exit(1, FINE), None);
    assert!(matches!(job.over(), Some(Verdict::Failed { rank: 2, .. })));
}

#[test]
fn what_an_elastic_job_went_on_without_is_not_why_it_failed() {
    let mut job = elastic(3, 2, 0);
    assert_eq!(job.exit(0, ExitKind::Signal(9)), None, "two are left, which is enough");
    assert_eq!(job.after_ms(60_000).exit(1, FAILED), None);
    assert_eq!(job.due(), Some(Signal(SIGTERM)));
    assert!(matches!(job.supervisor.verdict(), Some(Verdict::Failed { rank: 1, exit: FAILED, .. })));
    assert_eq!(job.supervisor.spares().map(|(spares, sound)| (spares.left, sound)), Some((0, 1)));
}

#[test]
fn nothing_is_started_in_a_job_that_ends() {
    let mut job = elastic(2, 2, 9);
    assert!(matches!(job.exit(1, FAILED), Some(WillReplace { .. })));
    assert_eq!(job.signal(SIGTERM), Some(Signal(SIGTERM)));
    assert_eq!(job.exit(0, ExitKind::Signal(SIGTERM)), None);
    assert_eq!(job.over(), Some(Verdict::Interrupted { signal: SIGTERM }), "nobody is waited for");
    let mut job = elastic(1, 1, 9);
    assert!(matches!(job.exit(0, FAILED), Some(WillReplace { .. })));
    assert_eq!(job.signal(SIGTERM), None, "nobody is left who could end");
    assert_eq!(job.over(), Some(Verdict::Interrupted { signal: SIGTERM }));
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

impl Job {
    fn tells(&mut self, rank: usize, culprit: usize) {
        let told = ReportedCause { culprit: Some(culprit), words: "r".into() };
        self.supervisor.headline().told(rank, Stage::Generation(0), told, self.now);
    }
}

#[test]
fn the_exit_code_is_the_culprits_or_else_that_of_the_first_who_failed_of_it() {
    for (exit, code) in [
        (Some(ExitKind::Code(101)), 101),
        (Some(ExitKind::Signal(9)), 137),
        (Some(FINE), 7),
        (None, 7), // it hangs
    ] {
        let mut job = Job::of(4, None);
        if let Some(exit) = exit {
            let _ = job.exit(2, exit);
        }
        for (rank, exit) in [(1, ExitKind::Code(7)), (0, FAILED), (3, FAILED)] {
            job.tells(rank, 2);
            let _ = job.after_ms(1).exit(rank, exit);
        }
        if job.over().is_none() {
            assert_eq!(job.due(), Some(Signal(SIGTERM)));
        }
        let Some(Verdict::Failed { rank: 2, by: NamedBy::Ranks, code: found, exit: found_exit, .. }) =
            job.supervisor.verdict()
        else {
            panic!("{:?}", job.supervisor.verdict())
        };
        assert_eq!((found, found_exit), (code, exit.unwrap_or(ExitKind::StillRunning)));
    }
}

#[test]
fn a_rank_that_has_said_it_is_at_fault_may_end_by_itself() {
    let mut job = Job::of(2, None);
    job.tells(1, 1);
    job.tells(0, 1);
    assert_eq!(job.exit(0, FAILED), None);
    assert_eq!(job.after_ms(2000).exit(1, ExitKind::Code(101)), None, "it was waited for");
    assert!(matches!(job.over(), Some(Verdict::Failed { rank: 1, code: 101, .. })));
    let mut job = Job::of(2, None);
    job.tells(1, 1);
    job.tells(0, 1);
    assert_eq!(job.exit(0, FAILED), None);
    assert_eq!(job.due(), Some(Signal(SIGTERM)));
    assert_eq!(job.now, job.start + CONFESSED, "but not for ever");
}

#[test]
fn a_signal_that_is_a_message_is_passed_on_and_ends_nothing() {
    let usr1 = [10, 30].into_iter().find(|&signal| is_message(signal)).unwrap();
    let mut job = Job::of(2, None);
    assert_eq!(job.signal(usr1), Some(PassOn(usr1)));
    assert_eq!(job.signal(usr1), Some(PassOn(usr1)), "as often as it comes");
    assert_eq!((job.supervisor.asked(), job.supervisor.verdict()), (Asked::Nothing, None));
    assert_eq!(job.signal(SIGTERM), Some(Signal(SIGTERM)));
    assert_eq!(job.signal(usr1), None, "they are about to end");
    assert_eq!(job.supervisor.asked(), Asked::ToEnd);
}
