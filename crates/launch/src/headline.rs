//! Which rank a failed job's report names: a state machine without a clock.
//!
//! The launcher sees processes end, and hears from ranks, over their lifelines, what went wrong first. Neither is enough: exits may be seen in any order, and
//! a rank that hangs or returns 0 too early has no failed exit at all; and a program need not use phalanx, or may fail for a reason of its own.
//!
//! 1. A failed exit is *explained* if that rank has said before that something else is at fault. Those that are not are candidates: a death by signal goes
//!    before an exit code, then the earliest counts.
//! 2. The first cause that any rank has told names the culprit, unless a candidate contradicts it: another rank that failed before anybody had told anything,
//!    or was killed by a signal while the culprit still ran.
//! 3. Where the first cause names nobody, because two ranks called different operations, nobody is named.
//! 4. Where nobody has told anything, the first candidate is it.

use crate::exit_kind::{ExitKind, SIGABRT};
use std::time::Instant;

/// The first cause, as a rank has told it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReportedCause {
    /// The rank at fault.
    pub(crate) culprit: Option<usize>,
    pub(crate) words: String,
}

/// When a cause was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The rank did not come together with the others.
    Init,
    /// It belonged to this generation.
    Generation(u64),
}

/// Why a rank is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NamedBy {
    /// It was the first process that failed, as far as the launcher has seen.
    Exit,
    /// The ranks told the launcher that it failed first.
    Ranks,
    /// Nobody: the ranks told the launcher of a failure that is no single rank's, such as a mismatch, and this was the first process that ended of it.
    Nobody,
}

/// When and how the process of a rank ended.
pub(crate) type Exits = [Option<(Instant, ExitKind)>];

/// What was seen and told so far of how the job's ranks failed.
#[derive(Debug)]
pub(crate) struct Headline {
    first: Option<(Instant, Stage, ReportedCause)>,
    ranks: Vec<Heard>,
    /// The latest generation that has formed.
    generation: u64,
}

/// What one rank has said.
#[derive(Debug, Clone, Copy, Default)]
struct Heard {
    /// Whether it has called `init`.
    here: bool,
    /// Something other than itself is at fault.
    blames: bool,
    /// Whether it says that it is at fault itself.
    confesses: bool,
}

impl Headline {
    pub(crate) fn new(ranks: usize) -> Self {
        Self { first: None, ranks: vec![Heard::default(); ranks], generation: 0 }
    }

    pub(crate) fn here(&mut self, rank: usize) {
        self.ranks[rank].here = true;
    }

    /// Notes that the survivors of earlier generations have come together anew: what went wrong before is over.
    pub(crate) fn formed(&mut self, generation: u64) {
        if generation > self.generation {
            self.generation = generation;
            self.first = None;
            self.ranks.iter_mut().for_each(|rank| (rank.blames, rank.confesses) = (false, false));
        }
    }

    pub(crate) fn told(&mut self, rank: usize, stage: Stage, told: ReportedCause, now: Instant) {
        if matches!(stage, Stage::Generation(generation) if generation < self.generation) {
            return;
        }
        let heard = &mut self.ranks[rank];
        // Its first word counts: who has panicked hears of what that leads to.
        if !heard.blames && !heard.confesses {
            heard.confesses = told.culprit == Some(rank);
            heard.blames = !heard.confesses;
        }
        self.first.get_or_insert((now, stage, told));
    }

    /// Another process takes its place, which settles what it was blamed for.
    pub(crate) fn replaced(&mut self, rank: usize) {
        self.ranks[rank] = Heard::default();
        self.first.take_if(|(_, _, told)| told.culprit == Some(rank));
    }

    /// The words of the first cause.
    pub(crate) fn words(&self) -> Option<&str> {
        self.first.as_ref().map(|(_, _, told)| told.words.as_str())
    }

    /// Whether the culprit has named itself and still runs: it is about to end by itself.
    pub(crate) fn is_about_to_end(&self, exits: &Exits) -> bool {
        let culprit = self.first.as_ref().and_then(|(_, _, told)| told.culprit);
        culprit.is_some_and(|rank| self.ranks[rank].confesses && exits[rank].is_none())
    }

