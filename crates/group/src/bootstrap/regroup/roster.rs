//! The workers of the next generation: decided by the one that sees first that all are there, and followed by all.
//!
//! Each worker announces itself under the generation's number, and looks. Once everybody who lives has come it proposes the roster
//! that it sees; the store takes the first proposal, and that counts. A state machine without a clock or a store.

use super::ask::{Answer, Ask};
use super::view::{Admission, Candidate, Decision, Lost, Outlook, View};
use super::watch::Watch;
use crate::control::failure_report::SETTLE_TIME;
use crate::control::reminder::{self, Reminder, Reminding};
use phalanx_core::{Deadline, Error, Result};
use phalanx_rendezvous::{PrefixStore, Store, Workers};
use phalanx_transport::sabotage::{Mechanism, breaks};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The announcements so far.
const ANNOUNCED: &str = "announced";
/// The key of the decision.
const DECISION: &str = "roster";
/// How often a waiting worker looks who has come, or has been lost.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// How long others are waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitLimits {
    /// Processes that were started and have not called `init`, and so many that the group is large enough: half of this.
    pub(crate) start: Duration,
    /// Survivors that live, and compute.
    pub(crate) compute: Duration,
}

/// What an operation may take besides its limit, if it ends in that: until it is settled what went wrong first, and the program has called
/// again.
const RETURN_TIME: Duration = SETTLE_TIME.saturating_add(Duration::from_secs(1));

impl WaitLimits {
    /// Of workers whose operations may take so long.
    pub(crate) fn new(start: Duration, operation: Duration) -> Self {
        // A survivor may be in an operation that began when the others had heard of the loss, in a group that has not heard of it.
        Self { start, compute: operation.saturating_add(RETURN_TIME) }
    }
}

/// A worker that takes part in forming a generation.
pub(crate) struct Party<'a> {
    pub(crate) me: Candidate,
    pub(crate) admission: Admission,
    /// The roster of the generation before, with each worker's name there; empty for a worker that was in none.
    pub(crate) before: Vec<u64>,
    pub(crate) names: BTreeMap<u64, String>,
    /// The workers that are known to be lost by now.
    pub(crate) lost: Box<dyn Fn() -> Lost + Send + 'a>,
    pub(crate) watch: Option<Arc<Watch>>,
    pub(crate) limits: WaitLimits,
    /// Says that this worker has waited for long, and for whom.
    pub(crate) say: Box<dyn Fn(&str) + Send + 'a>,
}

impl fmt::Debug for Party<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Party").field("me", &self.me).field("before", &self.before).finish_non_exhaustive()
    }
}

/// When processes that start were seen first.
pub(crate) type FirstSeen = BTreeMap<u64, Instant>;

/// By when it must be decided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Until {
    pub(crate) some_came: Deadline,
    /// From then on nobody else is waited for where all of the generation before have come: nobody is lost.
    pub(crate) all_came: Deadline,
}

impl Until {
    /// In either case.
    pub(crate) fn either(deadline: Deadline) -> Self {
        Self { all_came: deadline, some_came: deadline }
    }
}

/// One worker's part in the agreement on a generation.
///
/// Workers that live are waited for as long as an operation may take. A new worker waits as long: it must not begin a job of its own
/// beside those who only take long to notice a loss.
#[derive(Debug)]
pub(crate) struct Agreement {
    generation: u64,
    begun: Instant,
    until: Until,
    /// Since when this worker knows those that were started, and have not come.
    first_seen: FirstSeen,
    too_few_since: Option<Instant>,
    reminder: Reminder,
    asked: Question,
    /// Those who have announced themselves, the workers that are lost, and what keeps the generation from forming, as they were seen last.
    announced: Vec<Candidate>,
    gone: BTreeSet<u64>,
    lacking: String,
    /// There is no time left.
    hopeless: bool,
}

/// What the store was asked last.
#[derive(Debug, Clone, Copy)]
enum Question {
    /// Which workers have announced themselves.
    Others,
    /// To add this worker to them.
    Announce,
    /// Which workers have announced themselves by now, this one among them.
    Announced,
    /// What the launcher says.
    Workers,
    /// To take this worker's proposal.
    Propose,
    /// What was decided.
    Decided,
}

