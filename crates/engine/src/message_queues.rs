//! Queues of point-to-point calls, which are served in the order in which they were made.

use phalanx_core::OpKind;
use phalanx_transport::Direction;
use std::collections::{HashMap, VecDeque};

/// Messages with one direction, peer and tag are served in the order of their calls.
pub type QueueKey = (Direction, usize, u64);

/// A place in a queue, taken when the call is made.
pub type Ticket = u64;

/// All queues of one group. A queue exists while a call waits in it.
#[derive(Debug, Default)]
pub struct MessageQueues {
    next: Ticket,
    queues: HashMap<QueueKey, VecDeque<Ticket>>,
}

impl MessageQueues {
    /// Joins a queue at its end.
    pub fn join(&mut self, key: QueueKey) -> Ticket {
        self.next += 1;
        self.queues.entry(key).or_default().push_back(self.next);
        self.next
    }

    /// A ticket for several queues, each of which is [joined with it](Self::join_with).
    pub fn ticket(&mut self) -> Ticket {
        self.next += 1;
        self.next
    }

    /// Joins another queue with this ticket.
    pub fn join_with(&mut self, key: QueueKey, ticket: Ticket) {
        self.queues.entry(key).or_default().push_back(ticket);
    }

    /// Whether it is served now.
    pub fn is_first(&self, key: QueueKey, ticket: Ticket) -> bool {
        self.queues.get(&key).and_then(VecDeque::front) == Some(&ticket)
    }

    /// Leaves a queue, from wherever in it.
    pub fn leave(&mut self, key: QueueKey, ticket: Ticket) {
        if let Some(waiting) = self.queues.get_mut(&key) {
            waiting.retain(|&t| t != ticket);
            if waiting.is_empty() {
                self.queues.remove(&key);
            }
        }
    }
}

/// The line in which a call waits: sends to one peer are one line, receives one for each peer and tag.
pub fn queue_key(op: OpKind, peer: usize, tag: u64) -> QueueKey {
    match op {
        OpKind::Recv | OpKind::RecvAny => (Direction::Recv, peer, tag),
        _ => (Direction::Send, peer, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_come_first_served_and_anyone_may_leave() {
        let mut queues = MessageQueues::default();
        let key = (Direction::Recv, 1, 7);
        let (a, b, c) = (queues.join(key), queues.join(key), queues.join(key));
        let other = queues.join((Direction::Recv, 1, 8));
        assert!(queues.is_first(key, a) && !queues.is_first(key, b));
        assert!(queues.is_first((Direction::Recv, 1, 8), other));
        queues.leave(key, b);
        queues.leave(key, a);
        assert!(queues.is_first(key, c));
        queues.leave(key, c);
        assert_eq!(queues.queues.len(), 1);
    }
}