    /// The process to name, of a job in which some processes have `failed` by themselves (those of `exits`, except such as the job went on without).
    pub(crate) fn decide(&self, exits: &Exits, failed: &[usize]) -> (usize, NamedBy) {
        let exit = |rank: usize| exits[rank].expect("it has failed");
        let earliest = |ranks: &mut dyn Iterator<Item = usize>| {
            ranks.min_by_key(|&rank| {
                let (at, exit) = exit(rank);
                (!is_death(exit), at)
            })
        };
        let any = earliest(&mut failed.iter().copied()).expect("a job fails by the exit of a rank");
        let candidate = earliest(&mut failed.iter().copied().filter(|&rank| !self.ranks[rank].blames));
        let Some((heard_at, stage, told)) = &self.first else {
            return (candidate.unwrap_or(any), NamedBy::Exit);
        };
        let culprit = told.culprit.or_else(|| self.missing(*stage, exits, *heard_at));
        let contradicts = |&candidate: &usize| {
            let (at, exit) = exit(candidate);
            let ended_before = culprit.and_then(|rank| exits[rank]).is_some_and(|(end, _)| end <= at);
            Some(candidate) != culprit && !ended_before && (is_death(exit) || at < *heard_at)
        };
        match (candidate.filter(contradicts), culprit) {
            (Some(candidate), _) => (candidate, NamedBy::Exit),
            (None, Some(culprit)) => (culprit, NamedBy::Ranks),
            (None, None) => (any, NamedBy::Nobody),
        }
    }

    /// For whom those have waited that did not come together: a rank that has ended without an error, or has not called `init`.
    fn missing(&self, stage: Stage, exits: &Exits, heard_at: Instant) -> Option<usize> {
        if stage != Stage::Init {
            return None;
        }
        let left = |rank: &usize| exits[*rank].is_some_and(|(at, exit)| exit.is_success() && at <= heard_at);
        let absent =
            |rank: &usize| !self.ranks[*rank].here && exits[*rank].is_none_or(|(at, _)| at > heard_at);
        (0..exits.len()).find(left).or_else(|| (0..exits.len()).find(absent))
    }
}

