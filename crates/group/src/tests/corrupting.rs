//! Links that change a byte on its way: what tests of integrity need.

use crate::ProcessGroup;
use crate::bootstrap::thread_job::ThreadJob;
use crate::control::group_health::GroupHealth;
use crate::host::BackendChoice;
use crate::host::scheduled::ScheduledBackend;
use phalanx_core::WORLD;
use phalanx_transport::thread::{Pipes, ThreadTransport};
use phalanx_transport::{Direction, LinkFault, Transport, Wait, Wire};
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

/// The ranks of a group, the first of which changes the byte `at` of what it sends, counted over all of it.
pub(crate) fn groups(world_size: usize, at: Option<usize>, checked: bool) -> Vec<ProcessGroup> {
    let pipes = Pipes::new(world_size);
    let jobs = ThreadJob::create(world_size, Duration::from_secs(60));
    let rank = |(rank, job)| {
        let at = at.filter(|_| rank == 0).unwrap_or(usize::MAX);
        let links = Corrupting { inner: pipes.end(rank), at };
        let health = Arc::new(GroupHealth::new(Arc::new(job), WORLD, (0..world_size).collect()));
        let wire = Wire::with_checksums(Box::new(links), checked);
        ProcessGroup::new(Arc::new(ScheduledBackend::over(wire, health, BackendChoice::Auto, Arc::default())))
    };
    jobs.into_iter().enumerate().map(rank).collect()
}

struct Corrupting {
    inner: ThreadTransport,
    at: usize,
}

impl Transport for Corrupting {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn send(&mut self, peer: usize, bytes: &[IoSlice<'_>]) -> Result<usize, LinkFault> {
        let mut bytes = bytes.iter().flat_map(|slice| slice.to_vec()).collect::<Vec<_>>();
        if let Some(byte) = bytes.get_mut(self.at) {
            *byte ^= 4;
        }
        let n = self.inner.send(peer, &[IoSlice::new(&bytes)])?;
        self.at = self.at.checked_sub(n).unwrap_or(usize::MAX);
        Ok(n)
    }

    fn recv(&mut self, peer: usize, buffer: &mut [u8]) -> Result<usize, LinkFault> {
        self.inner.recv(peer, buffer)
    }

    fn is_linked(&mut self, peer: usize) -> bool {
        self.inner.is_linked(peer)
    }

    fn watch(&mut self, peer: usize, direction: Direction, wait: &mut Wait) -> bool {
        self.inner.watch(peer, direction, wait)
    }
}
