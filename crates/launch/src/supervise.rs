//! The supervisor, which decides what to do when a rank ends, a signal arrives or time runs out: a state machine without processes, threads or clock.
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
//! Which rank is named is decided at the end of Settling, by [`Headline`].

use crate::exit_code;
use crate::exit_kind::{ExitKind, SIGKILL, SIGTERM};
use crate::headline::{Headline, NamedBy};
use crate::replacing::{Replacing, Spares};
use std::time::{Duration, Instant};

/// How long exits are collected before one of them is called the first failure.
///
/// When a rank dies, the others fail of it within milliseconds, and on a busy machine their exits may be seen before
/// the one that caused them. Half a second also lets them write what they saw before they are asked to end.
const SETTLE: Duration = Duration::from_millis(500);

/// How long a rank that has said it is at fault may take to end by itself, if the grace period is not shorter: it may be writing what it knows.
const CONFESSED: Duration = Duration::from_secs(5);

/// How long a process may take to vanish after SIGKILL. One that does not is stuck in the kernel (a dead disk or
/// device driver), and waiting longer would not help.
const REAP: Duration = Duration::from_secs(10);

/// Something for the launcher to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send this signal to every rank that has not ended.
    Signal(i32),
    /// Send this signal, which is no request to end, to the ranks' own processes.
    PassOn(i32),
    /// Another process will take the place of this one, which has ended, so long from now.
    WillReplace { rank: usize, after: Duration },
    /// Start it.
    Replace { rank: usize },
}

/// Why the job is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Success,
    Failed {
        rank: usize,
        /// How it ended by itself; [`ExitKind::StillRunning`] if it had not when that was decided, at `at`.
        exit: ExitKind,
        at: Instant,
        by: NamedBy,
        /// The exit code.
        code: i32,
    },
    Interrupted {
        signal: i32,
    },
    TimedOut,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Running {
        until: Option<Instant>,
    },
    /// `latest`: for a rank that has said it is at fault.
    Settling {
        until: Instant,
        latest: Instant,
    },
    Ending {
        verdict: Verdict,
        until: Instant,
    },
    Killing {
        verdict: Verdict,
        until: Instant,
    },
    Over {
        verdict: Verdict,
    },
}

/// The request of signals, whatever else ended the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Nothing,
    /// To end the job.
    ToEnd,
    /// To end the job at once, without waiting.
    AtOnce,
}

