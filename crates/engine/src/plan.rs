//! A schedule made ready to run: byte ranges instead of elements, outgoing and incoming halves apart.

use phalanx_algo::{Action, Algorithm, Buffers, Shape, Span};
use phalanx_core::Method;
use std::ops::Range;

/// One message: which bytes, to or from whom.
#[derive(Debug)]
pub struct Transfer {
    /// Orders messages on this rank: what may overlap with what.
    pub step: u32,
    /// Counts the messages between the two ranks in this direction: the same number on both.
    pub ordinal: u32,
    /// The other end, a rank of the group.
    pub peer: usize,
    /// Bytes of the buffer, in the order in which they travel. The second part is usually empty.
    pub parts: [Range<usize>; 2],
    /// For incoming messages.
    pub action: Action,
    /// What this rank has of these bytes are partial sums, kept beside the buffer (see [`partial`](crate::partial)): those it sends, or
    /// those to which it adds what it receives.
    pub is_partial: bool,
    /// Where the received contribution is kept until those of all are here, for sums in the order of the ranks. The last is not kept.
    pub kept_at: Option<usize>,
}

impl Transfer {
    /// Joins `others`, which go the same way.
    fn join(others: &mut Vec<Self>, step: usize, peer: usize, span: &Span, action: Action, element: usize) {
        let bytes = |r: &Range<usize>| r.start * element..r.end * element;
        let ordinal = others.iter().filter(|t| t.peer == peer).count() as u32;
        let parts = [bytes(&span.first), bytes(&span.second)];
        others.push(Self {
            step: step as u32,
            ordinal,
            peer,
            parts,
            action,
            is_partial: false,
            kept_at: None,
        });
    }

    /// Bytes of the buffer.
    pub(crate) fn len(&self) -> usize {
        self.parts[0].len() + self.parts[1].len()
    }

    /// Bytes of the message, if this rank sends it.
    pub fn sent_len(&self) -> usize {
        if self.is_partial { 2 * self.len() } else { self.len() }
    }

    /// Whole bytes of the buffer of which so many bytes of the message tell.
    pub fn sent_of_buffer(&self, sent: usize) -> usize {
        if self.is_partial { sent / 2 } else { sent }
    }

    /// What is not done of each part when the first `done` bytes are.
    pub fn left(&self, done: usize) -> [Range<usize>; 2] {
        let [first, second] = &self.parts;
        let beyond = done.saturating_sub(first.len());
        [first.start + done.min(first.len())..first.end, second.start + beyond..second.end]
    }

    /// The contiguous bytes that come next when the first `done` are done.
    pub fn next(&self, done: usize) -> Range<usize> {
        let [first, second] = self.left(done);
        if first.is_empty() { second } else { first }
    }
}

/// Where the sums of a collective are while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sums {
    /// In the buffer.
    InPlace,
    /// Beside it (see [`partial`](crate::partial)), once something has been added.
    Kept,
    /// Beside it from the beginning: what is to be combined are sums already.
    Begun,
    /// Nowhere: contributions are kept until all are here, then combined in the order of the ranks.
    InRankOrder,
}

/// All messages of one rank in one collective.
#[derive(Debug, Default)]
pub struct Plan {
    /// Messages to others, in the order of their steps.
    pub sends: Vec<Transfer>,
    /// Messages from others, in the order of their steps.
    pub recvs: Vec<Transfer>,
    /// Bytes of the buffer that are received in all.
    pub recv_bytes: u64,
    /// The bytes of the buffer from the first to the last that this rank's messages touch.
    pub touched: Range<usize>,
    /// Whether this rank may keep partial sums, or receive some.
    pub has_partials: bool,
    /// Bytes that are made partial sums before anything else, since they travel together with others that are. No algorithm sends results
    /// together with sums.
    pub widened: Vec<Range<usize>>,
    /// Bytes of contributions that this rank keeps until all are here.
    pub kept_len: usize,
    /// Bytes of a row, where messages are parts of a table with the contribution of each rank in its row, and not of the buffer.
    pub row_len: Option<usize>,
    /// What all ranks must plan alike, in words.
    pub method: Method,
}

