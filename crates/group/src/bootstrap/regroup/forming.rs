//! One worker's way into the next generation: it agrees with the others who is in it, comes together with them, and tries the next one if that
//! fails. A state machine without a clock or a store.

use super::ask::{Answer, Ask};
use super::assignment::Assignment;
use super::roster::{Agreement, FirstSeen, Next, Party, Until, WaitLimits, ask_decision, decision};
use super::view::{Admission, Decision};
use phalanx_core::{Cause, Context, Deadline, Error, OpKind, Peer, Result, Signature, WORLD};
use phalanx_transport::sabotage::{Mechanism, breaks};
use std::time::{Duration, Instant};

/// An attempt to come together has one of so many parts of the time of init. When it is over, that time begins anew for a group without those
/// who were lost in it: half of it for all others to give up the attempt, too, and the rest to come together.
const ATTEMPTS: u32 = 3;
/// An attempt that would have less than this part of it is not begun.
const SHORT: u32 = 12;

/// One worker's way.
#[derive(Debug)]
pub(crate) struct Forming<'a> {
    party: Party<'a>,
    generation: u64,
    begun: Instant,
    /// Until a first roster is decided, by when that must be; then by when the ranks must have come together, the same moment for all of them.
    deadline: Deadline,
    stage: Stage,
    first_seen: FirstSeen,
    /// The last attempt, and why the ranks did not come together in it.
    failure: Option<(Attempt, String)>,
    /// How often the time of init may still begin anew: as often as the group can have members. Survivors are fewer than that; replacements may
    /// come and be lost without end.
    renewals: usize,
}

/// An attempt to come together.
#[derive(Debug)]
struct Attempt {
    roster: Vec<u64>,
    /// When all of them will have given it up, counted from the beginning of this worker's way.
    ends: Duration,
}

#[derive(Debug)]
enum Stage {
    /// Looks for the first generation in which it may be.
    Seeking,
    Agreeing(Box<Agreement>),
    Meeting(Attempt),
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Ask the store, and hand over its [answer](Forming::answered).
    Ask(Ask),
    /// Come together by then; if that fails, say [why](Forming::failed).
    Meet(Assignment, Deadline),
}

impl<'a> Forming<'a> {
    /// Into `generation`, or the first one after it in which this worker may be. Workers that live are waited for as long as an
    /// operation may take; then there is the time of init to come together, and that time again for each that is lost meanwhile.
    pub(crate) fn begin(party: Party<'a>, generation: u64, now: Instant) -> (Self, Step) {
        let WaitLimits { start, compute } = party.limits;
        let deadline = Deadline::after(now, start.saturating_add(compute));
        let renewals = match party.admission {
            Admission::Survivors => party.before.len(),
            Admission::Elastic(size) => size.max(),
        };
        let forming = Self {
            party,
            generation,
            begun: now,
            deadline,
            stage: Stage::Seeking,
            first_seen: FirstSeen::new(),
            failure: None,
            renewals,
        };
        (forming, Step::Ask(ask_decision(generation)))
    }

    /// Takes the store's answer to what was asked last.
    ///
    /// # Errors
    /// [`Error::Mismatch`]: another survivor made another call. [`Error::Rendezvous`]: the others went on without this worker, or too few
    /// came.
    pub(crate) fn answered(&mut self, answer: Answer, now: Instant) -> Result<Step> {
        match &mut self.stage {
            Stage::Seeking => match decision(answer)? {
                Some(Decision::Refused(_)) => Ok(self.seek_next()),
                // What is decided is decided without a new worker.
                Some(Decision::Roster(_)) if self.is_new() => Ok(self.seek_next()),
                _ => Ok(self.agree(Until::either(self.deadline), now)),
            },
            Stage::Agreeing(agreement) => match agreement.step(&self.party, answer, now) {
                Ok(Next::Ask(ask)) => Ok(Step::Ask(ask)),
                Ok(Next::Decided(decision)) => {
                    self.first_seen = agreement.take_first_seen();
                    self.decided(decision, now)
                }
                Err(error) => Err(self.after_failure(error)),
            },
            Stage::Meeting(_) => {
                Err(Error::Internal { what: format!("nobody asked, and there is {answer:?}") })
            }
        }
    }

