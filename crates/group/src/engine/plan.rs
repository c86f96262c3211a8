//! A schedule made ready to run: byte ranges instead of elements, outgoing and incoming halves apart.

use phalanx_algo::{Action, Algorithm, Shape, Span};
use std::ops::Range;

/// One message: which bytes, to or from whom.
#[derive(Debug)]
pub(crate) struct Transfer {
    /// Orders messages on this rank: what may overlap with what.
    pub(crate) step: u32,
    /// Counts the messages between the two ranks in this direction: the same number on both.
    pub(crate) ordinal: u32,
    pub(crate) peer: usize,
    /// Bytes of the buffer, in the order in which they travel. The second part is usually empty.
    pub(crate) parts: [Range<usize>; 2],
    /// For incoming messages.
    pub(crate) action: Action,
}

impl Transfer {
    /// Joins `others`, which go the same way.
    fn join(others: &mut Vec<Self>, step: usize, peer: usize, span: &Span, action: Action, element: usize) {
        let bytes = |r: &Range<usize>| r.start * element..r.end * element;
        let ordinal = others.iter().filter(|t| t.peer == peer).count() as u32;
        let parts = [bytes(&span.first), bytes(&span.second)];
        others.push(Self { step: step as u32, ordinal, peer, parts, action });
    }

    pub(crate) fn len(&self) -> usize {
        self.parts[0].len() + self.parts[1].len()
    }

    /// What is not done of each part when the first `done` bytes are.
    pub(crate) fn left(&self, done: usize) -> [Range<usize>; 2] {
        let [first, second] = &self.parts;
        let beyond = done.saturating_sub(first.len());
        [first.start + done.min(first.len())..first.end, second.start + beyond..second.end]
    }

    /// The contiguous bytes that come next when the first `done` are done.
    pub(crate) fn next(&self, done: usize) -> Range<usize> {
        let [first, second] = self.left(done);
        if first.is_empty() { second } else { first }
    }
}

/// All messages of one rank in one collective.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) sends: Vec<Transfer>,
    pub(crate) recvs: Vec<Transfer>,
    pub(crate) recv_bytes: u64,
}

impl Plan {
    pub(crate) fn new(algorithm: Algorithm, shape: &Shape<'_>, element: usize) -> Self {
        let mut plan = Self::default();
        for (number, step) in algorithm.steps(shape).iter().enumerate() {
            if let Some(send) = &step.send {
                Transfer::join(&mut plan.sends, number, send.peer, &send.span, Action::Copy, element);
            }
            if let Some(recv) = &step.recv {
                Transfer::join(&mut plan.recvs, number, recv.peer, &recv.span, recv.action, element);
            }
        }
        plan.recv_bytes = plan.recvs.iter().map(|t| t.len() as u64).sum();
        plan
    }
}

/// `next`, cut where it meets any of `busy`: bytes another transfer still needs, or has not delivered yet.
pub(crate) fn clear_of(next: Range<usize>, busy: impl IntoIterator<Item = Range<usize>>) -> Range<usize> {
    busy.into_iter().fold(next, |next, busy| {
        let apart = busy.is_empty() || busy.end <= next.start || busy.start >= next.end;
        if apart { next } else { next.start..busy.start.max(next.start) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_advance_through_both_parts() {
        let span = Span { first: 3..5, second: 0..1 };
        let mut transfers = Vec::new();
        Transfer::join(&mut transfers, 0, 1, &span, Action::Copy, 4);
        let transfer = &transfers[0];
        assert_eq!(transfer.len(), 12);
        assert_eq!(transfer.next(0), 12..20);
        assert_eq!(transfer.next(7), 19..20);
        assert_eq!(transfer.next(8), 0..4);
        assert_eq!(transfer.left(11), [20..20, 3..4]);
        assert!(transfer.next(12).is_empty());
    }

    #[test]
    fn ranges_are_cut_where_others_are_busy() {
        assert_eq!(clear_of(4..8, [0..4, 8..9, 6..6]), 4..8);
        assert_eq!(clear_of(4..8, [6..20, 9..9]), 4..6);
        assert_eq!(clear_of(4..8, [7..8, 5..6]), 4..5);
        assert!(clear_of(4..8, [0..5, 7..8]).is_empty());
    }
}
