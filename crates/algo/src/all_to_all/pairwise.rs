//! One partner a round.

use crate::plan::{exchange, recv, send};
use crate::properties::properties;
use crate::{Action, Cost, Shape, Step};

properties! {
    op: AllToAll, name: "pairwise",
    idea: "In step s a rank sends to the rank s after it and receives from the rank s before it, so that nobody is asked by two at once.",
    rounds: "P − 1", sent: "(P − 1)b, b the largest block between any two ranks", scratch: "none",
    worlds: Any, buffers: Separate, overlaps: false,
    source: "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, IJHPCA 19(1), 2005",
    cost: |v| Cost {
        hops: v.others().min(1.0),
        ..Cost::of_equals(v, v.others(), v.others_blocks(), 0.0)
    },
    picture: "\
round  rank 0   rank 1   rank 2   rank 3   rank 4
    1  1→1 4←4  2→2 0←0  3→3 1←1  4→4 2←2  0→0 3←3
    2  2→2 3←3  3→3 4←4  4→4 0←0  0→0 1←1  1→1 2←2
    3  3→3 2←2  4→4 3←3  0→0 4←4  1→1 0←0  2→2 1←1
    4  4→4 1←1  0→0 2←2  1→1 3←3  2→2 4←4  3→3 0←0
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let Shape { rank, world_size, layout, recv_layout, .. } = *shape;
    let output = recv_layout.unwrap_or(layout);
    (1..world_size)
        .filter_map(|s| {
            let (to, from) = ((rank + s) % world_size, (rank + world_size - s) % world_size);
            exchange(send(to, layout.block(to)), recv(from, output.block(from), Action::Copy))
        })
        .collect()
}
