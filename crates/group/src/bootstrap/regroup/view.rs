//! One worker's view of a generation that forms, and the roster that follows from it. No clock, no store.

use crate::control::membership::Membership;
use phalanx_core::{Peer, Signature};
use phalanx_rendezvous::{Elastic, Workers};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::time::Duration;

/// How long the launcher may take to say that a lost worker has ended, and who replaces it. One that it does not end only left.
const LAUNCHER_TIME: Duration = Duration::from_secs(5);

/// A worker that wants to be in the generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Candidate {
    pub(crate) worker: u64,
    /// Where it stood in the roster before; `None`: it is new, and has nothing that the others could need.
    pub(crate) rank: Option<usize>,
    /// The rank that it had there, and the call that it made.
    pub(crate) call: Option<(Peer, Signature)>,
}

/// The final decision about a generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Decision {
    /// The workers, in rank order.
    Roster(Vec<u64>),
    /// The generation never forms: two survivors made different calls.
    Refused(Box<[(Peer, Signature); 2]>),
}

/// The workers that may be in the generation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Admission {
    /// The workers that were in the one before.
    Survivors,
    /// Replacements too.
    Elastic(Elastic),
}

/// The workers that are lost, as the generation before knows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lost {
    /// Their lines have ended, whichever way.
    pub(crate) gone: BTreeSet<u64>,
    /// Those of them that are stopped or cut off: the launcher doesn't know.
    pub(crate) silent: BTreeSet<u64>,
    /// A survivor that has not come may live and not beat, because it has heard of no trouble: the arbiter still hears the others, this worker
    /// or not, or has left in order, which tells nobody of trouble.
    pub(crate) unaware: bool,
}

impl Lost {
    /// As a rank of the generation before has heard; its workers stood in this roster.
    pub(crate) fn of(membership: &Membership, roster: &[u64]) -> Self {
        let workers = |ranks: Vec<usize>| ranks.into_iter().map(|rank| roster[rank]).collect();
        Self {
            gone: workers(membership.gone()),
            silent: workers(membership.silent()),
            unaware: !membership.gone().contains(&0) || membership.arbiter_has_left(),
        }
    }
}

/// One worker's view of a generation that forms.
#[derive(Debug)]
pub(crate) struct View<'a> {
    pub(crate) admission: Admission,
    pub(crate) announced: &'a [Candidate],
    /// The roster of the generation before; empty for a worker that was in none.
    pub(crate) before: &'a [u64],
    /// The launcher's record of the workers, if it keeps one.
    pub(crate) launcher: Option<&'a Workers>,
    pub(crate) lost: &'a Lost,
    /// The workers that show no sign of life any more.
    pub(crate) silent: &'a BTreeSet<u64>,
    /// The workers that were started, and have not called `init` for so long that they never will.
    pub(crate) stuck: &'a BTreeSet<u64>,
    pub(crate) waited: Duration,
    /// Those that live have had all the time of an operation.
    pub(crate) overdue: bool,
    /// Processes had half of the time of init to start.
    pub(crate) started: bool,
    /// This worker is new, and others may have something to go on with.
    pub(crate) is_guest: bool,
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outlook {
    Decide(Decision),
    /// Nobody else is to come, and that is not enough.
    TooFew,
    /// These live, and have not come.
    Wait(BTreeSet<u64>),
}

