//! Generations: the group of all ranks, made anew after a loss.
//!
//! Nothing of a generation is used in the next one: its workers agree in the store on who goes on ([`roster`]), and then
//! come together as at the beginning, with a new arbiter on the new rank 0, new lines and new links. The store is what
//! has to outlive all of them.

pub(crate) mod processes;
pub(crate) mod roster;
pub(crate) mod threads;

use crate::ProcessGroup;
use crate::realm::Realm;
use crate::recommended;
use crate::self_test;
use phalanx_algo::Selector;
use phalanx_core::{Deadline, Error, OpKind, Result, WORLD};
use phalanx_rendezvous::{BackendChoice, Elastic, OpenStore};
use roster::{Admission, Candidate};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How the workers of a job reach each other: as processes or as threads.
pub(crate) trait Home: Send + Sync + Debug {
    /// How long coming together may take.
    fn init_timeout(&self) -> Duration;

    /// For how many processes the job was made to be elastic.
    fn elastic(&self) -> Option<Elastic>;

    /// Opens the job's store. `lost` are workers that are gone, on one of which it may have depended.
    ///
    /// # Errors
    /// It can't be reached, and why that may be.
    fn open(&self, lost: &BTreeSet<u64>, deadline: &Deadline) -> Result<Arc<OpenStore>>;

    /// Brings the ranks of a generation together, of which this is one.
    ///
    /// # Errors
    /// They do not all come.
    fn meet(&self, seat: &Seat, open: &Arc<OpenStore>, deadline: &Deadline) -> Result<Met>;
}

/// A place in a generation.
#[derive(Debug, Clone)]
pub(crate) struct Seat {
    pub(crate) generation: u64,
    pub(crate) rank: usize,
    /// The workers, in rank order.
    pub(crate) roster: Vec<u64>,
}

/// What the group of all ranks is made of.
#[derive(Debug)]
pub(crate) struct Met {
    pub(crate) realm: Arc<dyn Realm>,
    pub(crate) choice: BackendChoice,
    pub(crate) selector: Arc<Selector>,
    /// Whether the new group is to show that it adds up right.
    pub(crate) self_test: bool,
}

/// One life of the group of all ranks.
#[derive(Debug)]
pub(crate) struct Generation {
    seat: Seat,
    realm: Arc<dyn Realm>,
    home: Arc<dyn Home>,
}

impl Generation {
    pub(crate) fn number(&self) -> u64 {
        self.seat.generation
    }

    /// How many replacements wait for the next generation. The store has so much time to let this rank in; then it is asked twice, and may
    /// take as long as any request to answer.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn waiting(&self, limit: Duration) -> Result<usize> {
        let deadline = Deadline::after(Instant::now(), limit.min(self.home.init_timeout()));
        let open = self.home.open(&BTreeSet::new(), &deadline)?;
        roster::waiting(&open.store, self.seat.generation + 1)
    }

    /// The group of those who go on after this generation.
    ///
    /// # Errors
    /// See [`ProcessGroup::shrink`] and [`ProcessGroup::rejoin`].
    #[track_caller]
    pub(crate) fn next(&self, op: OpKind) -> Result<ProcessGroup> {
        let admission = match (op, self.home.elastic()) {
            (OpKind::Rejoin, Some(elastic)) => Admission::Elastic(elastic),
            (OpKind::Rejoin, None) => {
                return Err(Error::misuse(
                    op,
                    "nobody replaces lost ranks in this job: start it with `phalanx run --elastic MIN:MAX`, or use shrink",
                ));
            }
            _ => Admission::Survivors,
        };
        let worker = self.seat.roster[self.seat.rank];
        let me = Candidate { worker, rank: Some(self.seat.rank) };
        let lost = || self.realm.watch().gone().into_iter().map(|rank| self.seat.roster[rank]).collect();
        let deadline = Deadline::after(Instant::now(), self.home.init_timeout());
        let open = self.home.open(&lost(), &deadline)?;
        let forming = self.seat.generation + 1;
        form(&self.home, &open, me, admission, (forming, self.seat.roster.clone()), &lost, &deadline)
    }
}

