//! What a group is asked to do, a collective or a message, for whoever keeps its buffers.

use super::collective::{Collective, Memory};
use super::message::{Message, Payload};
use super::{Core, Fault, Progress};
use crate::control::group_health::GroupHealth;
use crate::trace::clock;
use phalanx_core::{OpKind, Signature};
use phalanx_transport::Direction;

#[derive(Debug)]
pub(crate) enum Task {
    Collective(Box<Collective>),
    /// With its number.
    Message(Message, u64),
}

/// As an [`Operation`](super::Operation), but for the memory it works on.
impl Task {
    pub(crate) fn poll(&mut self, core: &mut Core, memory: &mut Memory<'_>) -> Result<Progress, Fault> {
        match (self, memory) {
            (Self::Collective(collective), memory) => collective.poll(core, memory),
            (Self::Message(message, _), Memory::InPlace(bytes) | Memory::Separate(_, bytes))
                if message.signature().op == OpKind::Recv =>
            {
                message.poll(core, &mut Payload::In(bytes))
            }
            (Self::Message(message, _), Memory::InPlace(bytes)) => {
                message.poll(core, &mut Payload::Out(bytes))
            }
            (Self::Message(message, _), Memory::Separate(bytes, _)) => {
                message.poll(core, &mut Payload::Out(bytes))
            }
        }
    }

    pub(crate) fn wants(&self, core: &Core, wants: &mut Vec<(usize, Direction)>) {
        match self {
            Self::Collective(collective) => collective.wants(core, wants),
            Self::Message(message, _) => message.wants(core, wants),
        }
    }

    pub(crate) fn signature(&self) -> &Signature {
        match self {
            Self::Collective(collective) => collective.signature(),
            Self::Message(message, _) => message.signature(),
        }
    }

    pub(crate) fn seq(&self) -> u64 {
        match self {
            Self::Collective(collective) => collective.seq(),
            Self::Message(..) => 0,
        }
    }

    pub(crate) fn bytes(&self) -> (u64, u64) {
        match self {
            Self::Collective(collective) => collective.bytes(),
            Self::Message(message, _) => message.bytes(),
        }
    }

    pub(crate) fn message(&self) -> Option<(usize, u64)> {
        match self {
            Self::Collective(_) => None,
            Self::Message(message, _) => Some(message.ends()),
        }
    }

    pub(crate) fn is_due(&self, core: &Core) -> bool {
        match self {
            Self::Collective(collective) => core.turn == collective.seq(),
            Self::Message(message, _) => message.is_due(core),
        }
    }

    /// It ended well.
    pub(crate) fn ended(&self, health: &GroupHealth) {
        match self {
            Self::Collective(collective) => {
                health.ended(collective.seq(), collective.signature(), clock::now);
            }
            Self::Message(message, number) => {
                health.latch.messages.end_message(*number, message.signature(), true, clock::now);
            }
        }
    }
}
