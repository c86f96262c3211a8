//! Who is in the next generation: decided by whoever sees first that all are there, and followed by all.
//!
//! Each worker announces itself under the generation's number, and looks. Once everybody who is to come has come, or half of the
//! time is over, it proposes the roster it sees; the store takes the first proposal, and that counts.

use phalanx_core::{Deadline, Error, Result};
use phalanx_rendezvous::{Elastic, PrefixStore, Store, Workers};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The announcements so far.
const ANNOUNCED: &str = "announced";
/// The workers in rank order, once that is decided.
const ROSTER: &str = "roster";
/// How often a waiting worker looks who has come, or has been lost.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How long the launcher may take to say that a lost worker has ended, and who replaces it. One that it does not end is stopped
/// or cut off.
const LAUNCHER_TIME: Duration = Duration::from_secs(5);

/// A worker that wants to be in the generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Candidate {
    pub(crate) worker: u64,
    /// Where it stood in the roster before; `None`: it is new, and has nothing that the others could need.
    pub(crate) rank: Option<usize>,
}

/// Who may be in the generation.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Admission {
    /// Who was in the one before.
    Survivors,
    /// Replacements too.
    Elastic(Elastic),
}

/// What one worker sees while the generation forms.
struct View<'a> {
    admission: Admission,
    announced: &'a [Candidate],
    /// The roster of the generation before; empty for a worker that was in none.
    before: &'a [u64],
    /// What the launcher says, if it does.
    launcher: Option<&'a Workers>,
    /// Who is lost as far as the arbiter of the generation before knows.
    lost: &'a BTreeSet<u64>,
    waited: Duration,
    /// Waiting for the others has taken long enough.
    overdue: bool,
}

impl View<'_> {
    /// Survivors first, in their old order, so that rank 0 has the state if anybody has.
    fn roster(&self) -> Option<Vec<u64>> {
        let ended = |worker: &u64| self.launcher.is_some_and(|l| l.ended.contains(worker));
        // Not without those who are said to be lost: who has announced itself since then is there, and was only cut off.
        let mut here: Vec<&Candidate> = self.announced.iter().filter(|c| !ended(&c.worker)).collect();
        let has_come = |worker: u64| here.iter().any(|c| c.worker == worker);
        let (complete, min, max) = match (self.admission, self.launcher) {
            (Admission::Survivors, _) => {
                let gone = |w: &u64| self.lost.contains(w) || ended(w);
                (self.before.iter().all(|w| gone(w) || has_come(*w)), 1, self.before.len())
            }
            (Admission::Elastic(size), Some(launcher)) => {
                let given_up = |w: &u64| self.lost.contains(w) && self.waited >= LAUNCHER_TIME;
                (launcher.living().all(|w| given_up(&w) || has_come(w)), size.min(), size.max())
            }
            (Admission::Elastic(size), None) => (here.len() >= size.max(), size.min(), size.max()),
        };
        if let Admission::Survivors = self.admission {
            here.retain(|c| c.rank.is_some());
        }
        here.sort_by_key(|c| (c.rank.unwrap_or(usize::MAX), c.worker));
        let roster: Vec<u64> = here.iter().take(max).map(|c| c.worker).collect();
        (roster.len() >= min && (complete || self.overdue)).then_some(roster)
    }

    /// Whether the job has been done without those who are left: they are all new, and would do it again from the beginning.
    fn is_done(&self) -> bool {
        let is_new = |worker: u64| self.announced.iter().any(|c| c.worker == worker && c.rank.is_none());
        self.launcher.is_some_and(|launcher| launcher.succeeded && launcher.living().all(is_new))
    }
}

