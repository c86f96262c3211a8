//! The words in which algorithms are written: three kinds of step, and a run of blocks on the circle of ranks.

use crate::{Action, Recv, Send, Shape, Span, Step};
use phalanx_core::Layout;

/// A step that only sends; none if there is nothing to send.
///
/// Both ends of a transfer know its length, so they leave out an empty one in accord.
pub(crate) fn send(peer: usize, span: impl Into<Span>) -> Option<Step> {
    let span = span.into();
    (!span.is_empty()).then_some(Step { send: Some(Send { peer, span }), recv: None })
}

/// A step that only receives; none if there is nothing to receive.
pub(crate) fn recv(peer: usize, span: impl Into<Span>, action: Action) -> Option<Step> {
    let span = span.into();
    (!span.is_empty()).then_some(Step { send: None, recv: Some(Recv { peer, span, action }) })
}

/// A step that does both at the same time; either half may turn out empty and be left out.
pub(crate) fn exchange(outgoing: Option<Step>, incoming: Option<Step>) -> Option<Step> {
    match (outgoing, incoming) {
        (Some(out), Some(inc)) => Some(Step { send: out.send, recv: inc.recv }),
        (one, other) => one.or(other),
    }
}

/// The blocks of `count` ranks from `start` on, going round the circle of ranks.
pub(crate) fn arc(layout: &Layout, start: usize, count: usize) -> Span {
    let world_size = layout.world_size();
    let start = start % world_size;
    let end = start + count;
    Span {
        first: layout.blocks(start..end.min(world_size)),
        second: layout.blocks(0..end.saturating_sub(world_size)),
    }
}

/// Everybody but the root, beginning behind it on the circle of ranks.
pub(crate) fn others(shape: &Shape<'_>) -> impl Iterator<Item = usize> {
    let Shape { world_size, root, .. } = *shape;
    (1..world_size).map(move |distance| (root + distance) % world_size)
}

/// ⌈log₂ `n`⌉, the rounds that any algorithm needs to spread one rank's data to `n` ranks.
pub(crate) fn ceil_log2(n: usize) -> u32 {
    n.next_power_of_two().trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arcs_wrap_past_the_last_rank() {
        let layout = Layout::from_counts(&[2, 0, 3, 1]);
        assert_eq!(arc(&layout, 1, 2), Span::from(2..5));
        assert_eq!(arc(&layout, 3, 2), Span { first: 5..6, second: 0..2 });
        assert_eq!(arc(&layout, 6, 4), Span { first: 2..6, second: 0..2 });
    }

    #[test]
    fn logarithms_round_up() {
        assert_eq!([1, 2, 3, 4, 5, 8, 9].map(ceil_log2), [0, 1, 2, 2, 3, 3, 4]);
    }

    #[test]
    fn empty_halves_are_left_out() {
        let (out, inc) = (|| send(1, 0..4), || recv(2, 4..6, Action::Copy));
        assert_eq!(exchange(out(), inc()).map(|s| (s.send.is_some(), s.recv.is_some())), Some((true, true)));
        assert_eq!(exchange(out(), recv(2, 4..4, Action::Copy)), out());
        assert_eq!(exchange(send(1, 3..3), inc()), inc());
        assert_eq!(exchange(None, None), None);
    }
}
