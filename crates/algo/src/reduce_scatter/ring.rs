//! Blocks travel round the ring and gather contributions on the way.

use crate::plan::{exchange, recv, send};
use crate::properties::properties;
use crate::{Action, Cost, Shape, Step};

properties! {
    op: ReduceScatter, name: "ring",
    idea: "In each step a rank passes a partial sum to the next rank and combines the one from the previous; \
           the block of rank r starts at r + 1 and comes home last.",
    rounds: "P − 1", sent: "(P − 1)b", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    combines: OnTheWay,
    source: "Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 69(2), 2009",
    cost: |v| Cost::of_equals(v, v.others(), v.others_blocks(), v.others_blocks()),
    picture: "\
round  rank 0    rank 1    rank 2    rank 3    rank 4
    1  4→1 +3←4  0→2 +4←0  1→3 +0←1  2→4 +1←2  3→0 +2←3
    2  3→1 +2←4  4→2 +3←0  0→3 +4←1  1→4 +0←2  2→0 +1←3
    3  2→1 +1←4  3→2 +2←0  4→3 +3←1  0→4 +4←2  1→0 +0←3
    4  1→1 Σ0←4  2→2 Σ1←0  3→3 Σ2←1  4→4 Σ3←2  0→0 Σ4←3
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let Shape { rank, world_size, layout, .. } = *shape;
    let (next, prev) = ((rank + 1) % world_size, (rank + world_size - 1) % world_size);
    let block_back = |by: usize| layout.block((rank + world_size - by) % world_size);
    (1..world_size)
        .filter_map(|s| {
            let action = if s == world_size - 1 { Action::Finish } else { Action::Combine };
            exchange(send(next, block_back(s)), recv(prev, block_back(s + 1), action))
        })
        .collect()
}