/// Agrees with the others on the roster of `generation`: the workers in rank order. `lost` says who of those `before` is known to
/// be lost by now. Returns when the roster is closed, with or without `me`.
///
/// Half of `deadline` is for those who do not come; the other half is for coming together. A new worker waits for all of
/// it: it must not begin a job of its own beside those who only take long to notice a loss.
///
/// # Errors
/// Those of the store, and [`Error::Rendezvous`] if too few have come by the deadline, or all who could have let a new worker in are gone
/// and have done the work.
pub(crate) fn agree(
    store: &Arc<dyn Store>,
    generation: u64,
    me: &Candidate,
    admission: Admission,
    before: &[u64],
    lost: &dyn Fn() -> BTreeSet<u64>,
    deadline: &Deadline,
) -> Result<Vec<u64>> {
    let corner = corner(store, generation);
    let begun = Instant::now();
    let patience = Deadline::after(begun, deadline.remaining(begun) / 2);
    announce(&corner, me)?;
    loop {
        let announced: Vec<Candidate> = read(corner.try_get(ANNOUNCED)?)?.unwrap_or_default();
        let (launcher, lost) = (Workers::read(store)?, lost());
        let now = Instant::now();
        let view = View {
            admission,
            announced: &announced,
            before,
            launcher: launcher.as_ref(),
            lost: &lost,
            waited: patience.elapsed(now),
            overdue: patience.has_passed(now) && (me.rank.is_some() || generation == 0),
        };
        // In the first generation all are new, and nothing has been done.
        if me.rank.is_none() && generation > 0 && view.is_done() {
            let what = "the job has been done: a rank has succeeded, and nobody is left who could let this process in";
            let waited = deadline.elapsed(now);
            return Err(Error::Rendezvous { rank: 0, world_size: 0, what: what.into(), waited });
        }
        if let Some(roster) = view.roster() {
            corner.compare_set(ROSTER, None, &encode(&roster))?;
        }
        match corner.get(ROSTER, &Deadline::after(now, LOOK_INTERVAL.min(deadline.remaining(now)))) {
            Ok(roster) => return Ok(read(Some(roster))?.unwrap_or_default()),
            Err(Error::Rendezvous { .. }) if !deadline.has_passed(Instant::now()) => {}
            Err(Error::Rendezvous { .. }) => {
                let here: Vec<u64> = announced.iter().map(|c| c.worker).collect();
                let what = format!(
                    "generation {generation} did not form: workers {here:?} came, {before:?} were there before, {:?} are lost",
                    view.lost
                );
                let waited = deadline.elapsed(Instant::now());
                return Err(Error::Rendezvous { rank: 0, world_size: 0, what, waited });
            }
            Err(error) => return Err(error),
        }
    }
}