/// What follows from an answer.
#[derive(Debug)]
pub(crate) enum Next {
    Ask(Ask),
    /// It was decided, with or without this worker.
    Decided(Decision),
}

impl Agreement {
    /// Begins to agree with the others on `generation`. Ask this first.
    pub(crate) fn begin(
        party: &Party<'_>,
        generation: u64,
        until: Until,
        first_seen: FirstSeen,
        now: Instant,
    ) -> (Self, Ask) {
        let agreement = Self {
            generation,
            begun: now,
            until,
            first_seen,
            too_few_since: None,
            reminder: Reminder::new(party.limits.compute, Duration::ZERO),
            asked: Question::Others,
            announced: Vec::new(),
            gone: BTreeSet::new(),
            lacking: String::new(),
            hopeless: false,
        };
        let ask = Ask::TryGet(agreement.key(ANNOUNCED));
        (agreement, ask)
    }

    /// Takes the answer to what was asked last.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if too few have come by the deadline, or all who could have let a new worker in are gone and have done the
    /// work; [`Error::Config`] if what stands in the store can't be read.
    pub(crate) fn step(&mut self, party: &Party<'_>, answer: Answer, now: Instant) -> Result<Next> {
        let (asked, ask) = match self.asked {
            Question::Others => {
                let present = answer.value()?;
                let mut all: Vec<Candidate> = read(present.as_deref())?.unwrap_or_default();
                all.retain(|c| c.worker != party.me.worker);
                all.push(party.me.clone());
                (Question::Announce, Ask::CompareSet(self.key(ANNOUNCED), present, encode(&all)))
            }
            // Each failure is another worker's success, so this ends.
            Question::Announce if answer == Answer::Changed(false) && !breaks(Mechanism::Announcement) => {
                (Question::Others, Ask::TryGet(self.key(ANNOUNCED)))
            }
            Question::Announce => self.look(),
            Question::Announced => {
                self.announced = read(answer.value()?.as_deref())?.unwrap_or_default();
                (Question::Workers, Ask::TryGet(Workers::KEY.into()))
            }
            Question::Workers => {
                let launcher = answer.value()?.map(|value| Workers::parse(&value)).transpose()?;
                self.judge(party, launcher.as_ref(), now)?
            }
            Question::Propose => self.await_decision(now),
            Question::Decided => match answer.value()? {
                Some(decision) => {
                    return read(Some(&decision))?
                        .map(Next::Decided)
                        .ok_or_else(|| Error::config("no decision"));
                }
                None if self.hopeless => return Err(self.failed(party, now)),
                None => self.look(),
            },
        };
        self.asked = asked;
        Ok(Next::Ask(ask))
    }

    fn key(&self, name: &str) -> String {
        key(self.generation, name)
    }

    fn look(&self) -> (Question, Ask) {
        (Question::Announced, Ask::TryGet(self.key(ANNOUNCED)))
    }

    /// What the next agreement of this worker begins with.
    pub(crate) fn take_first_seen(&mut self) -> FirstSeen {
        std::mem::take(&mut self.first_seen)
    }

    fn await_decision(&self, now: Instant) -> (Question, Ask) {
        let limit = LOOK_INTERVAL.min(self.until.some_came.remaining(now));
        (Question::Decided, Ask::Get(self.key(DECISION), limit))
    }

