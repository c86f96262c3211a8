//! The workers of the next generation: decided by the one that sees first that all are there, and followed by all.
//!
//! Each worker announces itself under the generation's number, and looks. Once everybody who lives has come it proposes the roster
//! that it sees; the store takes the first proposal, and that counts.

use super::store_heartbeat::StoreHeartbeat;
use super::view::{Admission, Candidate, Decision, Lost, Outlook, View};
use crate::control::reminder::{self, Reminder, Reminding};
use phalanx_core::{Deadline, Error, Result};
use phalanx_rendezvous::{PrefixStore, Store, Workers};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
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

/// A worker that takes part in forming a generation.
pub(crate) struct Party<'a> {
    pub(crate) me: Candidate,
    pub(crate) admission: Admission,
    /// The roster of the generation before, with each worker's name there; empty for a worker that was in none.
    pub(crate) before: Vec<u64>,
    pub(crate) names: BTreeMap<u64, String>,
    /// The workers that are known to be lost by now.
    pub(crate) lost: &'a dyn Fn() -> Lost,
    pub(crate) heartbeat: Option<Arc<StoreHeartbeat>>,
    pub(crate) limits: WaitLimits,
    /// Says that this worker has waited for long, and for whom.
    pub(crate) say: &'a dyn Fn(&str),
}

