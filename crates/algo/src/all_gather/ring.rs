//! Blocks travel round the ring.

use crate::plan::{exchange, recv, send};
use crate::properties::properties;
use crate::{Action, Cost, Shape, Step};

properties! {
    op: AllGather, name: "ring",
    idea: "In each step a rank passes the block that it got last to the next rank.",
    rounds: "P − 1", sent: "(P − 1)b", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, IJHPCA 19(1), 2005",
    cost: |v| Cost::of_equals(v, v.others(), v.others_blocks(), 0.0),
    picture: "\
round  rank 0   rank 1   rank 2   rank 3   rank 4
    1  0→1 4←4  1→2 0←0  2→3 1←1  3→4 2←2  4→0 3←3
    2  4→1 3←4  0→2 4←0  1→3 0←1  2→4 1←2  3→0 2←3
    3  3→1 2←4  4→2 3←0  0→3 4←1  1→4 0←2  2→0 1←3
    4  2→1 1←4  3→2 2←0  4→3 3←1  0→4 4←2  1→0 0←3
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let Shape { rank, world_size, layout, .. } = *shape;
    let (next, prev) = ((rank + 1) % world_size, (rank + world_size - 1) % world_size);
    let block_back = |by: usize| layout.block((rank + world_size - by) % world_size);
    (1..world_size)
        .filter_map(|s| exchange(send(next, block_back(s - 1)), recv(prev, block_back(s), Action::Copy)))
        .collect()
}
