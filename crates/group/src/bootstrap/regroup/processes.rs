//! Generations whose ranks are processes.

use super::store_heartbeat::StoreHeartbeat;
use super::{Assignment, Bootstrap, JobParts};
use crate::bootstrap::assembly::{absent, assemble, meet_all, process_name};
use crate::bootstrap::init_notices::InitNotices;
use crate::bootstrap::rendezvous::ASK_INTERVAL;
use crate::bootstrap::start::Start;
use crate::bootstrap::tcp_job::TcpJob;
use crate::control::group_health::words_of;
use crate::host::backend_registry::chosen_kind;
use phalanx_algo::Selector;
use phalanx_core::{Deadline, Error, Result};
use phalanx_rendezvous::{Config, Elastic, OpenStore, StoreLocation};
use phalanx_transport::Secret;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a rank that gives up, and on which the store depends, stays so that the others can hear of it: at least, for those who are about
/// to come, and at most.
const FAREWELL_TIME: Duration = Duration::from_secs(1);
const FAREWELL_TIME_MAX: Duration = Duration::from_secs(4);

/// How processes come together.
#[derive(Debug)]
pub(crate) struct ProcessBootstrap {
    pub(crate) config: Config,
    pub(crate) secret: Secret,
    selector: Selector,
    /// The stores that the others need of this process as long as the job lives: its server, or its directory.
    kept: Mutex<Vec<Arc<OpenStore>>>,
    /// Which start of the job this is. `None` until rank 0 has begun it, and in an elastic job: its launcher makes a new store for each start.
    start: Mutex<Option<Start>>,
}

impl ProcessBootstrap {
    pub(crate) fn new(config: Config, secret: Secret, selector: Selector) -> Self {
        let (kept, start) = Default::default();
        Self { config, secret, selector, kept, start }
    }

    pub(crate) fn keep(&self, open: Arc<OpenStore>) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(open);
    }

    fn start(&self) -> Option<Start> {
        *self.start.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the ranks of a generation together; tells the others if this one gives up.
    fn assemble(&self, assignment: &Assignment, open: &OpenStore, deadline: &Deadline) -> Result<TcpJob> {
        if assignment.generation > 0 || self.config.elastic.is_some() {
            let secret = self.start().map_or_else(|| self.secret.clone(), |start| start.secret(&self.secret));
            return meet_all(&self.config, &secret, assignment, open, deadline);
        }
        // Where the store is still that of the group before, what its ranks have left there is none of this start's.
        let is_fresh = self.store_is_hosted() && !Start::latest(&*open.store)?.is_some_and(Start::was_joined);
        let mut init_notices = InitNotices::of_job(assignment, open, is_fresh, deadline)?;
        let work = || self.assemble_first(assignment, open, &mut init_notices, deadline);
        let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
            // Of the links that a program has made itself, say. There is no line yet over which the others would hear of it.
            let what = format!("it panicked: {}", words_of(&*panic));
            let error = init_notices.error(what);
            if init_notices.give_up(&process_name(), &error) && assignment.rank == 0 {
                self.stay_for(open);
            }
            resume_unwind(panic)
        });
        match &outcome {
            Ok(_) if assignment.rank == 0 => init_notices.forget(),
            Err(error) if init_notices.give_up(&process_name(), error) && assignment.rank == 0 => {
                self.stay_for(open);
            }
            _ => {}
        }
        open.nobody_else_comes();
        outcome
    }

    /// The first generation: of the latest start of the job, also if that begins only while this rank waits for an earlier one which has ended.
    fn assemble_first(
        &self,
        assignment: &Assignment,
        open: &OpenStore,
        init_notices: &mut InitNotices<'_>,
        deadline: &Deadline,
    ) -> Result<TcpJob> {
        let mut start = match assignment.rank {
            0 => Start::begin(&*open.store)?,
            _ => await_start(open, init_notices, deadline)?,
        };
        loop {
            init_notices.follow(start);
            *self.start.lock().unwrap_or_else(PoisonError::into_inner) = Some(start);
            let secret = start.secret(&self.secret);
            match assemble(&self.config, &secret, assignment, open, init_notices, deadline) {
                Ok(job) => {
                    start.remember();
                    return Ok(job);
                }
                Err(error) => match init_notices.later_start() {
                    Some(_) if assignment.rank == 0 => return Err(init_notices.replaced()),
                    Some(later) if !deadline.has_passed(Instant::now()) => {
                        tracing::info!(%error, "rank 0 was started anew; joining it there");
                        start = later;
                    }
                    _ => return Err(error),
                },
            }
        }
    }

    /// What the others need to hear that this rank gave up goes with it.
    fn stay_for(&self, open: &OpenStore) {
        let deadline = Deadline::after(Instant::now(), FAREWELL_TIME_MAX);
        match (&open.server, &self.config.store) {
            (Some(server), _) => {
                std::thread::sleep(FAREWELL_TIME);
                // One client is this rank's own.
                server.wait_until_left(1, &deadline);
            }
            // Nobody knows who looks at files, but how often they look.
            (None, StoreLocation::File(_)) => std::thread::sleep(FAREWELL_TIME + ASK_INTERVAL),
            _ => {}
        }
    }

    /// Whether this process has found a start of the job.
    pub(crate) fn has_begun(&self) -> bool {
        self.start().is_some()
    }

    /// Whether the first rank 0 runs the store's server.
    fn store_is_hosted(&self) -> bool {
        matches!(self.config.store, StoreLocation::Tcp { host_it: true, .. })
    }
}