    /// The ranks did not come together. Those who are left agree on the next generation, whatever time it is: if it does without somebody,
    /// the time of init has begun anew.
    ///
    /// # Errors
    /// `error`, if there is no point in another try.
    pub(crate) fn failed(&mut self, error: Error, now: Instant) -> Result<Step> {
        if !may_pass(&error) {
            return Err(self.after_failure(error));
        }
        let Stage::Meeting(attempt) = std::mem::replace(&mut self.stage, Stage::Seeking) else {
            return Err(error);
        };
        let (generation, me) = (self.generation, &mut self.party.me);
        tracing::warn!(generation, %error, "the ranks did not come together; trying again without who is lost");
        me.rank = me.rank.and_then(|_| attempt.roster.iter().position(|worker| *worker == me.worker));
        let why = match error {
            Error::Rendezvous { what, .. } => what,
            other => other.to_string(),
        };
        let why = format!("the ranks of generation {generation} did not come together: {why}");
        self.party.before.clone_from(&attempt.roster);
        self.generation += 1;
        // All of this roster have called, and come as soon as their attempts are over, too.
        self.party.limits.compute = self.party.limits.start / 2;
        let until = Until { all_came: self.deadline, some_came: self.after(&attempt) };
        self.failure = Some((attempt, why));
        Ok(self.agree(until, now))
    }

    /// By when those who are left must have come together, if somebody was lost in this attempt.
    fn after(&self, attempt: &Attempt) -> Deadline {
        let limit = attempt.ends.saturating_add(self.party.limits.start);
        Deadline::after(self.begun, limit.max(self.deadline.limit()))
    }

    /// By when the ranks of this roster must have come together. The time of init begins with the first roster, and anew with one that does
    /// without somebody who was in the last attempt.
    fn deadline_of(&mut self, roster: &[u64], now: Instant) -> Deadline {
        match &self.failure {
            None if !self.deadline.has_passed(now) => {
                let limit = (now - self.begun).saturating_add(self.party.limits.start);
                Deadline::after(self.begun, limit)
            }
            Some((attempt, _)) if self.renewals > 0 && attempt.roster.iter().any(|w| !roster.contains(w)) => {
                self.renewals -= 1;
                self.after(attempt)
            }
            _ => self.deadline,
        }
    }

    /// That it failed again, with what came before.
    fn after_failure(&self, error: Error) -> Error {
        match (error, &self.failure) {
            (Error::Rendezvous { rank, world_size, what, waited }, Some((_, why))) => {
                Error::Rendezvous { rank, world_size, what: format!("{what}; before that, {why}"), waited }
            }
            (error, _) => error,
        }
    }

    fn is_new(&self) -> bool {
        self.party.me.rank.is_none()
    }

    fn seek_next(&mut self) -> Step {
        self.generation += 1;
        Step::Ask(ask_decision(self.generation))
    }

    fn agree(&mut self, until: Until, now: Instant) -> Step {
        let first_seen = std::mem::take(&mut self.first_seen);
        let (agreement, ask) = Agreement::begin(&self.party, self.generation, until, first_seen, now);
        self.stage = Stage::Agreeing(Box::new(agreement));
        Step::Ask(ask)
    }

    fn decided(&mut self, decision: Decision, now: Instant) -> Result<Step> {
        let generation = self.generation;
        let roster = match decision {
            Decision::Roster(roster) => roster,
            Decision::Refused(_) if self.party.me.call.is_none() => {
                self.generation += 1; // nothing is wrong with those who are waited for
                return Ok(self.agree(Until::either(self.deadline), now));
            }
            Decision::Refused(calls) => return Err(self.refused(*calls, now)),
        };
        let worker = self.party.me.worker;
        let Some(rank) = roster.iter().position(|w| *w == worker) else {
            if self.is_new() || breaks(Mechanism::Latecomer) {
                self.generation += 1; // it was closed when this worker came
                return Ok(self.agree(Until::either(self.deadline), now));
            }
            let what = format!(
                "generation {generation} has formed without this rank, which came too late: workers {roster:?} go on"
            );
            return Err(self.too_late(what, now));
        };
        if let Some(watch) = &self.party.watch {
            watch.over(roster.iter().copied().collect(), now);
        }
        self.deadline = self.deadline_of(&roster, now);
        let left = self.deadline.remaining(now);
        if left.is_zero() || left < self.party.limits.start / SHORT {
            let what = format!(
                "generation {generation} has formed, of workers {roster:?}, when this rank had no time left"
            );
            return Err(self.after_failure(self.too_late(what, now)));
        }
        // Not all of what is left: who is lost without a sign is noticed when the attempt is over.
        let attempt = Deadline::after(now, left.min(self.party.limits.start / ATTEMPTS));
        let ends = (now - self.begun).saturating_add(attempt.limit());
        self.stage = Stage::Meeting(Attempt { roster: roster.clone(), ends });
        tracing::info!(generation, rank, ?roster, "a generation forms");
        let watch = self.party.watch.clone();
        Ok(Step::Meet(Assignment { watch, ..Assignment::new(generation, rank, roster) }, attempt))
    }

