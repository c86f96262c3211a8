//! Bruck's algorithm: what a rank holds doubles in each round, for any number of ranks.

use crate::plan::{arc, ceil_log2, exchange, recv, send};
use crate::properties::properties;
use crate::{Action, Cost, Shape, Step};

properties! {
    op: AllGather, name: "bruck",
    idea: "At distance 1, 2, 4, … a rank hands all the blocks it holds to a rank before it and gets as many from a rank after it. \
           The original rotates the blocks at the end; here they lie in their places at once, and spans wrap around.",
    rounds: "⌈log₂P⌉", sent: "(P − 1)b", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "Bruck, Ho, Kipnis, Upfal, Weathersby: Efficient algorithms for all-to-all communications in multiport message-passing systems, IEEE TPDS 8(11), 1997",
    cost: |v| Cost::of_equals(v, f64::from(ceil_log2(v.world_size)), v.others_blocks(), 0.0),
    picture: "\
round  rank 0       rank 1       rank 2       rank 3       rank 4
    1  0→4   1←1    1→0   2←2    2→1   3←3    3→2   4←4    4→3   0←0
    2  0-1→3 2-3←2  1-2→4 3-4←3  2-3→0 4,0←4  3-4→1 0-1←0  4,0→2 1-2←1
    3  0→1   4←4    1→2   0←0    2→3   1←1    3→4   2←2    4→0   3←3
",
}

/// Before the round of `distance`, a rank holds the blocks of itself and `distance - 1` ranks after it.
fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let Shape { rank, world_size, layout, .. } = *shape;
    (0..ceil_log2(world_size))
        .filter_map(|round| {
            let distance = 1 << round;
            let count = distance.min(world_size - distance);
            let (from, to) = ((rank + distance) % world_size, (rank + world_size - distance) % world_size);
            exchange(send(to, arc(layout, rank, count)), recv(from, arc(layout, from, count), Action::Copy))
        })
        .collect()
}
