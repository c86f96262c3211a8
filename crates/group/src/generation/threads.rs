//! Generations whose ranks are threads of this process.

use super::{Home, Met, Seat};
use crate::realm::ThreadRealm;
use phalanx_algo::Selector;
use phalanx_core::{Deadline, Error, Result};
use phalanx_rendezvous::{BackendChoice, Elastic, MemoryStore, OpenStore};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Threads {
    store: MemoryStore,
    timeout: Duration,
    selector: Arc<Selector>,
    /// What each generation's ranks have not fetched yet: whoever comes first makes it for all.
    realms: Mutex<HashMap<u64, Vec<Option<ThreadRealm>>>>,
}

impl Threads {
    pub(crate) fn new(timeout: Duration, selector: Arc<Selector>) -> Self {
        Self { store: MemoryStore::new(), timeout, selector, realms: Mutex::default() }
    }
}

impl Home for Threads {
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

    fn meet(&self, seat: &Seat, _open: &Arc<OpenStore>, _deadline: &Deadline) -> Result<Met> {
        let make = || ThreadRealm::create(seat.roster.len(), self.timeout).into_iter().map(Some).collect();
        let mut realms = self.realms.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = realms.entry(seat.generation).or_insert_with(make);
        let realm = generation[seat.rank]
            .take()
            .ok_or_else(|| Error::Internal { what: format!("two threads are {seat:?}") })?;
        let (choice, selector) = (BackendChoice::Auto, self.selector.clone());
        Ok(Met { realm: Arc::new(realm), choice, selector, self_test: false })
    }
}
