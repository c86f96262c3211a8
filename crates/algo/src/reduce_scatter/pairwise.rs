//! Everybody sends everybody its contribution.

use crate::plan::{exchange, recv, send};
use crate::properties::properties;
use crate::{Action, Cost, Shape, Step};

properties! {
    op: ReduceScatter, name: "pairwise",
    idea: "In step s a rank sends the rank s after it that one's block, and combines its own from the rank s before it. \
           No partial sum ever travels, and no message waits for another to be sent.",
    rounds: "P − 1", sent: "(P − 1)b", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    combines: AtOneRank, considered: ForWideSums,
    source: "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, IJHPCA 19(1), 2005",
    cost: |v| Cost {
        hops: v.others().min(1.0),
        ..Cost::of_equals(v, v.others(), v.others_blocks(), v.others_blocks())
    },
    picture: "\
round  rank 0    rank 1    rank 2    rank 3    rank 4
    1  1→1 +0←4  2→2 +1←0  3→3 +2←1  4→4 +3←2  0→0 +4←3
    2  2→2 +0←3  3→3 +1←4  4→4 +2←0  0→0 +3←1  1→1 +4←2
    3  3→3 +0←2  4→4 +1←3  0→0 +2←4  1→1 +3←0  2→2 +4←1
    4  4→4 Σ0←1  0→0 Σ1←2  1→1 Σ2←3  2→2 Σ3←4  3→3 Σ4←0
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let Shape { rank, world_size, layout, .. } = *shape;
    (1..world_size)
        .filter_map(|s| {
            let (to, from) = ((rank + s) % world_size, (rank + world_size - s) % world_size);
            let action = if s == world_size - 1 { Action::Finish } else { Action::Combine };
            exchange(send(to, layout.block(to)), recv(from, layout.block(rank), action))
        })
        .collect()
}