impl View<'_> {
    fn has_ended(&self, worker: u64) -> bool {
        self.launcher.is_some_and(|launcher| launcher.ended.contains(&worker))
    }

    /// Whoever has announced itself and shows that it lives, though it may have been taken for lost before.
    fn here(&self) -> Vec<&Candidate> {
        let lives = |c: &&Candidate| !self.has_ended(c.worker) && !self.silent.contains(&c.worker);
        self.announced.iter().filter(lives).collect()
    }

    /// Whether nobody of the generation before is missing.
    pub(crate) fn all_came(&self) -> bool {
        let here = self.here();
        self.before.iter().all(|worker| here.iter().any(|c| c.worker == *worker))
    }

    /// Survivors first, in their old order, so that rank 0 has the state if anybody has.
    pub(crate) fn outlook(&self) -> Outlook {
        let mut here = self.here();
        if let Some(calls) = disagreement(&here) {
            return Outlook::Decide(Decision::Refused(Box::new(calls)));
        }
        let has_come = |worker: u64| here.iter().any(|c| c.worker == worker);
        let is_lost = |w: u64| {
            let by_launcher = self.launcher.is_none() || self.waited >= LAUNCHER_TIME;
            let gone = match self.admission {
                Admission::Survivors => self.lost.gone.contains(&w),
                // One that has died is replaced in the moment in which the launcher says so.
                Admission::Elastic(_) => {
                    self.lost.silent.contains(&w) || (self.lost.gone.contains(&w) && by_launcher)
                }
            };
            gone || self.has_ended(w) || self.silent.contains(&w) || self.stuck.contains(&w)
        };
        let expected: Vec<u64> = match (self.admission, self.launcher) {
            (Admission::Elastic(_), Some(launcher)) => launcher.living().collect(),
            _ => self.before.to_vec(),
        };
        let absent: BTreeSet<u64> = expected.into_iter().filter(|&w| !has_come(w) && !is_lost(w)).collect();
        let (min, max) = match self.admission {
            Admission::Survivors => (1, self.before.len()),
            Admission::Elastic(size) => (size.min(), size.max()),
        };
        if let (Admission::Elastic(_), None) = (self.admission, self.launcher)
            && here.len() < max
            && !self.started
        {
            return Outlook::Wait(absent); // nobody says who else was started
        }
        if !absent.is_empty() && !self.overdue {
            return Outlook::Wait(absent);
        }
        if let Admission::Survivors = self.admission {
            here.retain(|c| c.rank.is_some());
        }
        if self.is_guest && here.iter().all(|c| c.rank.is_none()) && self.somebody_has_the_state() {
            return Outlook::Wait(absent);
        }
        here.sort_by_key(|c| (c.rank.unwrap_or(usize::MAX), c.worker));
        let roster: Vec<u64> = here.iter().take(max).map(|c| c.worker).collect();
        if roster.len() < min { Outlook::TooFew } else { Outlook::Decide(Decision::Roster(roster)) }
    }

    fn is_new(&self, worker: u64) -> bool {
        self.announced.iter().any(|c| c.worker == worker && c.rank.is_none())
    }

    /// A process lives that is not new: it is stopped, perhaps, and may go on.
    fn somebody_has_the_state(&self) -> bool {
        self.launcher.is_some_and(|launcher| launcher.living().any(|worker| !self.is_new(worker)))
    }

    /// Whether the job has been done without those who are left: they are all new, and would do it again from the beginning.
    pub(crate) fn is_done(&self) -> bool {
        self.launcher.is_some_and(|launcher| launcher.succeeded && launcher.living().all(|w| self.is_new(w)))
    }
}