    /// All was looked at: whether it can be decided.
    fn judge(
        &mut self,
        party: &Party<'_>,
        launcher: Option<&Workers>,
        now: Instant,
    ) -> Result<(Question, Ask)> {
        let (waited, limits, lost) = (now - self.begun, party.limits, (party.lost)());
        let is_guest = party.me.rank.is_none() && self.generation > 0;
        let silent = party.look_at(&self.announced, &lost, now);
        // A guest doesn't know who of the others has begun.
        let stuck = match launcher {
            Some(launcher) if !is_guest => {
                let starting = launcher.living().filter(|worker| !party.before.contains(worker));
                let half = limits.start / 2;
                starting.filter(|&w| now - *self.first_seen.entry(w).or_insert(now) >= half).collect()
            }
            _ => BTreeSet::new(),
        };
        let mut view = View {
            admission: party.admission,
            announced: &self.announced,
            before: &party.before,
            launcher,
            lost: &lost,
            silent: &silent,
            stuck: &stuck,
            waited,
            overdue: waited >= limits.compute && !is_guest,
            started: waited >= limits.start / 2 && !is_guest,
            is_guest,
        };
        // In the first generation all are new, and nothing has been done.
        if is_guest && view.is_done() {
            let what = "the job has been done: a rank has succeeded, and nobody is left who could let this process in";
            return Err(failed(what.into(), waited));
        }
        let is_over = self.until.all_came.has_passed(now) && view.all_came();
        view.overdue |= is_over;
        let outlook = view.outlook();
        self.gone = lost.gone.union(&silent).copied().collect();
        self.too_few_since = self.too_few_since.filter(|_| outlook == Outlook::TooFew);
        self.hopeless = self.until.some_came.has_passed(now);
        match outlook {
            // When the time is over, only what the others have decided counts.
            Outlook::Decide(_) if self.hopeless => self.lacking = "all have come too late".into(),
            Outlook::Decide(decision) => {
                let (key, value) = (self.key(DECISION), encode(&decision));
                let ask = match breaks(Mechanism::FirstProposal) {
                    true => Ask::Set(key, value),
                    false => Ask::CompareSet(key, None, value),
                };
                return Ok((Question::Propose, ask));
            }
            Outlook::TooFew => {
                self.hopeless |= is_over || now - *self.too_few_since.get_or_insert(now) >= limits.start / 2;
                self.lacking = match party.admission {
                    Admission::Elastic(size) => format!("it takes {} of them", size.min()),
                    Admission::Survivors => "none of them is a survivor".into(),
                };
            }
            Outlook::Wait(absent) => {
                self.hopeless |= is_over;
                if self.reminder.poll(waited) == Reminding::Say {
                    (party.say)(&party.awaited(&absent, waited));
                }
                self.lacking = format!("{absent:?} have not come");
            }
        }
        Ok(self.await_decision(now))
    }

    fn failed(&self, party: &Party<'_>, now: Instant) -> Error {
        let here: Vec<u64> = self.announced.iter().map(|c| c.worker).collect();
        // This worker has come, whatever the others took it for.
        let me = party.me.worker;
        let gone: BTreeSet<u64> = self.gone.iter().copied().filter(|&worker| worker != me).collect();
        let (generation, before, lacking) = (self.generation, &party.before, &self.lacking);
        let what = format!(
            "generation {generation} did not form: workers {here:?} came, {before:?} were there before, {gone:?} are lost; {lacking}"
        );
        failed(what, now - self.begun)
    }
}

impl Party<'_> {
    /// The workers that show no sign of life any more: of those that have announced themselves, and of the survivors before them.
    fn look_at(&self, announced: &[Candidate], lost: &Lost, now: Instant) -> BTreeSet<u64> {
        let Some(watch) = &self.watch else { return BTreeSet::new() };
        let here: BTreeSet<u64> = announced.iter().map(|c| c.worker).collect();
        watch.over(here.iter().chain(&self.before).copied().collect(), now);
        if lost.unaware {
            let absent = self.before.iter().filter(|w| !here.contains(w) && !lost.gone.contains(w));
            watch.heard(absent.copied(), now);
        }
        watch.silent()
    }

    fn awaited(&self, absent: &BTreeSet<u64>, waited: Duration) -> String {
        let named = |worker: &u64| match self.names.get(worker) {
            Some(name) => name.clone(),
            None if self.me.rank.is_none() => format!("worker {worker} to let this process in"),
            None => format!("worker {worker}, which is starting"),
        };
        let awaited: Vec<String> = absent.iter().map(named).collect();
        match &self.me.call {
            Some((_, call)) => reminder::words(&awaited, call, 0, "world", waited),
            None => format!("{}, for {:.0} s", reminder::waiting_for(&awaited), waited.as_secs_f64()),
        }
    }
}

fn failed(what: String, waited: Duration) -> Error {
    Error::Rendezvous { rank: 0, world_size: 0, what, waited }
}