/// The state of a job.
#[derive(Debug)]
pub(crate) struct Supervisor {
    /// Per rank, when and how it ended.
    exits: Vec<Option<(Instant, ExitKind)>>,
    grace: Duration,
    /// `None` in a job that no failure may happen to.
    replacing: Option<Replacing>,
    /// Ranks that have failed, and that the job went on without.
    done_without: Vec<usize>,
    /// How many had not when too few were left.
    sound: usize,
    headline: Headline,
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
        let replacing = spares.map(|spares| Replacing::new(spares, ranks, now));
        let (exits, headline) = (vec![None; ranks], Headline::new(ranks));
        Self {
            exits,
            grace,
            replacing,
            done_without: Vec::new(),
            sound: ranks,
            headline,
            phase,
            asked: Asked::Nothing,
        }
    }

    /// The judge of who is at fault, to be told what the ranks say.
    pub(crate) fn headline(&mut self) -> &mut Headline {
        &mut self.headline
    }

    /// The replacements that are left, in an elastic job, and how many ranks had not failed when it did.
    pub(crate) fn spares(&self) -> Option<(Spares, usize)> {
        Some((self.replacing.as_ref()?.spares, self.sound))
    }

    /// A rank has ended. `has_place`: a replacement has a host to run on.
    #[must_use]
    pub(crate) fn exited(
        &mut self,
        rank: usize,
        exit: ExitKind,
        has_place: bool,
        now: Instant,
    ) -> Option<Action> {
        self.exits[rank].get_or_insert((now, exit));
        if let Phase::Running { .. } = self.phase
            && !exit.is_success()
        {
            if let Some(after) = if has_place { self.replaces(rank, exit, now) } else { None } {
                self.exits[rank] = None;
                self.headline.replaced(rank);
                return Some(Action::WillReplace { rank, after });
            }
            if self.goes_on() {
                self.done_without.push(rank);
            } else {
                let latest = now + SETTLE.max(CONFESSED.min(self.grace));
                self.phase = Phase::Settling { until: now + SETTLE, latest };
                self.sound = self.sound();
                self.cancel_replacements();
            }
        }
        self.poll(now)
    }

    /// The launcher was sent a signal.
    #[must_use]
    pub(crate) fn signalled(&mut self, signal: i32, now: Instant) -> Option<Action> {
        if is_message(signal) {
            let ends = !matches!(self.phase, Phase::Running { .. } | Phase::Settling { .. });
            return (!ends).then_some(Action::PassOn(signal));
        }
        let first = self.asked == Asked::Nothing && signal != SIGKILL;
        self.asked = if first { Asked::ToEnd } else { Asked::AtOnce };
        match self.phase {
            Phase::Running { .. } => self.end(Verdict::Interrupted { signal }, signal, now),
            Phase::Settling { .. } => self.end(self.first_failure(now), signal, now),
            Phase::Ending { verdict, .. } => self.kill(verdict, now),
            Phase::Killing { .. } | Phase::Over { .. } => None,
        }
    }

    /// Takes a replacement from the spares, if there is one and it would find the others still at work: once a rank has succeeded,
    /// the job is about to end. Returns when it is to be started.
    fn replaces(&mut self, rank: usize, exit: ExitKind, now: Instant) -> Option<Duration> {
        let ends = self.exits.iter().flatten().any(|(_, exit)| exit.is_success());
        self.replacing.as_mut().filter(|_| !ends)?.take(rank, exit, now)
    }

    /// How many ranks have not failed.
    fn sound(&self) -> usize {
        self.exits.iter().filter(|exit| exit.is_none_or(|(_, exit)| exit.is_success())).count()
    }

    /// Whether those are enough.
    fn goes_on(&self) -> bool {
        self.replacing.as_ref().is_some_and(|replacing| self.sound() >= replacing.spares.min)
    }

    /// Cancels the replacements whose turn has not come.
    fn cancel_replacements(&mut self) {
        for (rank, before) in self.replacing.as_mut().map(Replacing::cancel).unwrap_or_default() {
            self.exits[rank] = Some(before);
        }
    }

    /// Does what is due at `now`.
    #[must_use]
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Action> {
        if self.living().next().is_none() {
            let verdict = match self.phase {
                Phase::Running { .. } => Verdict::Success,
                Phase::Settling { .. } => self.first_failure(now),
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
            Phase::Running { until } => match self.replacing.as_mut().and_then(|r| r.due(now)) {
                Some(rank) => Some(Action::Replace { rank }),
                None if until.is_some_and(|until| now >= until) => self.end(Verdict::TimedOut, SIGTERM, now),
                None => None,
            },
            Phase::Settling { .. } => self.end(self.first_failure(now), SIGTERM, now),
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
            Phase::Running { until } => {
                let replacement = self.replacing.as_ref().and_then(Replacing::deadline);
                until.into_iter().chain(replacement).min()
            }
            Phase::Settling { latest, .. } if self.headline.is_about_to_end(&self.exits) => Some(latest),
            Phase::Settling { until, .. } | Phase::Ending { until, .. } | Phase::Killing { until, .. } => {
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

    /// The request of signals until now. The verdict need not tell: the failure that came first stays the reason.
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
        self.cancel_replacements();
        if self.living().next().is_none() {
            self.phase = Phase::Over { verdict };
            return None;
        }
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

    /// The failure at the root, as far as is known at `now`.
    fn first_failure(&self, now: Instant) -> Verdict {
        let failed = |&rank: &usize| {
            !self.done_without.contains(&rank) && self.exits[rank].is_some_and(|(_, exit)| !exit.is_success())
        };
        let failed: Vec<usize> = (0..self.exits.len()).filter(failed).collect();
        let (rank, by) = self.headline.decide(&self.exits, &failed);
        let (at, exit) = self.exits[rank].unwrap_or((now, ExitKind::StillRunning));
        let code = exit_code::of_failure(exit, failed.iter().filter_map(|&rank| self.exits[rank]));
        Verdict::Failed { rank, exit, at, by, code }
    }
}

/// Whether a signal tells a program something, and does not ask it to end.
pub(crate) fn is_message(signal: i32) -> bool {
    #[cfg(unix)]
    return [signal_hook::consts::SIGUSR1, signal_hook::consts::SIGUSR2].contains(&signal);
    #[cfg(not(unix))]
    return [10, 12].contains(&signal);
}

#[cfg(test)]
mod tests;