/// Joins the first generation that an elastic job's new worker can be in.
#[track_caller]
pub(crate) fn enter(home: &Arc<dyn Home>, worker: u64, elastic: Elastic) -> Result<ProcessGroup> {
    let deadline = Deadline::after(Instant::now(), home.init_timeout());
    let open = home.open(&BTreeSet::new(), &deadline)?;
    let me = Candidate { worker, rank: None };
    let from = (roster::forming(&open.store)?, Vec::new());
    form(home, &open, me, Admission::Elastic(elastic), from, &BTreeSet::new, &deadline)
}

/// Comes together with the others in the generation that `from` names, after a roster; if that fails, because somebody else is lost
/// meanwhile, in the next one, until the deadline.
#[track_caller]
fn form(
    home: &Arc<dyn Home>,
    open: &Arc<OpenStore>,
    mut me: Candidate,
    admission: Admission,
    from: (u64, Vec<u64>),
    lost: &dyn Fn() -> BTreeSet<u64>,
    deadline: &Deadline,
) -> Result<ProcessGroup> {
    let (mut generation, mut before) = from;
    loop {
        let roster = roster::agree(&open.store, generation, &me, admission, &before, lost, deadline)?;
        let Some(rank) = roster.iter().position(|&worker| worker == me.worker) else {
            if me.rank.is_none() {
                generation += 1; // it was closed when this worker came
                continue;
            }
            let what = format!(
                "generation {generation} has formed without this rank, which came too late: workers {roster:?} go on"
            );
            let waited = deadline.elapsed(Instant::now());
            return Err(Error::Rendezvous { rank: 0, world_size: 0, what, waited });
        };
        // Not all of what is left: somebody may be lost in this attempt too.
        let now = Instant::now();
        let attempt = Deadline::after(now, deadline.remaining(now) / 2);
        let seat = Seat { generation, rank, roster };
        tracing::info!(generation, rank, roster = ?seat.roster, "a generation forms");
        match found(home, seat.clone(), open, &attempt) {
            Ok(group) => return Ok(group),
            Err(error) if may_pass(&error) && !deadline.has_passed(Instant::now()) => {
                tracing::warn!(generation, %error, "the ranks did not come together; trying again without who is lost");
            }
            Err(error) => return Err(error),
        }
        me.rank = me.rank.map(|_| rank);
        (generation, before) = (generation + 1, seat.roster);
    }
}

/// Whether the next generation may do better.
fn may_pass(error: &Error) -> bool {
    !matches!(
        error,
        Error::Config { .. } | Error::Unavailable { .. } | Error::Internal { .. } | Error::WrongSum { .. }
    )
}

