//! What all operations of a group share, and what a poll of one of them comes to.

use crate::eager::Eager;
use crate::message_queues::MessageQueues;
use crate::patience::OperationPatience;
use crate::said::Said;
use crate::scratch::SCRATCH_LEN;
use crate::turns::Turns;
use phalanx_control::group_health::GroupHealth;
use phalanx_core::Signature;
use phalanx_transport::{Wire, WireFault};
use std::sync::Arc;
use std::time::Duration;

/// What one poll of an operation did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It is done.
    Finished,
    /// Data moved.
    Moved,
    /// Nothing could be done.
    Idle,
}

/// What goes wrong in one poll. Peers are ranks of the group.
#[derive(Debug)]
pub enum Fault {
    /// A link failed, or brought what no correct peer sends.
    Wire {
        /// At the other end.
        peer: usize,
        /// What is wrong with it.
        fault: WireFault,
    },
    /// A peer called something else, or performs it otherwise.
    Mismatch {
        /// The peer, a rank of the group.
        peer: usize,
        /// The place among the group's collectives; 0 for messages.
        seq: u64,
        /// That of a message.
        tag: Option<u64>,
        /// What this rank called.
        ours: Box<Signature>,
        /// What the peer called, if it said so.
        theirs: Option<Box<Signature>>,
    },
    /// A peer sent what is no part of the operation.
    Nonsense {
        /// The peer, a rank of the group.
        peer: usize,
        /// What is wrong with it.
        what: String,
    },
}

impl From<(usize, WireFault)> for Fault {
    fn from((peer, fault): (usize, WireFault)) -> Self {
        Self::Wire { peer, fault }
    }
}

/// What all operations of a group share.
#[derive(Debug)]
pub struct Core {
    /// The group's links.
    pub wire: Wire,
    /// Ranks of the group, this one included.
    pub world_size: usize,
    /// The collective whose turn it is: they run one after the other, in the order of the calls.
    pub turn: u64,
    /// Messages that wait for each other.
    pub queues: MessageQueues,
    /// Whose turn it is where any peer may send.
    pub turns: Turns,
    /// Messages that are sent though nobody waits for it.
    pub eager: Eager,
    /// What the latest message that was sent at once said it was.
    pub(crate) said: Said,
    /// Aligned memory for received contributions.
    pub scratch: Vec<u64>,
    /// Whether the group has failed, and what it did lately.
    pub health: Arc<GroupHealth>,
    /// How long a call of the transport may wait.
    patience: Arc<OperationPatience>,
    /// The clock of the group's log of calls.
    pub log_clock: fn(&Signature) -> u64,
}

impl Core {
    /// Of a group that has this health and these links, whose first collective has number 1.
    pub fn new(health: Arc<GroupHealth>, mut wire: Wire, log_clock: fn(&Signature) -> u64) -> Self {
        let patience = Arc::new(OperationPatience::new(health.latch.clone()));
        wire.wait_with(patience.clone());
        Self {
            wire,
            world_size: health.members().len(),
            turn: 1,
            queues: MessageQueues::default(),
            turns: Turns::default(),
            eager: Eager::default(),
            said: Said::default(),
            scratch: vec![0; SCRATCH_LEN / 8],
            health,
            patience,
            log_clock,
        }
    }

    /// An operation is polled that has so much time left: so long a call of the transport may wait for a peer's last copy.
    pub fn polled_with(&self, left: Duration) {
        self.patience.is_of(left);
    }

    pub(crate) fn next_turn(&mut self) {
        self.turn += 1;
        self.wire.wake_sleepers();
    }
}