/// Two survivors of which one waits for replacements and the other does not.
fn disagreement(here: &[&Candidate]) -> Option<[(Peer, Signature); 2]> {
    let mut calls = here.iter().filter_map(|c| c.call.as_ref());
    let first = calls.next()?;
    let other = calls.find(|(_, call)| call.op != first.1.op)?;
    let mut both = [first.clone(), other.clone()];
    both.sort_by_key(|(peer, _)| peer.rank);
    Some(both)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::control::notice::Verdict;
    use phalanx_core::{CallSite, Loss, OpKind};
    use std::time::Instant;

    pub(crate) fn old(worker: u64, rank: usize) -> Candidate {
        Candidate { worker, rank: Some(rank), call: Some(call(rank, OpKind::Shrink)) }
    }

    pub(crate) fn new(worker: u64) -> Candidate {
        Candidate { worker, rank: None, call: None }
    }

    pub(crate) fn call(rank: usize, op: OpKind) -> (Peer, Signature) {
        let site = CallSite { file: "train.rs".into(), line: rank as u32 };
        let signature = Signature::bare(op, site);
        (Peer { rank, host: "h".into() }, signature)
    }

    pub(crate) fn workers<const N: usize>(started: u64, ended: [u64; N]) -> Workers {
        Workers { started, ended: ended.into(), succeeded: false }
    }

    static NONE_LOST: Lost = Lost { gone: BTreeSet::new(), silent: BTreeSet::new(), unaware: true };
    static NOBODY: BTreeSet<u64> = BTreeSet::new();

    fn view<'a>(announced: &'a [Candidate], before: &'a [u64]) -> View<'a> {
        View {
            admission: Admission::Survivors,
            announced,
            before,
            launcher: None,
            lost: &NONE_LOST,
            silent: &NOBODY,
            stuck: &NOBODY,
            waited: Duration::ZERO,
            overdue: false,
            started: false,
            is_guest: false,
        }
    }

    fn gone<const N: usize>(workers: [u64; N]) -> Lost {
        Lost { gone: workers.into(), ..Lost::default() }
    }

    fn roster(workers: impl Into<Vec<u64>>) -> Outlook {
        Outlook::Decide(Decision::Roster(workers.into()))
    }

    fn wait<const N: usize>(workers: [u64; N]) -> Outlook {
        Outlook::Wait(workers.into())
    }

    fn elastic(min: usize, max: usize) -> Admission {
        Admission::Elastic(Elastic::new(min, max).unwrap())
    }

    #[test]
    fn survivors_need_not_beat_while_the_arbiter_is_there_or_when_it_has_left_in_order() {
        let of_rank_1 = || crate::runtime::membership(call(1, OpKind::Shrink).0, 3, Duration::from_secs(5));
        let (left, died) = (of_rank_1(), of_rank_1());
        let lost = |membership: &Membership| Lost::of(membership, &[4, 5, 6]);
        assert!(lost(&left).unaware);
        left.hear(Verdict::Left { rank: 0, after: None, finished: 0 }, Instant::now());
        assert!(lost(&left).unaware && lost(&left).gone == BTreeSet::from([4]));
        died.lost_arbiter(Loss::Died);
        assert!(!lost(&died).unaware && lost(&died).gone == BTreeSet::from([4]), "all heard of that");
    }

    #[test]
    fn survivors_wait_for_each_other_and_keep_their_order() {
        let all = [old(7, 2), old(5, 1), old(9, 3)];
        let before = [3, 5, 7, 9];
        let lost = gone([3]);
        assert_eq!(view(&all, &before).outlook(), wait([3]), "worker 3 may still come");
        assert_eq!(View { lost: &lost, ..view(&all, &before) }.outlook(), roster([5, 7, 9]));
        assert_eq!(View { lost: &lost, ..view(&all[..2], &before) }.outlook(), wait([9]));
        let long = Duration::from_secs(599);
        let late = View { waited: long, started: true, lost: &lost, ..view(&all[..2], &before) };
        assert_eq!(late.outlook(), wait([9]), "it lives, and computes");
        assert_eq!(View { overdue: true, ..late }.outlook(), roster([5, 7]));
        let silent = BTreeSet::from([9]);
        assert_eq!(View { silent: &silent, lost: &lost, ..view(&all, &before) }.outlook(), roster([5, 7]));
    }

    #[test]
    fn who_announced_itself_and_then_ended_is_left_out() {
        let all = [old(0, 0), old(1, 1), old(2, 2)];
        let workers = workers(3, [1]);
        let told = View { launcher: Some(&workers), ..view(&all, &[0, 1, 2]) };
        assert_eq!(told.outlook(), roster([0, 2]));
    }

    #[test]
    fn who_was_taken_for_lost_and_comes_is_in() {
        let all = [old(0, 0), old(1, 1), old(2, 2)];
        assert_eq!(View { lost: &gone([2]), ..view(&all, &[0, 1, 2]) }.outlook(), roster([0, 1, 2]));
    }

    #[test]
    fn replacements_are_waited_for_and_come_last() {
        // Worker 1 is lost, and 4 takes its place.
        let all = [new(4), old(2, 2), old(0, 0), old(3, 3)];
        let (before, lost) = ([0, 1, 2, 3], gone([1]));
        let of = |announced, launcher, waited_s| {
            View {
                admission: elastic(2, 4),
                launcher: Some(launcher),
                lost: &lost,
                waited: Duration::from_secs(waited_s),
                ..view(announced, &before)
            }
            .outlook()
        };
        let unaware = workers(4, []);
        assert_eq!(of(&all[1..], &unaware, 0), wait([1]), "the launcher does not know yet");
        assert_eq!(of(&all[1..], &unaware, 60), roster([0, 2, 3]), "it has left, and does not end");
        let replaced = workers(5, [1]);
        assert_eq!(of(&all[1..], &replaced, 60), wait([4]), "the replacement is on its way");
        assert_eq!(of(&all, &replaced, 0), roster([0, 2, 3, 4]));
        let exhausted = workers(4, [1]);
        assert_eq!(of(&all[1..], &exhausted, 0), roster([0, 2, 3]), "nobody replaces it");
    }

    #[test]
    fn the_launcher_knows_nothing_of_those_that_are_stopped() {
        let all = [old(0, 0), old(2, 2)];
        let unaware = workers(3, []);
        let lost = Lost { silent: BTreeSet::from([1]), ..gone([1]) };
        let of = View {
            admission: elastic(1, 3),
            launcher: Some(&unaware),
            lost: &lost,
            ..view(&all, &[0, 1, 2])
        };
        assert_eq!(of.outlook(), roster([0, 2]), "at once");
        // A replacement that never comes as far as init, and one that is stopped on its way.
        let replaced = workers(4, [1]);
        let of = |announced, silent, stuck| {
            View {
                admission: elastic(1, 3),
                launcher: Some(&replaced),
                silent,
                stuck,
                ..view(announced, &[0, 1, 2])
            }
            .outlook()
        };
        let third = BTreeSet::from([3]);
        assert_eq!(of(&all, &NOBODY, &NOBODY), wait([3]));
        assert_eq!(of(&all, &NOBODY, &third), roster([0, 2]));
        let with_new = [all[0].clone(), all[1].clone(), new(3)];
        assert_eq!(of(&with_new, &third, &NOBODY), roster([0, 2]));
        assert_eq!(of(&with_new, &NOBODY, &third), roster([0, 2, 3]), "it has come after all");
    }

    #[test]
    fn an_elastic_generation_has_its_least_and_its_most() {
        let (all, before) = ([old(0, 0), new(5), new(4)], [0, 1]);
        let launcher = workers(6, [2, 3]);
        let of = |admission, overdue| {
            View { admission, overdue, launcher: Some(&launcher), ..view(&all, &before) }.outlook()
        };
        assert_eq!(of(elastic(1, 4), false), wait([1]));
        assert_eq!(of(elastic(1, 2), true), roster([0, 4]));
        assert_eq!(of(elastic(1, 4), true), roster([0, 4, 5]));
        assert_eq!(of(elastic(4, 4), true), Outlook::TooFew);
        // Where nobody says who was started, all who can be are waited for.
        let alone = |admission, started| View { admission, started, ..view(&all, &[0]) }.outlook();
        assert_eq!(alone(elastic(1, 2), false), roster([0, 4]));
        assert_eq!(alone(elastic(1, 4), false), wait([]));
        assert_eq!(alone(elastic(1, 4), true), roster([0, 4, 5]));
    }

    #[test]
    fn a_shrink_beside_a_rejoin_is_refused_and_both_are_named() {
        let rejoins = Candidate { call: Some(call(1, OpKind::Rejoin)), ..old(8, 1) };
        let all = [rejoins, new(9), old(7, 0)];
        let both = [call(0, OpKind::Shrink), call(1, OpKind::Rejoin)];
        for admission in [Admission::Survivors, elastic(1, 3)] {
            let seen = View { admission, ..view(&all, &[7, 8]) }.outlook();
            assert_eq!(seen, Outlook::Decide(Decision::Refused(Box::new(both.clone()))));
        }
        let silent = BTreeSet::from([8]);
        assert_eq!(View { silent: &silent, ..view(&all, &[7, 8]) }.outlook(), roster([7]), "it is gone");
    }

    #[test]
    fn a_guest_begins_nothing_of_its_own_while_a_survivor_may_come_back() {
        let all = [old(0, 0), new(2)];
        let silent = BTreeSet::from([0]);
        let of = |launcher| {
            View {
                admission: elastic(1, 2),
                launcher: Some(launcher),
                silent: &silent,
                is_guest: true,
                ..view(&all, &[])
            }
            .outlook()
        };
        let (stopped, ended) = (workers(3, [1]), workers(3, [0, 1]));
        assert_eq!(of(&stopped), wait([]));
        assert_eq!(of(&ended), roster([2]));
    }

    #[test]
    fn the_job_is_done_when_one_has_succeeded_and_only_guests_are_left() {
        let is_done = |announced: &[Candidate], workers: &Workers| {
            View { launcher: Some(workers), ..view(announced, &[]) }.is_done()
        };
        let one_is_left = Workers { succeeded: true, ..workers(4, [2, 1]) };
        let nobody_is = Workers { succeeded: true, ..workers(4, [2, 1, 0]) };
        assert!(is_done(&[new(3)], &nobody_is));
        assert!(!is_done(&[new(3)], &one_is_left) && !is_done(&[new(3), old(0, 0)], &one_is_left));
        assert!(!is_done(&[new(3)], &workers(4, [2, 1, 0])));
    }
}
