//! Which backend a group of this machine should have.

use crate::control::group_health::GroupHealth;
use crate::group::backend::{Backend, BackendFactory};
use crate::host::BackendChoice;
use crate::host::forced;
#[cfg(target_os = "linux")]
use crate::host::hierarchical::{HierarchicalBackend, Hosts};
use crate::host::host_context::HostContext;
#[cfg(target_os = "linux")]
use crate::host::meeting::meet;
use crate::host::memory_sharing::MemorySharing;
use crate::host::scheduled::ScheduledBackend;
use phalanx_algo::{Kind, Selector};
use phalanx_core::{Deadline, Error, GroupId, Result, Signature};
use std::sync::Arc;

/// Chooses the backend of each group on host memory, by where its members are.
#[derive(Debug)]
pub(crate) struct HostBackends {
    job: Arc<dyn HostContext>,
    choice: BackendChoice,
    selector: Arc<Selector>,
}

impl HostBackends {
    pub(crate) fn new(job: Arc<dyn HostContext>, choice: BackendChoice, selector: Arc<Selector>) -> Self {
        Self { job, choice, selector }
    }
}

impl BackendFactory for HostBackends {
    /// At the deadline the ranks that wait for others in it give up. After it was made, operations have deadlines of their own.
    ///
    /// # Errors
    /// [`Config`](Error::Config) if shared memory is demanded where ranks can't share it; and what goes wrong in sharing it.
    fn create(
        &self,
        id: GroupId,
        members: Vec<usize>,
        call: &Signature,
        deadline: &Deadline,
    ) -> Result<Arc<dyn Backend>> {
        let (choice, selector) = (self.choice, self.selector.clone());
        let health = Arc::new(GroupHealth::new(self.job.clone(), id, members));
        let members = health.latch.members();
        let sharing = MemorySharing::new(&*health.job, members);
        let host = |rank: usize| sharing.host_of(rank);
        let elsewhere = members
            .iter()
            .filter(|_| members.len() > 1)
            .find(|&&m| host(m).is_none() || host(m) != host(members[0]));
        if let (BackendChoice::Auto, Some(why)) = (choice, sharing.why_not()) {
            tracing::warn!(group = %id, "{why}; ranks of that host go over TCP");
        }
        match (choice, elsewhere) {
            (BackendChoice::Auto | BackendChoice::Shm, None) => self.together(health, call, deadline),
            (BackendChoice::Shm, Some(&rank)) => {
                let (first, other) = (health.job.peer(members[0]), health.job.peer(rank));
                let why = sharing
                    .why_not()
                    .unwrap_or_else(|| format!("{first} and {other} do not share a host's memory"));
                let what = format!("PHALANX_BACKEND=shm, but {why}");
                Err(Error::config(what))
            }
            #[cfg(target_os = "linux")]
            (BackendChoice::Auto, Some(_)) if Hosts::of(members, host).is_worth_two_levels() => {
                forced::warn_of_never(&selector, &health, Kind::Levels);
                meet(&health, call, deadline)?;
                Ok(Arc::new(HierarchicalBackend::join(&self.job, health, call, choice, selector, deadline)?))
            }
            (BackendChoice::Auto, Some(_)) | (BackendChoice::Links, _) => {
                forced::warn_of_never(&selector, &health, Kind::Messages);
                Ok(Arc::new(ScheduledBackend::new(health, choice, selector)))
            }
        }
    }
}

impl HostBackends {
    /// The backend of ranks that can have memory in common, if there are several.
    fn together(
        &self,
        health: Arc<GroupHealth>,
        call: &Signature,
        deadline: &Deadline,
    ) -> Result<Arc<dyn Backend>> {
        let (choice, selector) = (self.choice, self.selector.clone());
        #[cfg(target_os = "linux")]
        if health.members().len() > 1 {
            forced::warn_of_never(&selector, &health, Kind::Memory);
            meet(&health, call, deadline)?;
            return crate::host::shm::backend(&self.job, health, call, choice, selector, deadline);
        }
        let _ = (call, deadline);
        forced::warn_of_never(&selector, &health, Kind::Messages);
        Ok(Arc::new(ScheduledBackend::new(health, choice, selector)))
    }
}