    fn too_late(&self, what: String, now: Instant) -> Error {
        Error::Rendezvous { rank: 0, world_size: 0, what, waited: self.deadline.elapsed(now) }
    }

    /// One rank shrinks, and another waits for replacements.
    fn refused(&self, [left, right]: [(Peer, Signature); 2], now: Instant) -> Error {
        let party = &self.party;
        let call = party.me.call.as_ref().map(|(_, call)| call);
        let at = Context {
            op: call.map_or(OpKind::Init, |call| call.op),
            seq: 0,
            site: call.map(|call| call.site.clone()),
            envelope: None,
            group: WORLD,
            members: (0..party.before.len()).collect(),
            rank: party.me.rank.unwrap_or(0),
            bytes: (0, 0),
            elapsed: self.deadline.elapsed(now),
            through: None,
        };
        Error::from_cause(Cause::Mismatch { seq: 0, tag: None, left, right }, at)
    }
}

/// Whether the next generation may do better.
fn may_pass(error: &Error) -> bool {
    !matches!(
        error,
        Error::Config { .. } | Error::Unavailable { .. } | Error::Internal { .. } | Error::WrongSum { .. }
    )
}

/// The generation on which this worker begins to agree, from this one on.
#[cfg(test)]
pub(super) fn seek(
    party: Party<'_>,
    store: &std::sync::Arc<dyn phalanx_rendezvous::Store>,
    generation: u64,
) -> u64 {
    let (mut forming, mut step) = Forming::begin(party, generation, Instant::now());
    while let (Stage::Seeking, Step::Ask(ask)) = (&forming.stage, &step) {
        step = forming.answered(ask.perform(store).unwrap(), Instant::now()).unwrap();
    }
    forming.generation
}

