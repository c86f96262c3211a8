//! Which members of a group have memory in common.
//!
//! The first of the members on a host makes the memory for all of them. All ranks know what each can make, so all come to
//! the same opinion.

use crate::control::job_context::JobContext;
use crate::group::backend::counted;
use std::collections::HashMap;

/// The members of a group, as ranks of the job, in group order.
#[derive(Debug)]
pub(crate) struct MemorySharing<'a> {
    job: &'a dyn JobContext,
    members: &'a [usize],
    /// By the name of a host, the first member there, and how many are.
    on_host: HashMap<&'a str, (usize, usize)>,
}

impl<'a> MemorySharing<'a> {
    pub(crate) fn new(job: &'a dyn JobContext, members: &'a [usize]) -> Self {
        let mut on_host = HashMap::new();
        for &rank in members {
            if let Some(host) = job.host_of(rank) {
                on_host.entry(host).or_insert((rank, 0)).1 += 1;
            }
        }
        Self { job, members, on_host }
    }

    /// The host of a member, if those on it share memory; `None`: it shares with nobody.
    pub(crate) fn host_of(&self, rank: usize) -> Option<&'a str> {
        let host = self.job.host_of(rank)?;
        self.obstacle(host).is_none().then_some(host)
    }

    /// Why members that are on one host share no memory, for the first such host.
    pub(crate) fn why_not(&self) -> Option<String> {
        self.members.iter().find_map(|&rank| self.obstacle(self.job.host_of(rank)?))
    }

    fn obstacle(&self, host: &str) -> Option<String> {
        let &(maker, count) = self.on_host.get(host)?;
        let (needed, longest) = (needed_by(count), self.job.longest_memory(maker));
        if count == 1 || needed <= longest {
            return None;
        }
        let maker = self.job.peer(maker);
        Some(match longest {
            0 => format!("{maker} can make no shared memory: its system refuses it"),
            _ => format!(
                "{maker} can make no shared memory for {}: that takes a file of {needed} bytes, and its limit is {longest} (`ulimit -f`)",
                counted(count, "rank")
            ),
        })
    }
}

/// Bytes of the longest file that a group takes for its members on one host.
#[cfg(target_os = "linux")]
fn needed_by(ranks: usize) -> u64 {
    phalanx_shm::segment_len(ranks).max(phalanx_shm::pipes_len(ranks)) as u64
}

#[cfg(not(target_os = "linux"))]
fn needed_by(_ranks: usize) -> u64 {
    0
}
