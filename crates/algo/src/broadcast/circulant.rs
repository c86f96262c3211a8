//! In pieces along a circulant graph: the fewest rounds in which so many pieces can reach all.

use crate::circulant_graph::{Circulant, Piece, hops, pieces};
use crate::plan::{ceil_log2, exchange, recv, send};
use crate::properties::properties;
use crate::{Action, Cost, Shape, Step};
use phalanx_core::Layout;

properties! {
    op: Broadcast, name: "circulant",
    idea: "In pieces; in every round each rank passes a piece on to a rank at a fixed distance and gets another, so that all lines are full \
           after ⌈log₂P⌉ rounds. Hardly more than the buffer crosses the longest path. The choice for many bytes and many ranks.",
    rounds: "7⌈log₂P⌉ − 1", sent: "less than 7n/6, by the root", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    considered: ForManyRanks,
    source: "Träff: Optimal broadcast schedules in logarithmic time, arXiv:2407.18004, 2024",
    cost: |v| {
        let pieces = pieces(v.world_size, v.len as usize) as f64;
        if pieces == 0.0 {
            return Cost::default();
        }
        let q = f64::from(ceil_log2(v.world_size));
        let (rounds, others) = (pieces - 1.0 + q, v.others());
        let moved = rounds * (v.len / pieces).ceil();
        Cost { rounds, sent: moved, hops: hops(v.world_size, pieces as usize), messages: pieces * others, traffic: others * v.len, moved, ..Cost::default() }
    },
    picture: "\
round  rank 0  rank 1   rank 2   rank 3   rank 4
    1  0→3                           0←0
    2  1→1         1←0           0→4          0←3
    3  2→2         0←4      2←0           0→1
    4  3→3     1→4          0←4      3←0  0→2 1←1
    5  4→1     1→2 4←0  2→3 1←1  3→4 2←2      3←3
    6  4→2     1→3 3←4  2→4 4←0      1←1  3→1 2←2
    7  4→3     4→4 2←3      3←4  2→1 4←0  3→2 4←1
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let Shape { rank, world_size, root, .. } = *shape;
    let (place, pieces) = ((rank + world_size - root) % world_size, pieces(world_size, shape.layout.len()));
    if pieces == 0 {
        return Vec::new();
    }
    let graph = Circulant::new(world_size);
    let layout = Layout::even(pieces, shape.layout.len());
    let rank_at = |place: usize| (place + root) % world_size;
    let sent = graph.rounds(pieces, &graph.sent(place));
    let received = graph.rounds(pieces, &graph.received(place));
    let step = |((k, out), (_, into)): ((usize, Option<Piece>), (usize, Option<Piece>))| {
        let (next, previous) = (graph.next(place, k), graph.previous(place, k));
        let leaves =
            out.and_then(|piece| send(rank_at(next), layout.block(piece.number)).filter(|_| next > 0));
        let arrives = into.and_then(|piece| {
            recv(rank_at(previous), layout.block(piece.number), Action::Copy).filter(|_| place > 0)
        });
        exchange(leaves, arrives)
    };
    sent.into_iter().zip(received).filter_map(step).collect()
}
