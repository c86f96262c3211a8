//! What a group is asked to do, a collective or a message, for whoever keeps its buffers.

use crate::any_peer::AnyPeer;
use crate::collective::{Collective, Memory};
use crate::core::{Core, Fault, Progress};
use crate::message::{Message, Payload};
use phalanx_control::group_health::GroupHealth;
use phalanx_core::{OpKind, Signature};
use phalanx_transport::Direction;

/// A collective or a message.
#[derive(Debug)]
pub enum Task {
    /// A collective.
    Collective(Box<Collective>),
    /// With its number.
    Message(Message, u64),
}

/// As an [`Operation`](crate::operation::Operation), but for the memory it works on.
impl Task {
    /// Does all that can be done now.
    pub fn poll(&mut self, core: &mut Core, memory: &mut Memory<'_>) -> Result<Progress, Fault> {
        match (self, memory) {
            (Self::Collective(collective), memory) => collective.poll(core, memory),
            (Self::Message(message, _), memory) => match message.signature().op {
                OpKind::Recv | OpKind::RecvAny => message.poll(core, &mut Payload::In(memory.buffer())),
                _ => message.poll(core, &mut Payload::Out(memory.input())),
            },
        }
    }

    /// The links it waits for, and which way.
    pub fn wants(&self, core: &Core, wants: &mut Vec<(usize, Direction)>) {
        match self {
            Self::Collective(collective) => collective.wants(core, wants),
            Self::Message(message, _) => message.wants(core, wants),
        }
    }

    /// What was called.
    pub fn signature(&self) -> &Signature {
        match self {
            Self::Collective(collective) => collective.signature(),
            Self::Message(message, _) => message.signature(),
        }
    }

    /// Its place among the group's collectives; 0 for messages.
    pub fn seq(&self) -> u64 {
        match self {
            Self::Collective(collective) => collective.seq(),
            Self::Message(..) => 0,
        }
    }

    /// Payload bytes received, and all there are to receive.
    pub fn bytes(&self) -> (u64, u64) {
        match self {
            Self::Collective(collective) => collective.bytes(),
            Self::Message(message, _) => message.bytes(),
        }
    }

    /// Of a message: the other end, as a rank of the group, or `None` while any may send it; and the tag.
    pub fn message(&self) -> Option<(Option<usize>, u64)> {
        match self {
            Self::Collective(_) => None,
            Self::Message(message, _) => Some(message.ends()),
        }
    }

    /// The peers that may send it, while any may.
    pub fn any_peer(&self) -> Option<&AnyPeer> {
        match self {
            Self::Collective(_) => None,
            Self::Message(message, _) => message.any_peer(),
        }
    }

    /// Whether its turn has come.
    pub fn is_due(&self, core: &Core) -> bool {
        match self {
            Self::Collective(collective) => core.turn == collective.seq(),
            Self::Message(message, _) => message.is_due(core),
        }
    }

    /// It ended well.
    pub fn ended(&self, health: &GroupHealth, clock: impl FnOnce(&Signature) -> u64) {
        match self {
            Self::Collective(collective) => {
                health.ended(collective.seq(), collective.signature(), clock);
            }
            Self::Message(message, number) => {
                health.latch.messages.end_message(*number, message.signature(), true, clock);
            }
        }
    }
}
