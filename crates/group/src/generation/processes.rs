//! Generations whose ranks are processes.

use super::heart::Heart;
use super::{Home, Met, Seat};
use crate::init::meet_all;
use phalanx_algo::Selector;
use phalanx_core::{Deadline, Error, Result};
use phalanx_rendezvous::{Config, Elastic, OpenStore, StoreLocation, Workers};
use phalanx_transport::Secret;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Processes {
    pub(crate) config: Config,
    pub(crate) secret: Secret,
    selector: Selector,
    /// What the others need of this process as long as the job lives: the store's server, or the directory of the store.
    kept: Mutex<Vec<Arc<OpenStore>>>,
}

impl Processes {
    pub(crate) fn new(config: Config, secret: Secret, selector: Selector) -> Self {
        Self { config, secret, selector, kept: Mutex::default() }
    }

    pub(crate) fn keep(&self, open: Arc<OpenStore>) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(open);
    }

    /// Whether the first rank 0 runs the store's server.
    fn store_is_hosted(&self) -> bool {
        matches!(self.config.store, StoreLocation::Tcp { host_it: true, .. })
    }
}

impl Home for Processes {
    fn init_timeout(&self) -> Duration {
        self.config.init_timeout
    }

    fn timeout(&self) -> Duration {
        self.config.timeout
    }

    fn heart(&self, worker: u64) -> Option<Heart> {
        let config = self.config.clone();
        Some(Heart::new(worker, config.heartbeat_timeout?, move |deadline| config.reopen_store(deadline)))
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
        self.config.reopen_store(deadline).map(Arc::new)
    }

    fn meet(&self, seat: &Seat, open: &Arc<OpenStore>, deadline: &Deadline) -> Result<Met> {
        if seat.rank == 0 && seat.generation > 0 && matches!(self.config.store, StoreLocation::File(_)) {
            let mut owner = self.config.clone();
            owner.rank = 0;
            self.keep(Arc::new(owner.open_store(deadline)?));
        }
        let realm = Arc::new(meet_all(&self.config, &self.secret, seat, open, deadline)?);
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