impl Bootstrap for ProcessBootstrap {
    fn secret(&self) -> Option<&Secret> {
        Some(&self.secret)
    }

    fn init_timeout(&self) -> Duration {
        self.config.init_timeout
    }

    fn timeout(&self) -> Duration {
        self.config.timeout
    }

    fn heartbeat(&self, worker: u64) -> Option<StoreHeartbeat> {
        let (config, start) = (self.config.clone(), self.start());
        Some(StoreHeartbeat::new(worker, config.heartbeat_timeout?, move |deadline| {
            Ok(within(start, config.reopen_store(deadline)?))
        }))
    }

    fn elastic(&self) -> Option<Elastic> {
        self.config.elastic
    }

    fn open(&self, lost: &BTreeSet<u64>, deadline: &Deadline) -> Result<Arc<OpenStore>> {
        if self.store_is_hosted() && lost.contains(&0) {
            let what = "rank 0 ran the job's store and is gone, so there is no place to meet again: let a process that outlives \
                        the ranks run the store (`phalanx run` does)";
            let waited = deadline.elapsed(Instant::now());
            return Err(Error::Rendezvous { rank: 0, world_size: 0, what: what.into(), waited });
        }
        Ok(Arc::new(within(self.start(), self.config.reopen_store(deadline)?)))
    }

    fn meet(&self, assignment: &Assignment, open: &Arc<OpenStore>, deadline: &Deadline) -> Result<JobParts> {
        if assignment.rank == 0
            && assignment.generation > 0
            && matches!(self.config.store, StoreLocation::File(_))
        {
            let mut owner = self.config.clone();
            owner.rank = 0;
            self.keep(Arc::new(owner.open_store(deadline)?));
        }
        let job = Arc::new(
            self.assemble(assignment, open, deadline).map_err(|error| whole(error, assignment, deadline))?,
        );
        #[cfg(unix)]
        if self.config.trace_on_signal {
            crate::bootstrap::signal::listen(&job)?;
        }
        let selector = Selector { link: job.link, ..self.selector.clone() };
        Ok(JobParts {
            job,
            kind: chosen_kind(&self.config)?,
            selector: Arc::new(selector),
            self_test: self.config.self_test,
            reproducible: self.config.reproducible,
        })
    }
}

/// The part of the job's store that is this start's.
fn within(start: Option<Start>, open: OpenStore) -> OpenStore {
    match start {
        Some(start) => OpenStore { store: start.corner(open.store.clone()), ..open },
        None => open,
    }
}

/// Waits until rank 0 has begun a start of the job that this process has not been in. It may be one that has ended.
fn await_start(open: &OpenStore, init_notices: &InitNotices<'_>, deadline: &Deadline) -> Result<Start> {
    let mut pause = Duration::from_millis(1);
    let mut asked = Instant::now();
    init_notices.check()?;
    loop {
        let latest = Start::latest(&*open.store)?;
        if let Some(start) = latest.filter(|start| !start.was_joined()) {
            return Ok(start);
        }
        let now = Instant::now();
        if deadline.has_passed(now) {
            return Err(if latest.is_some() { not_anew(init_notices) } else { absent(init_notices) });
        }
        if now.saturating_duration_since(asked) >= ASK_INTERVAL {
            init_notices.check()?;
            asked = now;
        }
        std::thread::sleep(pause.min(deadline.remaining(now)));
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// The error of a process that joins its job again, where rank 0 has not begun another start of it.
fn not_anew(init_notices: &InitNotices<'_>) -> Error {
    init_notices.error(
        "this process was in this job before, and rank 0 has not called `init` again since: every rank must leave the job and join it as \
         often as the others; does rank 0 still hold its group?"
            .into(),
    )
}

/// The error of the whole wait, whatever part of it came to nothing.
fn whole(error: Error, assignment: &Assignment, deadline: &Deadline) -> Error {
    match error {
        Error::Rendezvous { what, .. } => Error::Rendezvous {
            rank: assignment.rank,
            world_size: assignment.roster.len(),
            what,
            waited: deadline.elapsed(Instant::now()),
        },
        other => other,
    }
}
