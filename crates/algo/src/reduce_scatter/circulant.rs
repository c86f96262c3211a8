//! Bruck's all_gather played backwards.

use crate::plan::{arc, ceil_log2, exchange, recv, send};
use crate::properties::properties;
use crate::{Action, Cost, Shape, Step};

properties! {
    op: ReduceScatter, name: "circulant",
    idea: "At distance …, 4, 2, 1 a rank hands on its partial sums for the far blocks and combines those for the near ones. \
           Each block is combined along a tree, so the fewest rounds and the fewest bytes meet in one algorithm, for any P.",
    rounds: "⌈log₂P⌉", sent: "(P − 1)b", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    combines: OnTheWay,
    source: "Träff: Optimal, non-pipelined reduce-scatter and allreduce algorithms, arXiv:2410.14234, 2024",
    cost: |v| Cost::of_equals(v, f64::from(ceil_log2(v.world_size)), v.others_blocks(), v.others_blocks()),
    picture: "\
round  rank 0        rank 1        rank 2        rank 3        rank 4
    1  4→4   +0←1    0→0   +1←2    1→1   +2←3    2→2   +3←4    3→3   +4←0
    2  2-3→2 +0-1←3  3-4→3 +1-2←4  4,0→4 +2-3←0  0-1→0 +3-4←1  1-2→1 +4,0←2
    3  1→1   Σ0←4    2→2   Σ1←0    3→3   Σ2←1    4→4   Σ3←2    0→0   Σ4←3
",
}

/// Before the round of `distance`, a rank holds partial sums for the blocks of itself and up to `2 · distance - 1`
/// ranks after it; after the round, for those of itself and `distance - 1` ranks after it.
fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let Shape { rank, world_size, layout, .. } = *shape;
    (0..ceil_log2(world_size))
        .rev()
        .filter_map(|round| {
            let distance = 1 << round;
            let count = distance.min(world_size - distance);
            let (to, from) = ((rank + distance) % world_size, (rank + world_size - distance) % world_size);
            let action = if distance == 1 { Action::Finish } else { Action::Combine };
            exchange(send(to, arc(layout, to, count)), recv(from, arc(layout, rank, count), action))
        })
        .collect()
}