impl Plan {
    /// Of one rank, in a buffer whose elements have so many bytes.
    pub fn new(algorithm: Algorithm, shape: &Shape<'_>, element: usize, sums: Sums) -> Self {
        let mut plan = Self::default();
        let is_wide = matches!(sums, Sums::Kept | Sums::Begun);
        let all = 0..shape.layout.len() * element;
        plan.row_len = (algorithm.buffers() == Buffers::Contributions).then_some(all.end);
        let mut results = Ranges::default();
        let mut partial = Ranges(if sums == Sums::Begun { vec![all] } else { Vec::new() });
        for (number, step) in algorithm.steps(shape).iter().enumerate() {
            if let Some(send) = &step.send {
                Transfer::join(&mut plan.sends, number, send.peer, &send.span, Action::Copy, element);
                let transfer = plan.sends.last_mut().expect("it was just joined");
                let known = plan.widened.len();
                transfer.is_partial = partial.meet_all(&transfer.parts, &mut plan.widened);
                debug_assert!(plan.widened[known..].iter().all(|range| !results.meets(range)), "{algorithm}");
            }
            if let Some(recv) = &step.recv {
                Transfer::join(&mut plan.recvs, number, recv.peer, &recv.span, recv.action, element);
                let transfer = plan.recvs.last_mut().expect("it was just joined");
                if sums == Sums::InRankOrder && recv.action == Action::Combine {
                    debug_assert!(algorithm.keeps_rank_order(), "{algorithm} sends partial sums");
                    transfer.kept_at = Some(plan.kept_len);
                    plan.kept_len += transfer.len();
                }
                if is_wide && recv.action != Action::Copy {
                    transfer.is_partial = partial.meet_all(&transfer.parts, &mut plan.widened);
                }
                // Of two contributions neither is a sum.
                let may_meet = shape.world_size > 2 || sums == Sums::Begun;
                plan.has_partials |= is_wide && recv.action != Action::Copy && may_meet;
                for part in &transfer.parts {
                    match recv.action {
                        Action::Combine if is_wide => partial.add(part),
                        _ => {
                            partial.remove(part);
                            results.add(part);
                        }
                    }
                }
            }
        }
        plan.recv_bytes = plan.recvs.iter().map(|t| t.len() as u64).sum();
        plan.touched = plan.sends.iter().chain(&plan.recvs).flat_map(|t| &t.parts).fold(0..0, hull);
        plan
    }
}

/// From the first byte of the two to the last.
fn hull(one: Range<usize>, other: &Range<usize>) -> Range<usize> {
    match (one.is_empty(), other.is_empty()) {
        (_, true) => one,
        (true, false) => other.clone(),
        (false, false) => one.start.min(other.start)..one.end.max(other.end),
    }
}

/// Bytes of the buffer, as ranges that do not meet.
#[derive(Debug, Default)]
struct Ranges(Vec<Range<usize>>);

impl Ranges {
    fn remove(&mut self, gone: &Range<usize>) {
        let rest =
            |have: &Range<usize>| [have.start..have.end.min(gone.start), have.start.max(gone.end)..have.end];
        self.0 = self.0.iter().flat_map(rest).filter(|range| !range.is_empty()).collect();
    }

    fn add(&mut self, new: &Range<usize>) {
        self.remove(new);
        self.0.push(new.clone());
    }

    #[cfg_attr(not(debug_assertions), allow(dead_code, reason = "an assertion asks"))]
    fn meets(&self, other: &Range<usize>) -> bool {
        self.0.iter().any(|have| have.start < other.end && other.start < have.end)
    }

    /// Whether any of `parts` is in here. The rest of them is then added, here and to `added`.
    fn meet_all(&mut self, parts: &[Range<usize>; 2], added: &mut Vec<Range<usize>>) -> bool {
        let mut missing = Self(parts.iter().filter(|part| !part.is_empty()).cloned().collect());
        let len = |ranges: &Self| ranges.0.iter().map(Range::len).sum::<usize>();
        let whole = len(&missing);
        self.0.iter().for_each(|have| missing.remove(have));
        let meets = len(&missing) < whole;
        if meets {
            missing.0.iter().for_each(|range| self.add(range));
            added.extend(missing.0);
        }
        meets
    }
}

