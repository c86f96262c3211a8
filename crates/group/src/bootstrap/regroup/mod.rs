//! Generations: the group of all ranks, made anew after a loss.
//!
//! Nothing of a generation is used in the next one: its workers agree in the store on who goes on ([`roster`]), and then
//! come together as at the beginning, with a new arbiter on the new rank 0, new lines and new links. The store is what
//! has to outlive all of them.

pub(crate) mod ask;
mod assignment;
pub(crate) mod farewell;
pub(crate) mod forming;
mod liveness;
pub(crate) mod processes;
pub(crate) mod roster;
pub(crate) mod store_heartbeat;
pub(crate) mod threads;
pub(crate) mod view;
pub(crate) mod watch;

use crate::ProcessGroup;
use crate::bootstrap::self_test;
use crate::control::group_health::GroupHealth;
use crate::control::job_context::JobContext;
use crate::group::encryption::Encryption;
use crate::group::handles::KeptAlive;
use crate::group::process_group::Regroup;
use crate::host::backend_registry::{BackendKind, JobHandle};
use crate::host::host_context::HostContext;
use crate::warning::warn_aside;
pub(crate) use assignment::Assignment;
use farewell::Farewell;
use forming::{Forming, Step};
use phalanx_algo::Selector;
use phalanx_core::{CallSite, Deadline, Error, OpKind, Result, Signature, WORLD};
use phalanx_rendezvous::{Elastic, OpenStore};
use phalanx_transport::Secret;
use roster::{Party, WaitLimits};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store_heartbeat::StoreHeartbeat;
use view::{Admission, Candidate, Lost};

/// How the workers of a job reach each other: as processes or as threads.
pub(crate) trait Bootstrap: Send + Sync + Debug {
    /// How long coming together may take.
    fn init_timeout(&self) -> Duration;

    /// How long an operation may take, unless the program says otherwise.
    fn timeout(&self) -> Duration;

    /// For how many processes the job was made to be elastic.
    fn elastic(&self) -> Option<Elastic>;

    /// The heartbeat of this worker while no arbiter watches over it; `None` where silence means nothing.
    fn heartbeat(&self, _worker: u64) -> Option<StoreHeartbeat> {
        None
    }

    /// The job's secret.
    fn secret(&self) -> Option<&Secret> {
        None
    }

    /// Opens the job's store. `lost` are workers that are gone, on one of which it may have depended.
    ///
    /// # Errors
    /// It can't be reached, and why that may be.
    fn open(&self, lost: &BTreeSet<u64>, deadline: &Deadline) -> Result<Arc<OpenStore>>;

    /// Brings the ranks of a generation together, of which this is one.
    ///
    /// # Errors
    /// They do not all come.
    fn meet(&self, assignment: &Assignment, open: &Arc<OpenStore>, deadline: &Deadline) -> Result<JobParts>;
}

/// The parts of which the group of all ranks is made.
#[derive(Debug)]
pub(crate) struct JobParts {
    pub(crate) job: Arc<dyn HostContext>,
    pub(crate) kind: Arc<dyn BackendKind>,
    pub(crate) selector: Arc<Selector>,
    /// Whether the new group is to show that it adds up right.
    pub(crate) self_test: bool,
    /// Whether its reductions add up in the order of the ranks.
    pub(crate) reproducible: bool,
}

/// One life of the group of all ranks.
#[derive(Debug)]
pub(crate) struct Generation {
    assignment: Assignment,
    job: Arc<dyn JobContext>,
    bootstrap: Arc<dyn Bootstrap>,
    /// Beats from when the group has failed until the next generation stands.
    heartbeat: Option<Arc<StoreHeartbeat>>,
}

impl KeptAlive for Generation {}

impl Regroup for Generation {
    fn init_timeout(&self) -> Duration {
        self.bootstrap.init_timeout()
    }

    fn number(&self) -> u64 {
        self.assignment.generation
    }

    fn encryption(&self) -> Option<Encryption> {
        self.bootstrap.secret().and_then(Encryption::of)
    }

    /// How many replacements wait for the next generation. The store has so much time to let this rank in; then it is asked twice, and may
    /// take as long as any request to answer.
    ///
    /// # Errors
    /// Those of the store.
    fn waiting(&self, limit: Duration) -> Result<usize> {
        let deadline = Deadline::after(Instant::now(), limit.min(self.bootstrap.init_timeout()));
        let open = self.bootstrap.open(&BTreeSet::new(), &deadline)?;
        roster::waiting(&open.store, self.assignment.generation + 1)
    }

