//! Everybody sends everybody its contribution, and then its block of the result.

use crate::plan::{exchange, recv, send};
use crate::properties::properties;
use crate::{Action, Cost, Shape, Step, reduce_scatter};

properties! {
    op: AllReduce, name: "pairwise",
    idea: "The pairwise reduce_scatter; then in step s a rank sends its block of the result to the rank s after it. \
           No partial sum ever travels, and data pass through no third rank.",
    rounds: "2(P − 1)", sent: "2(P − 1)b", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    combines: AtOneRank, considered: ForWideSums,
    source: "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, IJHPCA 19(1), 2005",
    cost: |v| Cost {
        hops: 2.0 * v.others().min(1.0),
        ..Cost::of_equals(v, 2.0 * v.others(), 2.0 * v.others_blocks(), v.others_blocks())
    },
    picture: "\
round  rank 0    rank 1    rank 2    rank 3    rank 4
    1  1→1 +0←4  2→2 +1←0  3→3 +2←1  4→4 +3←2  0→0 +4←3
    2  2→2 +0←3  3→3 +1←4  4→4 +2←0  0→0 +3←1  1→1 +4←2
    3  3→3 +0←2  4→4 +1←3  0→0 +2←4  1→1 +3←0  2→2 +4←1
    4  4→4 Σ0←1  0→0 Σ1←2  1→1 Σ2←3  2→2 Σ3←4  3→3 Σ4←0
    5  0→1 4←4   1→2 0←0   2→3 1←1   3→4 2←2   4→0 3←3
    6  0→2 3←3   1→3 4←4   2→4 0←0   3→0 1←1   4→1 2←2
    7  0→3 2←2   1→4 3←3   2→0 4←4   3→1 0←0   4→2 1←1
    8  0→4 1←1   1→0 2←2   2→1 3←3   3→2 4←4   4→3 0←0
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let layout = shape.even_layout();
    let shape = shape.with_layout(&layout);
    let Shape { rank, world_size, .. } = shape;
    let mut steps = (reduce_scatter::pairwise::PROPERTIES.steps)(&shape);
    steps.extend((1..world_size).filter_map(|s| {
        let (to, from) = ((rank + s) % world_size, (rank + world_size - s) % world_size);
        exchange(send(to, layout.block(rank)), recv(from, layout.block(from), Action::Copy))
    }));
    steps
}
