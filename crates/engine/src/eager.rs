//! Short messages need no receiver: what the transport does not take at once is copied, and the group's own thread sends it.

use std::collections::HashMap;

/// A message of at most so many bytes is sent without its receiver.
///
/// To each peer, messages that it has not taken may add up to this, each counted as 1 KiB at least: that is one message of
/// 256 KiB, or 256 short ones. Beyond that, a send may wait until the peer takes one.
// As much as a pipe in shared memory holds. Threads' pipes hold 1 MiB; what TCP takes depends on the system.
pub const EAGER_LIMIT: usize = 256 << 10;

/// What a message counts for at least.
const COST_MIN: usize = 1 << 10;

/// Bytes that are held for peers that have not taken them.
#[derive(Debug, Default)]
pub struct Eager(HashMap<usize, usize>);

impl Eager {
    /// Makes room for a message of `len` bytes to `peer`, if there is any.
    pub fn reserve(&mut self, peer: usize, len: usize) -> bool {
        let held = self.0.entry(peer).or_default();
        let fits = *held + len.max(COST_MIN) <= EAGER_LIMIT;
        if fits {
            *held += len.max(COST_MIN);
        }
        fits
    }

    /// Makes room for all these messages, each with its peer and its length, or for none of them.
    pub fn reserve_all(&mut self, messages: impl Iterator<Item = (usize, usize)> + Clone) -> bool {
        let refused = messages.clone().position(|(peer, len)| !self.reserve(peer, len));
        if let Some(refused) = refused {
            messages.take(refused).for_each(|(peer, len)| self.release(peer, len));
        }
        refused.is_none()
    }

    /// The message is on its way.
    pub fn release(&mut self, peer: usize, len: usize) {
        if let Some(held) = self.0.get_mut(&peer) {
            *held = held.saturating_sub(len.max(COST_MIN));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_has_room_for_the_limit() {
        let mut eager = Eager::default();
        assert!(!eager.reserve(1, EAGER_LIMIT + 1));
        assert!(eager.reserve(1, EAGER_LIMIT) && !eager.reserve(1, 0));
        assert!((0..256).all(|_| eager.reserve(2, 3)) && !eager.reserve(2, 3));
        eager.release(1, EAGER_LIMIT);
        eager.release(2, 3);
        assert!(eager.reserve(2, 3) && eager.reserve(1, EAGER_LIMIT));
    }

    #[test]
    fn there_is_room_for_all_messages_or_for_none() {
        let mut eager = Eager::default();
        assert!(!eager.reserve_all([(1, EAGER_LIMIT), (2, 3), (1, 0)].into_iter()));
        assert!(eager.reserve_all([(1, EAGER_LIMIT), (2, EAGER_LIMIT)].into_iter()));
        assert!(!eager.reserve(1, 0) && !eager.reserve(2, 0));
    }
}
