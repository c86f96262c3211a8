//! A message that any of several peers may send: which of them does.
//!
//! The receive stands in the line of each of them. The first message that has come is taken, and the receive leaves all other lines; it
//! is an ordinary one from then on.

use crate::core::{Core, Fault};
use crate::message_queues::{QueueKey, Ticket, queue_key};
use phalanx_core::OpKind;
use phalanx_transport::{Channel, Direction, Key, WireFault};

/// The peers that may send a message, ranks of the group.
#[derive(Debug)]
pub struct AnyPeer {
    tag: u64,
    /// In the log of messages.
    number: u64,
    ticket: Ticket,
    /// In ascending order.
    open: Vec<usize>,
    ended: Vec<(usize, WireFault)>,
    is_all: bool,
}

impl AnyPeer {
    pub(crate) fn new(mut peers: Vec<usize>, (tag, number): (u64, u64), core: &mut Core) -> Self {
        peers.sort_unstable();
        let ticket = core.queues.ticket();
        peers.iter().for_each(|&peer| core.queues.join_with(line(peer, tag), ticket));
        let is_all = peers.len() + 1 == core.health.latch.members().len();
        Self { tag, number, ticket, open: peers, ended: Vec::new(), is_all }
    }

    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Those whose links have not ended.
    pub fn open(&self) -> &[usize] {
        &self.open
    }

    /// Those whose links have ended, with nothing of this message on them, and how. A peer that left in order is missed by nobody.
    pub fn ended(&self) -> &[(usize, WireFault)] {
        &self.ended
    }

    /// Whether these are all other members of the group; else there are more, to whom other links lead.
    pub fn is_all(&self) -> bool {
        self.is_all
    }

    /// The peer whose message has come, if there is one. The receive is the first in its line there.
    pub(crate) fn find(&mut self, core: &mut Core) -> Result<Option<usize>, Fault> {
        let first = core.turns.first(self.tag, &self.open);
        let (mut found, before) = (None, self.ended.len());
        for at in (first..self.open.len()).chain(0..first) {
            let peer = self.open[at];
            if !core.queues.is_first(line(peer, self.tag), self.ticket) {
                continue;
            }
            match core.wire.arrival(peer, Key { channel: Channel::Message, id: self.tag }) {
                Ok(Some(_)) => {
                    found = Some(peer);
                    break;
                }
                Ok(None) => {}
                Err(fault @ WireFault::Gone(..)) => self.ended.push((peer, fault)),
                Err(fault) => return Err(Fault::Wire { peer, fault }),
            }
        }
        if self.ended.len() > before {
            let Self { open, ended, .. } = self;
            open.retain(|peer| ended.iter().all(|(ended, _)| ended != peer));
        }
        Ok(found)
    }

    /// The message of `peer` is the one.
    pub(crate) fn take(&self, peer: usize, core: &mut Core) {
        self.leave(Some(peer), core);
        core.turns.taken(self.tag, peer);
        core.health.latch.messages.comes_from(self.number, core.health.members()[peer]);
    }

    /// Leaves the lines of all peers but `stays`.
    pub(crate) fn leave(&self, stays: Option<usize>, core: &mut Core) {
        let ended = self.ended.iter().map(|(peer, _)| peer);
        for &peer in self.open.iter().chain(ended).filter(|&&peer| Some(peer) != stays) {
            core.queues.leave(line(peer, self.tag), self.ticket);
        }
        // Others may stand behind it there.
        core.wire.wake_sleepers();
    }

    /// The links of those in whose line it is the first.
    pub(crate) fn wants(&self, core: &Core, wants: &mut Vec<(usize, Direction)>) {
        let is_first = |&&peer: &&usize| core.queues.is_first(line(peer, self.tag), self.ticket);
        wants.extend(self.open.iter().filter(is_first).map(|&peer| (peer, Direction::Recv)));
    }
}

fn line(peer: usize, tag: u64) -> QueueKey {
    queue_key(OpKind::RecvAny, peer, tag)
}
