//! A rank that is a thread of this process: its connection to its job.

use crate::bootstrap::local_control::{LocalArbiter, LocalControl};
use crate::bootstrap::prices::cores;
use crate::control::Control;
use crate::control::job_context::{JobContext, Place};
use crate::control::membership::Membership;
use crate::control::notice::Notice;
use crate::host::host_context::HostContext;
use crate::runtime;
use crate::warning::warn_aside;
use phalanx_core::{Deadline, GroupId, Peer, Result};
use phalanx_transport::thread::Pipes;
use phalanx_transport::{OwnerProcess, Secret, Wire};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Pipes by group, and how many of their ends were taken: whoever opens a group first makes them, and the last takes the rest.
type Fabric = Mutex<HashMap<GroupId, (Pipes, usize)>>;

/// Ranks as threads of this process.
#[derive(Debug)]
pub(crate) struct ThreadJob {
    place: Place,
    membership: Arc<Membership>,
    line: LocalControl,
    fabric: Arc<Fabric>,
    name: String,
    /// Made when a backend asks for it: threads prove nothing to each other.
    secret: Arc<OnceLock<Result<Secret>>>,
}

impl ThreadJob {
    /// One job for each of `world_size` ranks.
    pub(crate) fn create(world_size: usize, timeout: Duration) -> Vec<Self> {
        let name = format!("thread of process {}", std::process::id());
        let peer = |rank| Peer { rank, host: name.clone() };
        let membership = |rank| runtime::membership(peer(rank), world_size, timeout);
        let arbiter = LocalArbiter::new((0..world_size).map(membership).collect());
        let (fabric, secret) = (Arc::new(Fabric::default()), Arc::default());
        let job = |rank| {
            let place = Place { rank, world_size, local_rank: rank, local_world_size: world_size, timeout };
            let (membership, line) = (
                arbiter.membership(rank),
                LocalControl { owner_process: OwnerProcess::here(), arbiter: arbiter.clone(), rank },
            );
            let addr = std::net::SocketAddr::from(([0; 4], 0));
            let _ =
                line.send(Notice::Join { host: name.clone(), addr, local: None, settings: String::new() });
            let (fabric, name, secret) = (Arc::clone(&fabric), name.clone(), Arc::clone(&secret));
            Self { place, membership, line, fabric, name, secret }
        };
        (0..world_size).map(job).collect()
    }
}

impl JobContext for ThreadJob {
    fn open(&self, group: GroupId, members: &[usize]) -> Wire {
        let rank = members.iter().position(|&m| m == self.place.rank).expect("this rank is a member");
        let mut fabric = self.fabric.lock().unwrap_or_else(PoisonError::into_inner);
        let (pipes, taken) = fabric.entry(group).or_insert_with(|| (Pipes::new(members.len()), 0));
        let end = pipes.end(rank);
        *taken += 1;
        if *taken == members.len() {
            fabric.remove(&group);
        }
        Wire::new(Box::new(end))
    }

    fn control(&self) -> &dyn Control {
        &self.line
    }

    fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    fn peer(&self, rank: usize) -> Peer {
        Peer { rank, host: self.name.clone() }
    }

    fn place(&self) -> &Place {
        &self.place
    }

    fn remind(&self, words: &str) {
        warn_aside(&format!("rank {}", self.place.rank), words);
    }

    fn ranks_share_cores(&self) -> bool {
        self.place.local_world_size > cores()
    }

    fn leave(&self, _deadline: &Deadline) {
        let _ = self.line.send(self.membership.farewell());
    }
}

impl HostContext for ThreadJob {
    fn secret(&self) -> Result<Secret> {
        self.secret.get_or_init(Secret::generate).clone()
    }
}

impl Drop for ThreadJob {
    fn drop(&mut self) {
        if self.line.owner_process.is_here() && !std::thread::panicking() {
            let _ = self.line.send(self.membership.farewell());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_are_kept_until_all_have_their_ends() {
        let jobs = ThreadJob::create(3, Duration::from_secs(1));
        let kept = || jobs[0].fabric.lock().unwrap().len();
        for group in (1..4).map(GroupId) {
            drop(jobs[1].open(group, &[1, 2]));
            assert_eq!(kept(), 1, "the other end is to find that this one was closed");
            drop(jobs[2].open(group, &[1, 2]));
            assert_eq!(kept(), 0);
        }
    }
}
