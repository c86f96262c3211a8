//! One group's links.

use crate::handle::Handle;
use crate::hub::LinkId;
use crate::introductions::Introductions;

use phalanx_core::GroupId;
use phalanx_transport::{Direction, LinkFault, Transport, Wait};
use std::io::IoSlice;
use std::sync::Arc;

/// One rank's ends. Dropping it closes them.
pub(crate) struct UcxTransport {
    handle: Arc<Handle>,
    group: GroupId,
    rank: usize,
    /// The ranks of the job.
    members: Vec<u32>,
    /// Connections of phalanx's own, made before UCX makes one.
    introductions: Introductions,
}

impl UcxTransport {
    pub(crate) fn new(
        handle: Arc<Handle>,
        group: GroupId,
        rank: usize,
        members: Vec<u32>,
        introductions: Introductions,
    ) -> Self {
        Self { handle, group, rank, members, introductions }
    }

    /// Whether the hub may talk to `peer`, which was there a moment ago.
    fn is_introduced(&mut self, peer: usize) -> Result<bool, LinkFault> {
        let link = self.link(peer);
        self.introductions.is_made(peer, || self.handle.with(|hub| hub.knows(link)))
    }

    fn link(&self, peer: usize) -> LinkId {
        (self.group, self.members[peer])
    }
}

impl Transport for UcxTransport {
    fn name(&self) -> &'static str {
        "ucx"
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.members.len()
    }

    fn send(&mut self, peer: usize, bytes: &[IoSlice<'_>]) -> Result<usize, LinkFault> {
        if !self.is_introduced(peer)? {
            return Ok(0);
        }
        let link = self.link(peer);
        self.handle.with(|hub| hub.send(link, bytes))
    }

    fn recv(&mut self, peer: usize, buffer: &mut [u8]) -> Result<usize, LinkFault> {
        if !self.is_introduced(peer)? {
            return Ok(0);
        }
        let link = self.link(peer);
        self.handle.with(|hub| hub.recv(link, buffer))
    }

    fn is_linked(&mut self, peer: usize) -> bool {
        let link = self.link(peer);
        self.handle.with(|hub| hub.is_linked(link))
    }

    fn watch(&mut self, peer: usize, direction: Direction, wait: &mut Wait) -> bool {
        match self.is_introduced(peer) {
            Ok(true) => {}
            // The peer may be the one that calls, over UCX: that ends the sleep too.
            Ok(false) => {
                let is_ready = self.introductions.watch(peer, wait);
                return self.handle.with(|hub| {
                    hub.sleepers.add(wait.waker());
                    let is_listening = !hub.progress() && hub.arm();
                    wait.add(hub.event_fd(), Direction::Recv);
                    is_ready || !is_listening
                });
            }
            Err(_) => return true,
        }
        let link = self.link(peer);
        self.handle.with(|hub| {
            hub.use_link(link);
            hub.sleepers.add(wait.waker());
            let is_ready = match direction {
                Direction::Send => hub.can_send(link),
                Direction::Recv => hub.can_receive(link),
            };
            // What comes in at this moment may be for another link that this thread watches.
            if is_ready || hub.progress() || !hub.arm() {
                return true;
            }
            wait.add(hub.event_fd(), Direction::Recv);
            false
        })
    }
}

impl Drop for UcxTransport {
    fn drop(&mut self) {
        // A child that was forked ends nothing of its parent's.
        if self.handle.is_here() {
            self.handle.with(|hub| hub.end_group(self.group));
        }
    }
}