    /// The group of those who go on after this generation. Those who live have so much time to come.
    ///
    /// # Errors
    /// See [`ProcessGroup::shrink`] and [`ProcessGroup::rejoin`].
    #[track_caller]
    fn next(&self, op: OpKind, limit: Duration, site: CallSite) -> Result<ProcessGroup> {
        let admission = match (op, self.bootstrap.elastic()) {
            (OpKind::Rejoin, Some(elastic)) => Admission::Elastic(elastic),
            (OpKind::Rejoin, None) => {
                return Err(Error::misuse(
                    op,
                    "nobody replaces lost ranks in this job: start it with `phalanx run --elastic MIN:MAX`, or use shrink",
                ));
            }
            _ => Admission::Survivors,
        };
        let Assignment { rank, ref roster, .. } = self.assignment;
        let call = Signature::bare(op, site);
        self.heartbeat.iter().for_each(|heartbeat| heartbeat.beat());
        let membership = self.job.membership();
        Farewell::say(&*self.job, &call, membership.runtime().now()).wait();
        let deadline = Deadline::after(Instant::now(), self.bootstrap.init_timeout());
        let open = self.bootstrap.open(&Lost::of(membership, roster).gone, &deadline)?;
        let name = |(rank, &worker): (usize, &u64)| (worker, self.job.peer(rank).to_string());
        let party = Party {
            me: Candidate { worker: roster[rank], rank: Some(rank), call: Some((self.job.peer(rank), call)) },
            admission,
            before: roster.clone(),
            names: roster.iter().enumerate().map(name).collect(),
            lost: Box::new(|| Lost::of(membership, roster)),
            watch: self.heartbeat.as_ref().map(|heartbeat| heartbeat.watch()),
            limits: WaitLimits::new(self.bootstrap.init_timeout(), limit),
            say: Box::new(|words| self.job.remind(words)),
        };
        let group = form(&self.bootstrap, &open, party, self.assignment.generation + 1)?;
        self.heartbeat.iter().for_each(|heartbeat| heartbeat.rest());
        Ok(group)
    }
}

/// Joins the first generation that an elastic job's new worker can be in.
#[track_caller]
pub(crate) fn enter(bootstrap: &Arc<dyn Bootstrap>, worker: u64, elastic: Elastic) -> Result<ProcessGroup> {
    let deadline = Deadline::after(Instant::now(), bootstrap.init_timeout());
    let open = bootstrap.open(&BTreeSet::new(), &deadline)?;
    let heartbeat = bootstrap.heartbeat(worker);
    heartbeat.iter().for_each(StoreHeartbeat::beat);
    let party = Party {
        me: Candidate { worker, rank: None, call: None },
        admission: Admission::Elastic(elastic),
        before: Vec::new(),
        names: BTreeMap::new(),
        lost: Box::new(Lost::default),
        watch: heartbeat.as_ref().map(StoreHeartbeat::watch),
        limits: WaitLimits::new(bootstrap.init_timeout(), bootstrap.timeout()),
        say: Box::new(|words| warn_aside(&format!("worker {worker}"), words)),
    };
    form(bootstrap, &open, party, 0)
}

/// Comes together with the others in this generation, or in the first after it in which that is possible.
#[track_caller]
fn form(
    bootstrap: &Arc<dyn Bootstrap>,
    open: &Arc<OpenStore>,
    party: Party<'_>,
    generation: u64,
) -> Result<ProcessGroup> {
    let (mut forming, mut step) = Forming::begin(party, generation, Instant::now());
    loop {
        step = match step {
            Step::Ask(ask) => forming.answered(ask.perform(&open.store)?, Instant::now())?,
            Step::Meet(assignment, deadline) => match found(bootstrap, assignment, open, &deadline) {
                Ok(group) => return Ok(group),
                Err(error) => forming.failed(error, Instant::now())?,
            },
        };
    }
}

