//! Memory that has come from other ranks, until somebody asks for it.

use phalanx_core::GroupId;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;

/// Descriptors kept for groups that do not ask for them yet: the other ranks may be ahead.
const EARLY_MEMORIES_MAX: usize = 256;
/// For which group, from which rank of the job, and which of those.
type Key = (GroupId, usize, u64);

/// Memory that has come and is not asked for, and requests for memory that has not come.
#[derive(Debug, Default)]
pub(crate) struct Memories(HashMap<Key, Slot>);

#[derive(Debug)]
enum Slot {
    Here(OwnedFd),
    Awaited(Sender<OwnedFd>),
}

impl Memories {
    /// Takes what has come; whether it is wanted.
    pub(crate) fn put(&mut self, key: Key, memory: OwnedFd) -> bool {
        match self.0.remove(&key) {
            // Whoever waited may have given up.
            Some(Slot::Awaited(reply)) => reply.send(memory).is_ok(),
            Some(here) => {
                self.0.insert(key, here);
                false
            }
            None if self.0.len() < EARLY_MEMORIES_MAX => self.0.insert(key, Slot::Here(memory)).is_none(),
            None => false,
        }
    }

    /// Drops all memory of this group: nobody asks for it any more.
    pub(crate) fn forget(&mut self, group: GroupId) {
        self.0.retain(|(of, ..), _| *of != group);
    }

    pub(super) fn ask(&mut self, key: Key, reply: Sender<OwnedFd>) {
        match self.0.remove(&key) {
            // Whoever asked may have given up.
            Some(Slot::Here(memory)) => drop(reply.send(memory)),
            _ => drop(self.0.insert(key, Slot::Awaited(reply))),
        }
    }
}
