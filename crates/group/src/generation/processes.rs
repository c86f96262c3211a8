//! Generations whose ranks are processes.

use super::heart::Heart;
use super::{Home, Met, Seat};
use crate::assembly::{absent, assemble, meet_all, process_name};
use crate::meeting::ASK_INTERVAL;
use crate::realm::TcpRealm;
use crate::start::Start;
use crate::tidings::Tidings;
use phalanx_algo::Selector;
use phalanx_core::{Deadline, Error, Result};
use phalanx_rendezvous::{Config, Elastic, OpenStore, StoreLocation, Workers};
use phalanx_transport::Secret;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a rank that gives up, and on which the store depends, stays so that the others can hear of it: at least, for those who are about
/// to come, and at most.
const FAREWELL_TIME: Duration = Duration::from_secs(1);
const FAREWELL_TIME_MAX: Duration = Duration::from_secs(4);

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Processes {
    pub(crate) config: Config,
    pub(crate) secret: Secret,
    selector: Selector,
    /// What the others need of this process as long as the job lives: the store's server, or the directory of the store.
    kept: Mutex<Vec<Arc<OpenStore>>>,
    /// Which start of the job this is. `None` until the first generation stands, and in an elastic job: its launcher makes a new store for
    /// each start.
    start: Mutex<Option<Start>>,
}

impl Processes {
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
    fn assemble(&self, seat: &Seat, open: &OpenStore, deadline: &Deadline) -> Result<TcpRealm> {
        if seat.generation > 0 || self.config.elastic.is_some() {
            let secret = self.start().map_or_else(|| self.secret.clone(), |start| start.secret(&self.secret));
            return meet_all(&self.config, &secret, seat, open, deadline);
        }
        let mut tidings = Tidings::of_job(seat, open, self.store_is_hosted(), deadline)?;
        let outcome = self.assemble_first(seat, open, &mut tidings, deadline);
        match &outcome {
            Ok(_) if seat.rank == 0 => tidings.forget(),
            Err(error) if tidings.give_up(&process_name(), error) && seat.rank == 0 => self.stay_for(open),
            _ => {}
        }
        outcome
    }

    /// The first generation: of the latest start of the job, also if that begins only while this rank waits for an earlier one which has ended.
    fn assemble_first(
        &self,
        seat: &Seat,
        open: &OpenStore,
        tidings: &mut Tidings<'_>,
        deadline: &Deadline,
    ) -> Result<TcpRealm> {
        let mut start = match seat.rank {
            0 => Start::begin(&*open.store)?,
            _ => await_start(open, tidings, deadline)?,
        };
        loop {
            tidings.follow(start);
            let secret = start.secret(&self.secret);
            match assemble(&self.config, &secret, seat, open, tidings, deadline) {
                Ok(realm) => {
                    *self.start.lock().unwrap_or_else(PoisonError::into_inner) = Some(start);
                    return Ok(realm);
                }
                Err(error) => match tidings.later_start() {
                    Some(_) if seat.rank == 0 => return Err(tidings.replaced()),
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

    /// Whether the first rank 0 runs the store's server.
    fn store_is_hosted(&self) -> bool {
        matches!(self.config.store, StoreLocation::Tcp { host_it: true, .. })
    }
}

impl Home for Processes {
    fn secret(&self) -> Option<&Secret> {
        Some(&self.secret)
    }

    fn init_timeout(&self) -> Duration {
        self.config.init_timeout
    }

    fn timeout(&self) -> Duration {
        self.config.timeout
    }

    fn heart(&self, worker: u64) -> Option<Heart> {
        let (config, start) = (self.config.clone(), self.start());
        Some(Heart::new(worker, config.heartbeat_timeout?, move |deadline| {
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

    fn meet(&self, seat: &Seat, open: &Arc<OpenStore>, deadline: &Deadline) -> Result<Met> {
        if seat.rank == 0 && seat.generation > 0 && matches!(self.config.store, StoreLocation::File(_)) {
            let mut owner = self.config.clone();
            owner.rank = 0;
            self.keep(Arc::new(owner.open_store(deadline)?));
        }
        let realm =
            Arc::new(self.assemble(seat, open, deadline).map_err(|error| whole(error, seat, deadline))?);
        #[cfg(unix)]
        if self.config.trace_on_signal {
            crate::trace::signal::listen(&realm)?;
        }
        let selector = Selector { link: realm.link, ..self.selector.clone() };
        Ok(Met {
            realm,
            choice: self.config.backend,
            selector: Arc::new(selector),
            self_test: self.config.self_test,
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

/// Waits until rank 0 has begun a start of the job. It may be one that has ended.
fn await_start(open: &OpenStore, tidings: &Tidings<'_>, deadline: &Deadline) -> Result<Start> {
    let mut pause = Duration::from_millis(1);
    let mut asked = Instant::now();
    tidings.check()?;
    loop {
        if let Some(start) = Start::latest(&*open.store)? {
            return Ok(start);
        }
        let now = Instant::now();
        if deadline.has_passed(now) {
            return Err(absent(tidings));
        }
        if now.saturating_duration_since(asked) >= ASK_INTERVAL {
            tidings.check()?;
            asked = now;
        }
        std::thread::sleep(pause.min(deadline.remaining(now)));
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// The error of the whole wait, whatever part of it came to nothing.
fn whole(error: Error, seat: &Seat, deadline: &Deadline) -> Error {
    match error {
        Error::Rendezvous { what, .. } => Error::Rendezvous {
            rank: seat.rank,
            world_size: seat.roster.len(),
            what,
            waited: deadline.elapsed(Instant::now()),
        },
        other => other,
    }
}

impl Seat {
    /// Whether all the workers that are to come still live, as far as the launcher knows and as their beats show; asked now and then
    /// while they are waited for.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] with who has ended, or is silent.
    pub(crate) fn check(&self, open: &OpenStore, deadline: &Deadline) -> Result<()> {
        let ended = Workers::read(&open.store)?.map(|workers| workers.ended).unwrap_or_default();
        let silent = self.heart.as_ref().map(|heart| heart.silent()).unwrap_or_default();
        let lost = |worker: &u64| ended.contains(worker) || silent.contains(worker);
        let Some(rank) = self.roster.iter().position(lost) else { return Ok(()) };
        let worker = self.roster[rank];
        let how = match &self.heart {
            Some(heart) if !ended.contains(&worker) => {
                format!(
                    "has shown no sign of life for {} s (stopped, or cut off?)",
                    heart.limit().as_secs_f64()
                )
            }
            _ => "ended before all had come".into(),
        };
        let what = format!("rank {rank}, which is worker {worker}, {how}");
        let waited = deadline.elapsed(Instant::now());
        Err(Error::Rendezvous { rank: self.rank, world_size: self.roster.len(), what, waited })
    }
}