/// The first generation whose roster is not closed.
pub(crate) fn forming(store: &Arc<dyn Store>) -> Result<u64> {
    let mut generation = 0;
    while corner(store, generation).try_get(ROSTER)?.is_some() {
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
    postcard::to_stdvec(value).expect("numbers are plain data")
}

fn read<T: DeserializeOwned>(bytes: Option<Vec<u8>>) -> Result<Option<T>> {
    let decoded = bytes.map(|bytes| postcard::from_bytes(&bytes)).transpose();
    decoded.map_err(|e| Error::config(format!("what the store says of a generation cannot be read: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_rendezvous::MemoryStore;
    use std::thread;

    fn old(worker: u64, rank: usize) -> Candidate {
        Candidate { worker, rank: Some(rank) }
    }

    fn new(worker: u64) -> Candidate {
        Candidate { worker, rank: None }
    }

    fn workers<const N: usize>(started: u64, ended: [u64; N]) -> Workers {
        Workers { started, ended: ended.into(), succeeded: false }
    }

    static NOBODY: BTreeSet<u64> = BTreeSet::new();

    fn view<'a>(announced: &'a [Candidate], before: &'a [u64], lost: &'a BTreeSet<u64>) -> View<'a> {
        let waited = Duration::ZERO;
        View {
            admission: Admission::Survivors,
            announced,
            before,
            launcher: None,
            lost,
            waited,
            overdue: false,
        }
    }

    fn elastic(min: usize, max: usize) -> Admission {
        Admission::Elastic(Elastic::new(min, max).unwrap())
    }

    #[test]
    fn survivors_wait_for_each_other_and_keep_their_order() {
        let all = [old(7, 2), old(5, 1), old(9, 3)];
        let before = [3, 5, 7, 9];
        assert_eq!(view(&all, &before, &NOBODY).roster(), None, "worker 3 may still come");
        assert_eq!(view(&all, &before, &BTreeSet::from([3])).roster(), Some(vec![5, 7, 9]));
        assert_eq!(view(&all[..2], &before, &BTreeSet::from([3])).roster(), None);
        let late = View { overdue: true, ..view(&all[..2], &before, &NOBODY) };
        assert_eq!(late.roster(), Some(vec![5, 7]));
    }

    #[test]
    fn who_announced_itself_and_then_ended_is_left_out() {
        let all = [old(0, 0), old(1, 1), old(2, 2)];
        let workers = workers(3, [1]);
        let told = View { launcher: Some(&workers), ..view(&all, &[0, 1, 2], &NOBODY) };
        assert_eq!(told.roster(), Some(vec![0, 2]));
    }

    #[test]
    fn who_was_taken_for_lost_and_comes_is_in() {
        let all = [old(0, 0), old(1, 1), old(2, 2)];
        assert_eq!(view(&all, &[0, 1, 2], &BTreeSet::from([2])).roster(), Some(vec![0, 1, 2]));
    }

    #[test]
    fn replacements_are_waited_for_and_come_last() {
        // Worker 1 is lost, and 4 takes its place.
        let all = [new(4), old(2, 2), old(0, 0), old(3, 3)];
        let (before, lost) = ([0, 1, 2, 3], BTreeSet::from([1]));
        let of = |announced, launcher, waited_s| View {
            admission: elastic(2, 4),
            launcher: Some(launcher),
            waited: Duration::from_secs(waited_s),
            ..view(announced, &before, &lost)
        };
        let unaware = workers(4, []);
        assert_eq!(of(&all[1..], &unaware, 0).roster(), None, "the launcher does not know yet");
        assert_eq!(of(&all[1..], &unaware, 60).roster(), Some(vec![0, 2, 3]), "it is not dead, but stopped");
        let replaced = workers(5, [1]);
        assert_eq!(of(&all[1..], &replaced, 60).roster(), None, "the replacement is on its way");
        assert_eq!(of(&all, &replaced, 0).roster(), Some(vec![0, 2, 3, 4]));
        let exhausted = workers(4, [1]);
        assert_eq!(of(&all[1..], &exhausted, 0).roster(), Some(vec![0, 2, 3]), "nobody replaces it");
    }

    #[test]
    fn an_elastic_generation_has_its_least_and_its_most() {
        let (all, before) = ([old(0, 0), new(5), new(4)], [0, 1]);
        let of = |admission, overdue| View { admission, overdue, ..view(&all, &before, &NOBODY) }.roster();
        assert_eq!(of(elastic(1, 2), false), Some(vec![0, 4]));
        assert_eq!(of(elastic(1, 4), false), None);
        assert_eq!(of(elastic(1, 4), true), Some(vec![0, 4, 5]));
        assert_eq!(of(elastic(4, 4), true), None);
    }

    #[test]
    fn all_follow_one_roster_whoever_comes_when() {
        for seed in 0..20u64 {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            let before: Vec<u64> = (0..6).collect();
            let lost = BTreeSet::from([seed % 6]);
            let rosters: Vec<_> = thread::scope(|scope| {
                let survivors = before.iter().filter(|w| !lost.contains(w));
                let threads = survivors.map(|&worker| {
                    let (store, before, lost) = (&store, &before, &lost);
                    scope.spawn(move || {
                        thread::sleep(Duration::from_millis((worker * 7 + seed * 3) % 11));
                        let deadline = Deadline::after(Instant::now(), Duration::from_secs(60));
                        let me = old(worker, worker as usize);
                        agree(store, 1, &me, Admission::Survivors, before, &|| lost.clone(), &deadline)
                    })
                });
                threads.collect::<Vec<_>>().into_iter().map(|t| t.join().unwrap().unwrap()).collect()
            });
            let expected: Vec<u64> = (0..6).filter(|w| !lost.contains(w)).collect();
            assert!(rosters.iter().all(|roster| *roster == expected), "{rosters:?}");
        }
    }

    #[test]
    fn who_comes_too_late_finds_a_roster_without_it() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let come = |worker: u64| {
            let deadline = Deadline::after(Instant::now(), Duration::from_millis(200));
            let me = old(worker, worker as usize);
            agree(&store, 3, &me, Admission::Survivors, &[0, 1], &BTreeSet::new, &deadline)
        };
        assert_eq!(come(0).unwrap(), [0], "half of the time was waited for worker 1");
        assert_eq!(come(1).unwrap(), [0]);
    }

    #[test]
    fn a_new_worker_begins_no_job_of_its_own() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        workers(3, [1]).publish(&store).unwrap();
        assert_eq!(forming(&store).unwrap(), 0);
        corner(&store, 0).set(ROSTER, &encode(&vec![0u64, 1])).unwrap();
        assert_eq!(forming(&store).unwrap(), 1);
        let deadline = Deadline::after(Instant::now(), Duration::from_millis(200));
        assert_eq!(waiting(&store, 1).unwrap(), 0);
        let error = agree(&store, 1, &new(2), elastic(1, 2), &[], &BTreeSet::new, &deadline).unwrap_err();
        assert!(error.to_string().contains("generation 1 did not form: workers [2] came"), "{error}");
        assert_eq!(waiting(&store, 1).unwrap(), 1);
        workers(3, [1, 2]).publish(&store).unwrap();
        assert_eq!(waiting(&store, 1).unwrap(), 0);
    }

    #[test]
    fn a_new_worker_does_not_do_again_what_the_others_have_done() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        corner(&store, 0).set(ROSTER, &encode(&vec![0u64, 1, 2])).unwrap();
        // The others go on without worker 2, which ends when it comes to, and succeed while its replacement waits.
        for min in [1, 2] {
            Workers { succeeded: true, ..workers(4, [2, 1, 0]) }.publish(&store).unwrap();
            let deadline = Deadline::after(Instant::now(), Duration::from_secs(60));
            let come = agree(&store, 1, &new(3), elastic(min, 3), &[], &BTreeSet::new, &deadline);
            let error = come.unwrap_err().to_string();
            assert!(error.contains("the job has been done"), "{error}");
        }
        // As long as somebody is at work it may be let in; and where all have failed it begins again.
        let is_done = |announced: &[Candidate], workers: &Workers| {
            View { launcher: Some(workers), ..view(announced, &[], &NOBODY) }.is_done()
        };
        let one_is_left = Workers { succeeded: true, ..workers(4, [2, 1]) };
        assert!(!is_done(&[new(3)], &one_is_left) && !is_done(&[new(3), old(0, 0)], &one_is_left));
        assert!(!is_done(&[new(3)], &workers(4, [2, 1, 0])));
    }
}