/// Asks what was decided about `generation`; [`decision`] reads the answer.
pub(crate) fn ask_decision(generation: u64) -> Ask {
    Ask::TryGet(key(generation, DECISION))
}

/// What was decided, if anything.
///
/// # Errors
/// [`Error::Config`]: it can't be read.
pub(crate) fn decision(answer: Answer) -> Result<Option<Decision>> {
    read(answer.value()?.as_deref())
}

/// How many new workers have announced themselves for `generation`, whose roster is open, and have not ended.
pub(crate) fn waiting(store: &Arc<dyn Store>, generation: u64) -> Result<usize> {
    let announced: Vec<Candidate> =
        read(store.try_get(&key(generation, ANNOUNCED))?.as_deref())?.unwrap_or_default();
    let ended = Workers::read(store)?.map(|workers| workers.ended).unwrap_or_default();
    Ok(announced.iter().filter(|c| c.rank.is_none() && !ended.contains(&c.worker)).count())
}

/// The part of the job's store for one generation.
pub(crate) fn corner(store: &Arc<dyn Store>, generation: u64) -> PrefixStore<Arc<dyn Store>> {
    PrefixStore::new(prefix(generation), store.clone())
}

fn prefix(generation: u64) -> String {
    format!("generation {generation}")
}

/// A key in that part.
fn key(generation: u64, name: &str) -> String {
    format!("{}/{name}", prefix(generation))
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("numbers and words are plain data")
}

