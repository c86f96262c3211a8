//! Blocks travel round the ring and gather contributions on the way.

use crate::card::card;
use crate::plan::{exchange, recv, send};
use crate::{Action, Cost, Shape, Step};

card! {
    op: ReduceScatter, name: "ring",
    idea: "In each step a rank passes a partial sum to the next rank and combines the one from the previous; \
           the block of rank r starts at r + 1 and comes home last.",
    rounds: "P − 1", sent: "(P − 1)b", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 69(2), 2009",
    cost: |v| Cost::of_equals(v, v.others(), v.others_blocks(), v.others_blocks()),
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