/// The group of all ranks of a generation whose roster is known.
#[track_caller]
pub(crate) fn found(
    home: &Arc<dyn Home>,
    seat: Seat,
    open: &Arc<OpenStore>,
    deadline: &Deadline,
) -> Result<ProcessGroup> {
    let Met { realm, choice, selector, self_test } = home.meet(&seat, open, deadline)?;
    let members = (0..seat.roster.len()).collect();
    let backend =
        recommended::backend(realm.clone(), WORLD, members, OpKind::Init, choice, selector, deadline)?;
    let generation = Generation { seat, realm, home: home.clone() };
    let group = ProcessGroup::of_all_ranks(backend, generation);
    if self_test {
        self_test::run(&group, deadline)?;
    }
    tracing::info!(
        rank = group.rank(),
        generation = group.generation(),
        backend = group.describe(),
        "the group of all ranks"
    );
    Ok(group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::realm::ThreadRealm;
    use phalanx_core::ReduceOp;
    use phalanx_rendezvous::{Config, PrefixStore, Store, TcpStore, TcpStoreServer, Workers};
    use phalanx_transport::Secret;

    /// A store that does not answer; remembers for how long it was asked.
    #[derive(Debug, Default)]
    struct Silent(std::sync::Mutex<Duration>);

    impl Home for Silent {
        fn init_timeout(&self) -> Duration {
            Duration::from_secs(120)
        }

        fn elastic(&self) -> Option<Elastic> {
            None
        }

        fn open(&self, _lost: &BTreeSet<u64>, deadline: &Deadline) -> Result<Arc<OpenStore>> {
            *self.0.lock().unwrap() = deadline.limit();
            Err(Error::config("no answer"))
        }

        fn meet(&self, _seat: &Seat, _open: &Arc<OpenStore>, _deadline: &Deadline) -> Result<Met> {
            unreachable!("nobody meets there")
        }
    }

    #[test]
    fn a_store_that_does_not_answer_is_given_up_before_the_other_ranks_are_late() {
        let limit = Duration::from_secs(60);
        let realm: Arc<dyn Realm> = Arc::new(ThreadRealm::create(1, limit).remove(0));
        let selector = Arc::new(Selector::forced_from("").unwrap());
        let fate = Arc::new(crate::fate::Fate::new(realm.clone(), WORLD, vec![0]));
        let backend = Arc::new(crate::host::HostBackend::new(fate, BackendChoice::Auto, selector));
        let home = Arc::new(Silent::default());
        let seat = Seat { generation: 0, rank: 0, roster: vec![0] };
        let group = ProcessGroup::of_all_ranks(backend, Generation { seat, realm, home: home.clone() });
        group.waiting().unwrap_err();
        assert!(*home.0.lock().unwrap() < limit, "{home:?}");
        group.barrier().unwrap();
    }

    /// A worker that is in the roster, and gone before the ranks have come together: the others do without it.
    fn without_a_ghost(ghost: u64) {
        let secret = Secret::generate().unwrap();
        let server = TcpStoreServer::start(([127, 0, 0, 1], 0).into(), &secret).unwrap();
        let deadline = Deadline::after(Instant::now(), Duration::from_secs(60));
        let store = TcpStore::connect(&server.addr().to_string(), &secret, &deadline).unwrap();
        let store: Arc<dyn Store> = Arc::new(PrefixStore::new("job", store));
        let mut workers = Workers { started: 4, ..Workers::default() };
        workers.publish(&store).unwrap();
        let config = |worker: u64| {
            Config::from_lookup(|name| {
                Some(match name {
                    "PHALANX_RANK" | "PHALANX_WORKER" => worker.to_string(),
                    "PHALANX_WORLD_SIZE" => "4".into(),
                    "PHALANX_ELASTIC" => "2:4".into(),
                    "PHALANX_STORE" => format!("tcp://{}", server.addr()),
                    "PHALANX_SECRET" => secret.to_hex(),
                    "PHALANX_JOB_ID" => "job".into(),
                    _ => return None,
                })
            })
        };
        std::thread::scope(|scope| {
            let config = &config;
            let others = (0..4).filter(|worker| *worker != ghost).map(|worker| {
                scope.spawn(move || {
                    let group = crate::join(&config(worker).unwrap()).unwrap();
                    let mut sum = [1u64];
                    group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                    let seen = (group.generation(), group.rank(), sum[0]);
                    group.finalize().unwrap();
                    seen
                })
            });
            let others: Vec<_> = others.collect();
            let me = Candidate { worker: ghost, rank: None };
            let admission = Admission::Elastic(Elastic::new(2, 4).unwrap());
            let roster = roster::agree(&store, 0, &me, admission, &[], &BTreeSet::new, &deadline).unwrap();
            assert_eq!(roster, [0, 1, 2, 3]);
            workers.ended.push(ghost);
            workers.publish(&store).unwrap();
            let seen: Vec<_> = others.into_iter().map(|other| other.join().unwrap()).collect();
            assert_eq!(seen, [(1, 0, 3), (1, 1, 3), (1, 2, 3)]);
        });
    }

    #[test]
    fn who_ends_while_the_ranks_come_together_is_done_without() {
        without_a_ghost(3);
    }

    #[test]
    fn so_is_rank_0() {
        without_a_ghost(0);
    }
}