fn read<T: DeserializeOwned>(bytes: Option<&[u8]>) -> Result<Option<T>> {
    let decoded = bytes.map(postcard::from_bytes).transpose();
    decoded.map_err(|e| Error::config(format!("what the store says of a generation cannot be read: {e}")))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::forming::{agree, seek};
    use super::super::view::tests::{call, new, old, workers};
    use super::*;
    use phalanx_core::OpKind;
    use phalanx_rendezvous::{Elastic, MemoryStore};
    use std::thread;

    pub(crate) fn no_loss() -> Lost {
        Lost::default()
    }

    pub(crate) fn party<'a>(
        me: Candidate,
        before: &[u64],
        lost: &'a (dyn Fn() -> Lost + Sync),
        limit: Duration,
    ) -> Party<'a> {
        Party {
            me,
            admission: Admission::Survivors,
            before: before.to_vec(),
            names: BTreeMap::new(),
            lost: Box::new(lost),
            watch: None,
            limits: WaitLimits { start: limit, compute: limit },
            say: Box::new(|_| {}),
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    fn after(limit: Duration) -> Deadline {
        Deadline::after(Instant::now(), limit)
    }

    fn store() -> Arc<dyn Store> {
        Arc::new(MemoryStore::new())
    }

    fn roster(workers: impl Into<Vec<u64>>) -> Decision {
        Decision::Roster(workers.into())
    }

    #[test]
    fn all_follow_one_roster_whoever_comes_when() {
        for seed in 0..20u64 {
            let store = store();
            let before: Vec<u64> = (0..6).collect();
            let gone = BTreeSet::from([seed % 6]);
            let lost = || Lost { gone: gone.clone(), ..Lost::default() };
            let decisions: Vec<_> = thread::scope(|scope| {
                let survivors = before.iter().filter(|w| !gone.contains(w));
                let threads = survivors.map(|&worker| {
                    let (store, before, lost) = (&store, &before, &lost);
                    scope.spawn(move || {
                        thread::sleep(Duration::from_millis((worker * 7 + seed * 3) % 11));
                        let party = party(old(worker, worker as usize), before, lost, LONG);
                        agree(&party, store, 1, after(LONG))
                    })
                });
                threads.collect::<Vec<_>>().into_iter().map(|t| t.join().unwrap().unwrap()).collect()
            });
            let expected = roster((0..6).filter(|w| !gone.contains(w)).collect::<Vec<u64>>());
            assert!(decisions.iter().all(|decision| *decision == expected), "{decisions:?}");
        }
    }

    #[test]
    fn who_comes_later_than_an_operation_may_take_finds_a_roster_without_it() {
        let store = store();
        let come = |worker: u64| {
            let party = party(old(worker, worker as usize), &[0, 1], &no_loss, Duration::from_millis(200));
            agree(&party, &store, 3, after(LONG))
        };
        assert_eq!(come(0).unwrap(), roster([0]), "worker 1 was waited for");
        assert_eq!(come(1).unwrap(), roster([0]));
    }

    #[test]
    fn who_is_waited_for_is_said() {
        let said = std::sync::Mutex::new(Vec::new());
        let say = |words: &str| said.lock().unwrap().push(words.to_owned());
        let store = store();
        let party = Party {
            names: BTreeMap::from([(1, "rank 1 (h)".to_owned())]),
            say: Box::new(say),
            ..party(old(0, 0), &[0, 1], &no_loss, Duration::from_secs(3))
        };
        agree(&party, &store, 1, after(LONG)).unwrap();
        drop(party);
        let said = said.lock().unwrap();
        assert!(
            said[0].starts_with("still waiting for rank 1 (h) in shrink of world (train.rs:0), for "),
            "{said:?}"
        );
    }

    #[test]
    fn a_shrink_beside_a_rejoin_ends_on_both_and_both_may_try_again() {
        let store = store();
        let come = |rank: usize, op: OpKind, generation: u64| {
            let me = Candidate { call: Some(call(rank, op)), ..old(rank as u64, rank) };
            agree(&party(me, &[0, 1], &no_loss, LONG), &store, generation, after(LONG)).unwrap()
        };
        let both = |ops: [OpKind; 2], generation| {
            thread::scope(|scope| {
                let other = scope.spawn(|| come(1, ops[1], generation));
                [come(0, ops[0], generation), other.join().unwrap()]
            })
        };
        let refused = Decision::Refused(Box::new([call(0, OpKind::Shrink), call(1, OpKind::Rejoin)]));
        assert_eq!(both([OpKind::Shrink, OpKind::Rejoin], 1), [refused.clone(), refused]);
        let next = seek(party(old(0, 0), &[0, 1], &no_loss, LONG), &store, 1);
        assert_eq!((next, seek(party(new(2), &[], &no_loss, LONG), &store, 0)), (2, 0));
        assert_eq!(both([OpKind::Shrink; 2], next), [roster([0, 1]), roster([0, 1])]);
    }

    #[test]
    fn a_new_worker_begins_no_job_of_its_own() {
        let store = store();
        workers(3, [1]).publish(&store).unwrap();
        let sought = || seek(party(new(2), &[], &no_loss, LONG), &store, 0);
        assert_eq!(sought(), 0);
        corner(&store, 0).set(DECISION, &encode(&roster([0, 1]))).unwrap();
        assert_eq!(sought(), 1);
        assert_eq!(waiting(&store, 1).unwrap(), 0);
        let short = Duration::from_millis(200);
        let guest = Party {
            admission: Admission::Elastic(Elastic::new(1, 2).unwrap()),
            ..party(new(2), &[], &no_loss, short)
        };
        let error = agree(&guest, &store, 1, after(short)).unwrap_err();
        assert!(error.to_string().contains("generation 1 did not form: workers [2] came"), "{error}");
        assert_eq!(waiting(&store, 1).unwrap(), 1);
        workers(3, [1, 2]).publish(&store).unwrap();
        assert_eq!(waiting(&store, 1).unwrap(), 0);
    }

    #[test]
    fn a_new_worker_does_not_do_again_what_the_others_have_done() {
        let store = store();
        corner(&store, 0).set(DECISION, &encode(&roster([0, 1, 2]))).unwrap();
        // The others go on without worker 2, which ends when it comes to, and succeed while its replacement waits.
        for min in [1, 2] {
            Workers { succeeded: true, ..workers(4, [2, 1, 0]) }.publish(&store).unwrap();
            let guest = Party {
                admission: Admission::Elastic(Elastic::new(min, 3).unwrap()),
                ..party(new(3), &[], &no_loss, LONG)
            };
            let error = agree(&guest, &store, 1, after(LONG)).unwrap_err().to_string();
            assert!(error.contains("the job has been done"), "{error}");
        }
    }
}