/// Whether something outside killed the process. An abort is how a program compiled with `panic = "abort"` reports an error.
fn is_death(exit: ExitKind) -> bool {
    exit == ExitKind::HostLost || matches!(exit, ExitKind::Signal(signal) if signal != SIGABRT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const ONE: ExitKind = ExitKind::Code(1);
    const PANIC: ExitKind = ExitKind::Code(101);
    const WORLD: Stage = Stage::Generation(0);

    /// Four ranks. Each event is a millisecond after the one before.
    struct Story {
        headline: Headline,
        exits: Vec<Option<(Instant, ExitKind)>>,
        now: Instant,
    }

    impl Story {
        fn new() -> Self {
            Self { headline: Headline::new(4), exits: vec![None; 4], now: Instant::now() }
        }

        fn tick(&mut self) -> Instant {
            self.now += Duration::from_millis(1);
            self.now
        }

        fn tells(mut self, rank: usize, culprit: impl Into<Option<usize>>) -> Self {
            let (told, now) =
                (ReportedCause { culprit: culprit.into(), words: format!("says {rank}") }, self.tick());
            self.headline.told(rank, WORLD, told, now);
            self
        }

        fn gives_up(mut self, rank: usize) -> Self {
            let (told, now) =
                (ReportedCause { culprit: None, words: "did not come together".into() }, self.tick());
            self.headline.told(rank, Stage::Init, told, now);
            self
        }

        fn here(mut self, ranks: impl IntoIterator<Item = usize>) -> Self {
            ranks.into_iter().for_each(|rank| self.headline.here(rank));
            self
        }

        fn ends(mut self, rank: usize, exit: ExitKind) -> Self {
            self.exits[rank] = Some((self.tick(), exit));
            self
        }

        #[track_caller]
        fn names(self, rank: usize, by: NamedBy) {
            let failed =
                |exit: &Option<(Instant, ExitKind)>| exit.is_some_and(|(_, exit)| !exit.is_success());
            let failed: Vec<usize> = (0..4).filter(|&rank| failed(&self.exits[rank])).collect();
            assert_eq!(self.headline.decide(&self.exits, &failed), (rank, by));
        }
    }

    #[test]
    fn a_rank_that_panics_is_named_although_the_others_end_before_it() {
        let story = Story::new().tells(2, 2).tells(0, 2).ends(0, ONE).tells(1, 2).ends(1, ONE);
        story.ends(2, PANIC).names(2, NamedBy::Ranks);
    }

    #[test]
    fn what_the_others_say_of_a_rank_that_said_nothing_counts() {
        for exit in [ExitKind::Code(0), ExitKind::Code(3), ExitKind::Signal(9), ExitKind::Signal(SIGABRT)] {
            let others = |story: Story| story.tells(0, 2).ends(0, ONE).tells(3, 2).tells(1, 2).ends(1, ONE);
            others(Story::new()).ends(2, exit).names(2, NamedBy::Ranks);
            others(Story::new().ends(2, exit)).names(2, NamedBy::Ranks);
        }
    }

    #[test]
    fn a_rank_that_hangs_is_named() {
        Story::new().tells(1, 2).tells(0, 2).ends(0, ONE).ends(1, ONE).names(2, NamedBy::Ranks);
    }

    #[test]
    fn of_a_mismatch_nobody_is_named() {
        Story::new().tells(1, None).tells(0, None).ends(1, ONE).ends(0, ONE).names(1, NamedBy::Nobody);
    }

    #[test]
    fn a_failure_that_nothing_explains_and_that_came_first_counts_more() {
        // It failed for itself, and another one only left early because of it.
        Story::new().ends(3, ONE).tells(0, 1).ends(0, ONE).names(3, NamedBy::Exit);
        // It was killed while the one that is blamed, for something long ago, still runs.
        Story::new()
            .tells(0, 1)
            .tells(0, 3)
            .ends(3, ExitKind::Signal(9))
            .ends(0, ONE)
            .names(3, NamedBy::Exit);
        // But not if that one had ended before, or this is only an exit code.
        let killed = |story: Story| story.ends(3, ExitKind::Signal(9)).ends(0, ONE);
        killed(Story::new().tells(0, 1).ends(1, PANIC)).names(1, NamedBy::Ranks);
        Story::new().tells(0, 1).ends(3, ONE).ends(0, ONE).names(1, NamedBy::Ranks);
        Story::new().tells(0, None).ends(0, ONE).ends(3, ExitKind::Signal(9)).names(3, NamedBy::Exit);
    }

    #[test]
    fn without_a_word_the_exits_decide() {
        Story::new().ends(1, ONE).ends(0, ONE).names(1, NamedBy::Exit);
        Story::new().ends(1, ONE).ends(0, ExitKind::Signal(11)).names(0, NamedBy::Exit);
        Story::new().ends(1, ONE).ends(0, ExitKind::Signal(SIGABRT)).names(1, NamedBy::Exit);
    }

    #[test]
    fn who_did_not_come_to_init_is_named() {
        // It exited with 0, or never called init.
        let waits = |story: Story| story.gives_up(0).gives_up(1).gives_up(3).ends(0, ONE).ends(1, ONE);
        waits(Story::new().here([0, 1, 2, 3]).ends(2, ExitKind::Code(0))).names(2, NamedBy::Ranks);
        waits(Story::new().here([0, 1, 3])).names(2, NamedBy::Ranks);
        waits(Story::new().here([0, 1, 2, 3])).names(0, NamedBy::Nobody);
        waits(Story::new().here([0, 1, 3]).ends(2, ExitKind::Code(7))).names(2, NamedBy::Exit);
    }

    #[test]
    fn what_a_later_generation_has_survived_does_not_count() {
        let mut story = Story::new().tells(0, 1).tells(3, 1);
        story.headline.formed(1);
        assert_eq!(story.headline.words(), None);
        story.tells(2, 1).ends(0, ONE).names(0, NamedBy::Exit);
        let mut story = Story::new().tells(0, 1);
        story.headline.replaced(1);
        story.ends(0, ONE).names(0, NamedBy::Exit);
    }

    #[test]
    fn a_rank_that_has_named_itself_is_waited_for() {
        let story = Story::new().tells(2, 2).ends(0, ONE);
        assert!(story.headline.is_about_to_end(&story.exits));
        let story = story.ends(2, PANIC);
        assert!(!story.headline.is_about_to_end(&story.exits));
        let story = Story::new().tells(0, 2).ends(0, ONE);
        assert!(!story.headline.is_about_to_end(&story.exits), "it may hang");
    }
}