/// Agrees with the others on `generation`, over a store that is here.
#[cfg(test)]
pub(super) fn agree(
    party: &Party<'_>,
    store: &std::sync::Arc<dyn phalanx_rendezvous::Store>,
    generation: u64,
    deadline: Deadline,
) -> Result<Decision> {
    let until = Until::either(deadline);
    let (mut agreement, mut ask) =
        Agreement::begin(party, generation, until, FirstSeen::new(), Instant::now());
    loop {
        match agreement.step(party, ask.perform(store)?, Instant::now())? {
            Next::Ask(next) => ask = next,
            Next::Decided(decision) => return Ok(decision),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::roster::tests::{no_loss, party};
    use super::super::view::Candidate;
    use super::super::view::tests::{new, old, workers};
    use super::*;
    use crate::control::failure_report::SETTLE_TIME;
    use phalanx_rendezvous::{Elastic, MemoryStore, Store, Workers};
    use std::sync::Arc;

    const START: Duration = Duration::from_secs(12);
    const COMPUTE: Duration = Duration::from_secs(8);

    /// A worker in a time of its own.
    struct Worker {
        forming: Forming<'static>,
        /// `None`: it waits in a meeting.
        ask: Option<Ask>,
        met: Option<(Assignment, Deadline)>,
        now: Instant,
    }

    impl Worker {
        fn shrinks(worker: u64, before: &[u64], now: Instant) -> Self {
            Self::begin(party(old(worker, worker as usize), before, &no_loss, START), now)
        }

        fn begin(mut party: Party<'static>, now: Instant) -> Self {
            party.limits = WaitLimits::new(START, COMPUTE);
            let (forming, step) = Forming::begin(party, 1, now);
            let mut new = Self { forming, ask: None, met: None, now };
            new.take(step);
            new
        }

        fn take(&mut self, step: Step) {
            (self.ask, self.met) = match step {
                Step::Ask(ask) => (Some(ask), None),
                Step::Meet(assignment, deadline) => (None, Some((assignment, deadline))),
            };
        }

        /// Asks the store once. What is not there is waited for.
        fn advance(&mut self, store: &Arc<dyn Store>) -> Result<()> {
            let ask = match self.ask.take().unwrap() {
                Ask::Get(key, limit) if store.try_get(&key)?.is_none() => {
                    self.now += limit;
                    Ask::TryGet(key)
                }
                ask => ask,
            };
            let step = self.forming.answered(ask.perform(store)?, self.now)?;
            self.take(step);
            Ok(())
        }

        /// Waits in vain until its attempt is over.
        fn waits_in_vain(&mut self) {
            let (_, deadline) = self.met.take().unwrap();
            self.now += deadline.limit();
            let what = "2 of 3 ranks came".into();
            let error = Error::Rendezvous { rank: 0, world_size: 3, what, waited: deadline.limit() };
            let step = self.forming.failed(error, self.now).unwrap();
            self.take(step);
        }

        fn roster(&self) -> Option<(u64, &[u64])> {
            self.met.as_ref().map(|(assignment, _)| (assignment.generation, &assignment.roster[..]))
        }
    }

    /// Lets all go on, whoever is behind first, until all meet.
    fn until_all_meet(workers: &mut [&mut Worker], store: &Arc<dyn Store>) -> Result<()> {
        while let Some(next) = workers.iter_mut().filter(|w| w.ask.is_some()).min_by_key(|w| w.now) {
            next.advance(store)?;
        }
        Ok(())
    }

    fn store() -> Arc<dyn Store> {
        Arc::new(MemoryStore::new())
    }

    #[test]
    fn the_time_begins_anew_whenever_one_is_lost_while_they_come_together() {
        let (store, start, before) = (store(), Instant::now(), [0, 1, 2, 3, 4]);
        let mut workers: Vec<_> = (0..4).map(|worker| Worker::shrinks(worker, &before, start)).collect();
        let roster: Vec<u64> = (0..4).collect();
        for generation in 1..=4 {
            until_all_meet(&mut workers.iter_mut().collect::<Vec<_>>(), &store).unwrap();
            // Worker 4 was waited for, and one more in each attempt.
            for worker in &workers {
                assert_eq!(worker.roster(), Some((generation, &roster[..workers.len()])));
                assert_eq!(worker.met.as_ref().unwrap().1.limit(), START / ATTEMPTS, "{generation}");
            }
            workers.pop();
            workers.iter_mut().for_each(Worker::waits_in_vain);
        }
    }

    #[test]
    fn ranks_that_never_reach_each_other_end_in_time_and_say_why() {
        let (store, start) = (store(), Instant::now());
        let [mut zero, mut one] = [0, 1].map(|worker| Worker::shrinks(worker, &[0, 1], start));
        let error = loop {
            match until_all_meet(&mut [&mut zero, &mut one], &store) {
                Ok(()) => [&mut zero, &mut one].map(Worker::waits_in_vain),
                Err(error) => break error.to_string(),
            };
        };
        assert!(error.contains("[0, 1], when this rank had no time left; before that, "), "{error}");
        assert!(error.ends_with("did not come together: 2 of 3 ranks came"), "{error}");
        let late = (zero.now - start).checked_sub(START).unwrap();
        assert!(late < Duration::from_secs(1), "it looks whether the other is lost: {late:?}");
    }

    /// Of an elastic job of at most three ranks, of which worker 1 or 2 is lost.
    fn elastic(me: Candidate, before: &[u64], now: Instant) -> Worker {
        let size = Elastic::new(1, 3).unwrap();
        let party = party(me, before, &no_loss, START);
        Worker::begin(Party { admission: Admission::Elastic(size), ..party }, now)
    }

    #[test]
    fn replacements_that_come_and_are_lost_without_end_give_time_for_so_many_only() {
        let (store, start) = (store(), Instant::now());
        workers(3, [1]).publish(&store).unwrap();
        let mut survivor = elastic(old(0, 0), &[0, 1], start);
        let error = (2..20).find_map(|guest| {
            Workers { started: guest + 1, ended: (1..guest).collect(), succeeded: false }
                .publish(&store)
                .unwrap();
            let mut new = elastic(new(guest), &[], survivor.now);
            let both = until_all_meet(&mut [&mut survivor, &mut new], &store);
            both.map(|()| survivor.waits_in_vain()).err()
        });
        let error = error.unwrap().to_string();
        assert!(error.contains("when this rank had no time left"), "{error}");
        let took = survivor.now - start;
        assert!(START * 3 / 2 < took && took <= START * (1 + 3), "{took:?}");
    }

    #[test]
    fn a_process_that_never_comes_as_far_as_init_is_waited_for_once() {
        let (store, start) = (store(), Instant::now());
        let [mut zero, mut one] =
            [0, 1].map(|worker| elastic(old(worker, worker as usize), &[0, 1, 2], start));
        workers(4, [2]).publish(&store).unwrap();
        until_all_meet(&mut [&mut zero, &mut one], &store).unwrap();
        assert!(zero.now - start >= START / 2, "worker 3 was waited for");
        [&mut zero, &mut one].into_iter().for_each(Worker::waits_in_vain);
        let failed = zero.now;
        until_all_meet(&mut [&mut zero, &mut one], &store).unwrap();
        assert!(zero.now - failed < Duration::from_secs(1), "{:?}", zero.now - failed);
    }

    #[test]
    fn when_the_time_is_over_and_nobody_is_lost_nobody_else_is_waited_for() {
        let (store, start) = (store(), Instant::now());
        let [mut zero, mut one] =
            [0, 1].map(|worker| elastic(old(worker, worker as usize), &[0, 1, 2], start));
        workers(3, [2]).publish(&store).unwrap();
        for _ in 0..ATTEMPTS {
            until_all_meet(&mut [&mut zero, &mut one], &store).unwrap();
            [&mut zero, &mut one].into_iter().for_each(Worker::waits_in_vain);
        }
        workers(4, [2]).publish(&store).unwrap();
        let error = until_all_meet(&mut [&mut zero, &mut one], &store).unwrap_err().to_string();
        assert!(error.contains("[0, 1], when this rank had no time left; before that, "), "{error}");
        assert!(zero.now - start < START + Duration::from_secs(1), "{:?}", zero.now - start);
    }

    #[test]
    fn nobody_goes_on_alone_while_the_others_wait_in_an_attempt_for_one_that_is_lost() {
        let (store, start) = (store(), Instant::now());
        let [mut zero, mut one] = [0, 1].map(|worker| Worker::shrinks(worker, &[0, 1, 2], start));
        // Worker 2 comes, and is lost. Worker 0 had called long before, and has less time left.
        let mut two = Worker::shrinks(2, &[0, 1, 2], start);
        until_all_meet(&mut [&mut zero, &mut one, &mut two], &store).unwrap();
        let (shorter, longer) = (START / 100, one.met.as_ref().unwrap().1.limit());
        zero.met.as_mut().unwrap().1 = Deadline::after(start, shorter);
        zero.waits_in_vain();
        while zero.now < start + longer {
            zero.advance(&store).unwrap();
            assert_eq!(zero.roster(), None, "it went on alone");
        }
        one.waits_in_vain();
        until_all_meet(&mut [&mut zero, &mut one], &store).unwrap();
        assert_eq!((zero.roster(), one.roster()), (Some((2, &[0, 1][..])), Some((2, &[0, 1][..]))));
    }

    #[test]
    fn who_is_late_because_an_operation_took_all_its_time_is_in() {
        let (store, start) = (store(), Instant::now());
        let mut zero = Worker::shrinks(0, &[0, 1], start);
        let mut one = Worker::shrinks(1, &[0, 1], start + COMPUTE + SETTLE_TIME);
        until_all_meet(&mut [&mut zero, &mut one], &store).unwrap();
        assert_eq!((zero.roster(), one.roster()), (Some((1, &[0, 1][..])), Some((1, &[0, 1][..]))));
    }

    #[test]
    fn an_error_says_why_the_attempt_before_failed() {
        let (store, start) = (store(), Instant::now());
        let [mut zero, mut one] = [0, 1].map(|worker| Worker::shrinks(worker, &[0, 1], start));
        until_all_meet(&mut [&mut zero, &mut one], &store).unwrap();
        zero.waits_in_vain();
        zero.now += 2 * (START + COMPUTE);
        let error = until_all_meet(&mut [&mut zero], &store).unwrap_err().to_string();
        assert!(error.contains("generation 2 did not form: workers [0] came"), "{error}");
        assert!(
            error.ends_with("the ranks of generation 1 did not come together: 2 of 3 ranks came"),
            "{error}"
        );
    }

    #[test]
    fn who_is_in_a_roster_and_has_no_time_left_says_so() {
        let (store, start) = (store(), Instant::now());
        let [mut zero, mut one] = [0, 1].map(|worker| Worker::shrinks(worker, &[0, 1], start));
        // It stops when it has announced itself.
        (0..4).for_each(|_| one.advance(&store).unwrap());
        until_all_meet(&mut [&mut zero], &store).unwrap();
        one.now += 2 * (START + COMPUTE);
        let error = until_all_meet(&mut [&mut one], &store).unwrap_err().to_string();
        assert!(
            error.contains("generation 1 has formed, of workers [0, 1], when this rank had no time left"),
            "{error}"
        );
    }
}
