//! Generations whose ranks are threads of this process.

use super::{Assignment, Bootstrap, JobParts};
use crate::bootstrap::thread_job::ThreadJob;
use crate::host::backend_registry::BackendKind;
use phalanx_algo::Selector;
use phalanx_core::{Deadline, Error, Result};
use phalanx_rendezvous::{Elastic, MemoryStore, OpenStore};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How threads of one process come together.
#[derive(Debug)]
pub(crate) struct ThreadBootstrap {
    store: MemoryStore,
    timeout: Duration,
    kind: Arc<dyn BackendKind>,
    selector: Arc<Selector>,
    /// The jobs that each generation's ranks have not fetched yet: the first rank that comes makes them for all.
    jobs: Mutex<HashMap<u64, Vec<Option<ThreadJob>>>>,
}

impl ThreadBootstrap {
    pub(crate) fn new(timeout: Duration, kind: Arc<dyn BackendKind>, selector: Arc<Selector>) -> Self {
        Self { store: MemoryStore::new(), timeout, kind, selector, jobs: Mutex::default() }
    }
}

impl Bootstrap for ThreadBootstrap {
    fn init_timeout(&self) -> Duration {
        self.timeout
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn elastic(&self) -> Option<Elastic> {
        None
    }

    fn open(&self, _lost: &BTreeSet<u64>, _deadline: &Deadline) -> Result<Arc<OpenStore>> {
        Ok(Arc::new(OpenStore { store: Arc::new(self.store.clone()), local_ip: None, server: None }))
    }

    fn meet(
        &self,
        assignment: &Assignment,
        _open: &Arc<OpenStore>,
        _deadline: &Deadline,
    ) -> Result<JobParts> {
        let make =
            || ThreadJob::create(assignment.roster.len(), self.timeout).into_iter().map(Some).collect();
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = jobs.entry(assignment.generation).or_insert_with(make);
        let job = generation[assignment.rank]
            .take()
            .ok_or_else(|| Error::Internal { what: format!("two threads are {assignment:?}") })?;
        let (kind, selector) = (self.kind.clone(), self.selector.clone());
        Ok(JobParts { job: Arc::new(job), kind, selector, self_test: false, reproducible: false })
    }
}