/// `next`, cut where it meets any of `busy`: bytes another transfer still needs, or has not delivered yet.
pub fn clear_of(next: Range<usize>, busy: impl IntoIterator<Item = Range<usize>>) -> Range<usize> {
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

    fn plan(algorithm: Algorithm, rank: usize, world_size: usize, sums: Sums) -> Plan {
        let layout = phalanx_core::Layout::even(world_size, 12 * world_size);
        let shape = Shape { rank, world_size, layout: &layout, recv_layout: None, root: 0 };
        Plan::new(algorithm, &shape, 2, sums)
    }

    fn partial(transfers: &[Transfer]) -> Vec<bool> {
        transfers.iter().map(|transfer| transfer.is_partial).collect()
    }

    #[test]
    fn a_leaf_touches_its_own_block_alone_and_an_inner_rank_those_below_it() {
        let touched = |algorithm, rank| plan(algorithm, rank, 5, Sums::InPlace).touched;
        assert_eq!(touched(Algorithm::GatherFlat, 3), 72..96);
        assert_eq!(touched(Algorithm::ScatterBinomial, 3), 72..96);
        assert_eq!(touched(Algorithm::GatherBinomial, 2), 48..96);
        assert_eq!(touched(Algorithm::GatherFlat, 0), 24..120);
    }

    #[test]
    fn what_has_been_combined_is_partial_until_it_is_finished() {
        let ring = plan(Algorithm::AllReduceRing, 1, 4, Sums::Kept);
        // Its own block, two partial sums; then results.
        assert_eq!(partial(&ring.sends), [false, true, true, false, false, false]);
        // To what it receives it adds its own contribution, every time that of another block.
        assert_eq!(partial(&ring.recvs), [false; 6]);
        assert!(ring.has_partials && ring.widened.is_empty());
        assert!(!plan(Algorithm::AllReduceRing, 1, 4, Sums::InPlace).has_partials);
        let pair = plan(Algorithm::AllReduceRecursiveDoubling, 0, 2, Sums::Kept);
        assert!(!pair.has_partials, "two contributions are added once");
        let pair = plan(Algorithm::AllReduceRing, 0, 2, Sums::Begun);
        assert_eq!((partial(&pair.sends), partial(&pair.recvs)), (vec![true, false], vec![true, false]));
    }

    #[test]
    fn what_travels_with_partial_sums_is_widened_first() {
        let circulant = plan(Algorithm::AllReduceCirculant, 0, 7, Sums::Kept);
        let mixed = circulant.sends.iter().find(|t| t.is_partial && t.parts[0].len() > 24).unwrap();
        assert!(circulant.widened.iter().any(|range| mixed.parts.iter().any(|p| p.contains(&range.start))));
    }

    #[test]
    fn ranges_are_taken_apart() {
        let mut ranges = Ranges(vec![0..10, 20..30]);
        ranges.remove(&(5..25));
        assert_eq!(ranges.0, [0..5, 25..30]);
        let mut added = Vec::new();
        assert!(!ranges.meet_all(&[5..7, 0..0], &mut added) && added.is_empty());
        assert!(ranges.meet_all(&[24..26, 3..6], &mut added));
        assert_eq!((added.len(), added.iter().map(Range::len).sum::<usize>()), (2, 2));
    }

    #[test]
    fn ranges_are_cut_where_others_are_busy() {
        assert_eq!(clear_of(4..8, [0..4, 8..9, 6..6]), 4..8);
        assert_eq!(clear_of(4..8, [6..20, 9..9]), 4..6);
        assert_eq!(clear_of(4..8, [7..8, 5..6]), 4..5);
        assert!(clear_of(4..8, [0..5, 7..8]).is_empty());
    }
}