/// The group of all ranks of a generation whose roster is known.
#[track_caller]
pub(crate) fn found(
    bootstrap: &Arc<dyn Bootstrap>,
    assignment: Assignment,
    open: &Arc<OpenStore>,
    deadline: &Deadline,
) -> Result<ProcessGroup> {
    let JobParts { job, kind, selector, self_test, reproducible } =
        bootstrap.meet(&assignment, open, deadline)?;
    let members: Vec<usize> = (0..assignment.roster.len()).collect();
    let (factory, backend) = {
        // A backend of the program's own may panic when there is no group yet whose end would tell the others so.
        let _making = TellsOfPanic { job: &job, members: &members };
        let factory = kind.factory(&JobHandle::new(job.clone(), selector))?;
        let call = Signature::bare(OpKind::Init, CallSite::caller());
        let backend = factory.create(WORLD, members.clone(), &call, deadline)?;
        (factory, backend)
    };
    let heartbeat = bootstrap.heartbeat(assignment.roster[assignment.rank]).map(Arc::new);
    let latch = job.membership().groups().into_iter().find(|latch| latch.group() == WORLD);
    if let (Some(heartbeat), Some(latch)) = (&heartbeat, &latch) {
        heartbeat.beat_after(latch);
    }
    let generation = Generation { assignment, job, bootstrap: bootstrap.clone(), heartbeat };
    let group = ProcessGroup::of_all_ranks(backend, factory, Arc::new(generation));
    let group = if reproducible { group.reproducible() } else { group };
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

/// Tells the others of a panic of this rank while its first group is made.
struct TellsOfPanic<'a> {
    job: &'a Arc<dyn HostContext>,
    members: &'a [usize],
}

impl Drop for TellsOfPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            GroupHealth::new(self.job.clone(), WORLD, self.members.to_vec()).panicked();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::thread_job::ThreadJob;
    use crate::group::backend::BackendFactory;
    use crate::host::BackendChoice;
    use crate::host::choose_backend::HostBackends;
    use phalanx_core::ReduceOp;
    use phalanx_rendezvous::{Config, PrefixStore, Store, TcpStore, TcpStoreServer, Workers};
    use view::Decision;

    /// A store that does not answer; remembers for how long it was asked.
    #[derive(Debug, Default)]
    struct Silent(std::sync::Mutex<Duration>);

    impl Bootstrap for Silent {
        fn init_timeout(&self) -> Duration {
            Duration::from_secs(120)
        }

        fn timeout(&self) -> Duration {
            Duration::from_secs(60)
        }

        fn elastic(&self) -> Option<Elastic> {
            None
        }

        fn open(&self, _lost: &BTreeSet<u64>, deadline: &Deadline) -> Result<Arc<OpenStore>> {
            *self.0.lock().unwrap() = deadline.limit();
            Err(Error::config("no answer"))
        }

        fn meet(
            &self,
            _assignment: &Assignment,
            _open: &Arc<OpenStore>,
            _deadline: &Deadline,
        ) -> Result<JobParts> {
            unreachable!("nobody meets there")
        }
    }

    #[test]
    fn a_store_that_does_not_answer_is_given_up_before_the_other_ranks_are_late() {
        let limit = Duration::from_secs(60);
        let job: Arc<dyn HostContext> = Arc::new(ThreadJob::create(1, limit).remove(0));
        let backends = Arc::new(HostBackends::new(job.clone(), BackendChoice::Auto, Arc::default()));
        let deadline = Deadline::after(Instant::now(), limit);
        let backend = backends
            .create(WORLD, vec![0], &Signature::bare(OpKind::Init, CallSite::caller()), &deadline)
            .unwrap();
        let bootstrap = Arc::new(Silent::default());
        let (assignment, heartbeat) = (Assignment::new(0, 0, vec![0]), None);
        let generation = Generation { assignment, job, bootstrap: bootstrap.clone(), heartbeat };
        let group = ProcessGroup::of_all_ranks(backend, backends, Arc::new(generation));
        group.waiting().unwrap_err();
        assert!(*bootstrap.0.lock().unwrap() < limit, "{bootstrap:?}");
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
            let party = Party {
                me: Candidate { worker: ghost, rank: None, call: None },
                admission: Admission::Elastic(Elastic::new(2, 4).unwrap()),
                before: Vec::new(),
                names: BTreeMap::new(),
                lost: Box::new(Lost::default),
                watch: None,
                limits: WaitLimits { start: deadline.limit(), compute: deadline.limit() },
                say: Box::new(|_| {}),
            };
            let decided = forming::agree(&party, &store, 0, deadline).unwrap();
            assert_eq!(decided, Decision::Roster(vec![0, 1, 2, 3]));
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
