//! A rank is asked whether it is there before UCX is told to connect to it.
//!
//! UCX 1.13 ends the process, by assertions of its own, where it finds out while it makes a connection that nobody is there. So phalanx makes one first, as for its own TCP: without blocking,
//! with a deadline, and with a proof that the peer belongs to the job. Nothing is sent over it.

use phalanx_transport::{Direction, LinkFault, Transport, Wait};

pub(crate) struct Introductions {
    /// `None` where there is no job: then whoever has an address is there.
    connections: Option<Box<dyn Transport>>,
    are_made: Vec<bool>,
}

impl Introductions {
    pub(crate) fn new(connections: Option<Box<dyn Transport>>, peers: usize) -> Self {
        Self { are_made: vec![connections.is_none(); peers], connections }
    }

    /// Whether UCX may connect to `peer`. None is needed if the hub knows it already.
    pub(crate) fn is_made(
        &mut self,
        peer: usize,
        is_known: impl FnOnce() -> bool,
    ) -> Result<bool, LinkFault> {
        let Some(connections) = self.connections.as_mut().filter(|_| !self.are_made[peer]) else {
            return Ok(true);
        };
        if !is_known() {
            // Whoever has nothing to say: a call that reads begins to make the connection.
            connections.recv(peer, &mut [0])?;
            if !connections.is_linked(peer) {
                return Ok(false);
            }
        }
        self.are_made[peer] = true;
        Ok(true)
    }

    /// As [`Transport::watch`].
    pub(crate) fn watch(&mut self, peer: usize, wait: &mut Wait) -> bool {
        self.connections.as_mut().is_none_or(|connections| connections.watch(peer, Direction::Recv, wait))
    }
}