impl Party<'_> {
    /// Agrees with the others on `generation`. Returns what was decided, with or without this worker.
    ///
    /// Workers that live are waited for as long as an operation may take. A new worker waits as long: it must not begin a job of its own
    /// beside those who only take long to notice a loss.
    ///
    /// # Errors
    /// Those of the store, and [`Error::Rendezvous`] if too few have come by the deadline, or all who could have let a new worker in are
    /// gone and have done the work.
    pub(crate) fn agree(
        &self,
        store: &Arc<dyn Store>,
        generation: u64,
        deadline: &Deadline,
    ) -> Result<Decision> {
        let corner = corner(store, generation);
        let begun = Instant::now();
        let mut first_seen = BTreeMap::new();
        let mut too_few_since = None;
        let mut reminder = Reminder::new(self.limits.compute, Duration::ZERO);
        announce(&corner, &self.me)?;
        loop {
            let announced: Vec<Candidate> = read(corner.try_get(ANNOUNCED)?)?.unwrap_or_default();
            let (launcher, lost) = (Workers::read(store)?, (self.lost)());
            let now = Instant::now();
            let waited = now - begun;
            let is_guest = self.me.rank.is_none() && generation > 0;
            let silent = self.look_at(&announced, &lost);
            // A guest doesn't know who of the others has begun.
            let stuck = match &launcher {
                Some(launcher) if !is_guest => {
                    let starting = launcher.living().filter(|worker| !self.before.contains(worker));
                    let half = self.limits.start / 2;
                    starting.filter(|&w| now - *first_seen.entry(w).or_insert(now) >= half).collect()
                }
                _ => BTreeSet::new(),
            };
            let view = View {
                admission: self.admission,
                announced: &announced,
                before: &self.before,
                launcher: launcher.as_ref(),
                lost: &lost,
                silent: &silent,
                stuck: &stuck,
                waited,
                overdue: waited >= self.limits.compute && !is_guest,
                started: waited >= self.limits.start / 2 && !is_guest,
                is_guest,
            };
            // In the first generation all are new, and nothing has been done.
            if is_guest && view.is_done() {
                let what = "the job has been done: a rank has succeeded, and nobody is left who could let this process in";
                return Err(self.failed(what.into(), waited));
            }
            let outlook = view.outlook();
            too_few_since = too_few_since.filter(|_| outlook == Outlook::TooFew);
            let mut hopeless = deadline.has_passed(now);
            match outlook {
                Outlook::Decide(decision) => drop(corner.compare_set(DECISION, None, &encode(&decision))?),
                Outlook::TooFew => {
                    hopeless |= now - *too_few_since.get_or_insert(now) >= self.limits.start / 2;
                }
                Outlook::Wait(absent) => {
                    if reminder.poll(waited) == Reminding::Say {
                        (self.say)(&self.awaited(&absent, waited));
                    }
                }
            }
            match corner.get(DECISION, &Deadline::after(now, LOOK_INTERVAL.min(deadline.remaining(now)))) {
                Ok(decision) => return read(Some(decision))?.ok_or_else(|| Error::config("no decision")),
                Err(Error::Rendezvous { .. }) if !hopeless => {}
                Err(Error::Rendezvous { .. }) => {
                    let here: Vec<u64> = announced.iter().map(|c| c.worker).collect();
                    let before = &self.before;
                    let gone: Vec<_> = lost.gone.union(&silent).collect();
                    let what = format!(
                        "generation {generation} did not form: workers {here:?} came, {before:?} were there before, {gone:?} are lost"
                    );
                    return Err(self.failed(what, begun.elapsed()));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The workers that show no sign of life any more: of those that have announced themselves, and of the survivors before them.
    fn look_at(&self, announced: &[Candidate], lost: &Lost) -> BTreeSet<u64> {
        let Some(heartbeat) = &self.heartbeat else { return BTreeSet::new() };
        let here: BTreeSet<u64> = announced.iter().map(|c| c.worker).collect();
        heartbeat.watch(here.iter().chain(&self.before).copied().collect());
        if lost.arbiter {
            // A survivor that has not heard of any trouble yet does not beat.
            let absent = self.before.iter().filter(|w| !here.contains(w) && !lost.gone.contains(w));
            heartbeat.heard(absent.copied());
        }
        heartbeat.silent()
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

    fn failed(&self, what: String, waited: Duration) -> Error {
        Error::Rendezvous { rank: 0, world_size: 0, what, waited }
    }
}

/// The first generation of which nothing is decided.
pub(crate) fn forming(store: &Arc<dyn Store>) -> Result<u64> {
    let mut generation = 0;
    while corner(store, generation).try_get(DECISION)?.is_some() {
        generation += 1;
    }
    Ok(generation)
}

/// The first generation from this one on that was not refused.
pub(crate) fn not_refused(store: &Arc<dyn Store>, mut generation: u64) -> Result<u64> {
    while let Some(Decision::Refused(_)) = read(corner(store, generation).try_get(DECISION)?)? {
        generation += 1;
    }
    Ok(generation)
}

/// How many new workers have announced themselves for `generation`, whose roster is open, and have not ended.
pub(crate) fn waiting(store: &Arc<dyn Store>, generation: u64) -> Result<usize> {
    let announced: Vec<Candidate> = read(corner(store, generation).try_get(ANNOUNCED)?)?.unwrap_or_default();
    let ended = Workers::read(store)?.map(|workers| workers.ended).unwrap_or_default();
    Ok(announced.iter().filter(|c| c.rank.is_none() && !ended.contains(&c.worker)).count())
}

/// The part of the job's store for one generation.
pub(crate) fn corner(store: &Arc<dyn Store>, generation: u64) -> PrefixStore<Arc<dyn Store>> {
    PrefixStore::new(format!("generation {generation}"), store.clone())
}

/// Adds `me` to those who want to be in the generation.
fn announce(corner: &impl Store, me: &Candidate) -> Result<()> {
    loop {
        let present = corner.try_get(ANNOUNCED)?;
        let mut all: Vec<Candidate> = read(present.clone())?.unwrap_or_default();
        all.retain(|c| c.worker != me.worker);
        all.push(me.clone());
        // Each failure is another worker's success, so this ends.
        if corner.compare_set(ANNOUNCED, present.as_deref(), &encode(&all))? {
            return Ok(());
        }
    }
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("numbers and words are plain data")
}

fn read<T: DeserializeOwned>(bytes: Option<Vec<u8>>) -> Result<Option<T>> {
    let decoded = bytes.map(|bytes| postcard::from_bytes(&bytes)).transpose();
    decoded.map_err(|e| Error::config(format!("what the store says of a generation cannot be read: {e}")))
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::{call, new, old, workers};
    use super::*;
    use phalanx_core::OpKind;
    use phalanx_rendezvous::{Elastic, MemoryStore};
    use std::thread;

    fn no_loss() -> Lost {
        Lost::default()
    }

    fn party<'a>(me: Candidate, before: &[u64], lost: &'a dyn Fn() -> Lost, limit: Duration) -> Party<'a> {
        Party {
            me,
            admission: Admission::Survivors,
            before: before.to_vec(),
            names: BTreeMap::new(),
            lost,
            heartbeat: None,
            limits: WaitLimits { start: limit, compute: limit },
            say: &|_| {},
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
                        party(old(worker, worker as usize), before, lost, LONG).agree(store, 1, &after(LONG))
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
            party.agree(&store, 3, &after(LONG))
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
            say: &say,
            ..party(old(0, 0), &[0, 1], &no_loss, Duration::from_secs(3))
        };
        party.agree(&store, 1, &after(LONG)).unwrap();
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
            party(me, &[0, 1], &no_loss, LONG).agree(&store, generation, &after(LONG)).unwrap()
        };
        let both = |ops: [OpKind; 2], generation| {
            thread::scope(|scope| {
                let other = scope.spawn(|| come(1, ops[1], generation));
                [come(0, ops[0], generation), other.join().unwrap()]
            })
        };
        let refused = Decision::Refused(Box::new([call(0, OpKind::Shrink), call(1, OpKind::Rejoin)]));
        assert_eq!(both([OpKind::Shrink, OpKind::Rejoin], 1), [refused.clone(), refused]);
        let next = not_refused(&store, 1).unwrap();
        assert_eq!((next, forming(&store).unwrap()), (2, 0));
        assert_eq!(both([OpKind::Shrink; 2], next), [roster([0, 1]), roster([0, 1])]);
    }

    #[test]
    fn a_new_worker_begins_no_job_of_its_own() {
        let store = store();
        workers(3, [1]).publish(&store).unwrap();
        assert_eq!(forming(&store).unwrap(), 0);
        corner(&store, 0).set(DECISION, &encode(&roster([0, 1]))).unwrap();
        assert_eq!(forming(&store).unwrap(), 1);
        assert_eq!(waiting(&store, 1).unwrap(), 0);
        let short = Duration::from_millis(200);
        let guest = Party {
            admission: Admission::Elastic(Elastic::new(1, 2).unwrap()),
            ..party(new(2), &[], &no_loss, short)
        };
        let error = guest.agree(&store, 1, &after(short)).unwrap_err();
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
            let error = guest.agree(&store, 1, &after(LONG)).unwrap_err().to_string();
            assert!(error.contains("the job has been done"), "{error}");
        }
    }
}
