//! Queues of point-to-point calls, which are served in the order in which they were made.

use phalanx_core::OpKind;
use phalanx_transport::Direction;
use std::collections::VecDeque;

/// Messages with one direction, peer and tag are served in the order of their calls.
pub type QueueKey = (Direction, usize, u64);

/// A place in a queue, taken when the call is made.
pub type Ticket = u64;

/// All queues of one group. A queue exists while a call waits in it.
#[derive(Debug, Default)]
pub struct MessageQueues {
    next: Ticket,
    /// In the order of their keys. Hardly ever are there more than a few, which are found faster than a hash is computed.
    queues: Vec<(QueueKey, Queue)>,
}

/// Calls that wait for one another. Nearly always there is one, for which nothing is allocated.
#[derive(Debug)]
struct Queue {
    first: Ticket,
    behind: VecDeque<Ticket>,
}

impl MessageQueues {
    fn find(&self, key: QueueKey) -> Result<usize, usize> {
        self.queues.binary_search_by_key(&key, |(key, _)| *key)
    }

    /// Joins a queue at its end.
    pub fn join(&mut self, key: QueueKey) -> Ticket {
        let ticket = self.ticket();
        self.join_with(key, ticket);
        ticket
    }

    /// A ticket for several queues, each of which is [joined with it](Self::join_with).
    pub fn ticket(&mut self) -> Ticket {
        self.next += 1;
        self.next
    }

    /// Joins another queue with this ticket.
    pub fn join_with(&mut self, key: QueueKey, ticket: Ticket) {
        match self.find(key) {
            Ok(at) => self.queues[at].1.behind.push_back(ticket),
            Err(at) => self.queues.insert(at, (key, Queue { first: ticket, behind: VecDeque::new() })),
        }
    }

    /// Whether no call waits in this queue.
    pub fn is_free(&self, key: QueueKey) -> bool {
        self.find(key).is_err()
    }

    /// Whether it is served now.
    pub fn is_first(&self, key: QueueKey, ticket: Ticket) -> bool {
        self.find(key).is_ok_and(|at| self.queues[at].1.first == ticket)
    }

    /// Leaves a queue, from wherever in it.
    pub fn leave(&mut self, key: QueueKey, ticket: Ticket) {
        let Ok(at) = self.find(key) else { return };
        let queue = &mut self.queues[at].1;
        if queue.first != ticket {
            queue.behind.retain(|&t| t != ticket);
            return;
        }
        match queue.behind.pop_front() {
            Some(next) => queue.first = next,
            None => drop(self.queues.remove(at)),
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
