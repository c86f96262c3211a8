//! Who comes first: lines of calls that must be served in order.

use super::message::Ticket;
use phalanx_transport::Direction;
use std::collections::{HashMap, VecDeque};

type Line = (Direction, usize, u64);

/// All lines of one group. A line exists while somebody stands in it.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    next: Ticket,
    lines: HashMap<Line, VecDeque<Ticket>>,
}

impl Lines {
    /// Joins a line at its end.
    pub(crate) fn join(&mut self, line: Line) -> Ticket {
        self.next += 1;
        self.lines.entry(line).or_default().push_back(self.next);
        self.next
    }

    pub(crate) fn is_first(&self, line: Line, ticket: Ticket) -> bool {
        self.lines.get(&line).and_then(VecDeque::front) == Some(&ticket)
    }

    /// Leaves a line, from wherever in it.
    pub(crate) fn leave(&mut self, line: Line, ticket: Ticket) {
        if let Some(waiting) = self.lines.get_mut(&line) {
            waiting.retain(|&t| t != ticket);
            if waiting.is_empty() {
                self.lines.remove(&line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_come_first_served_and_anyone_may_leave() {
        let mut lines = Lines::default();
        let line = (Direction::Recv, 1, 7);
        let (a, b, c) = (lines.join(line), lines.join(line), lines.join(line));
        let other = lines.join((Direction::Recv, 1, 8));
        assert!(lines.is_first(line, a) && !lines.is_first(line, b));
        assert!(lines.is_first((Direction::Recv, 1, 8), other));
        lines.leave(line, b);
        lines.leave(line, a);
        assert!(lines.is_first(line, c));
        lines.leave(line, c);
        assert_eq!(lines.lines.len(), 1);
    }
}
