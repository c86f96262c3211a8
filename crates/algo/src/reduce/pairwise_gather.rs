//! Everybody sums a share of the contributions themselves, the root collects the shares.

use crate::properties::properties;
use crate::{Cost, Shape, Step, gather, reduce_scatter};

properties! {
    op: Reduce, name: "pairwise_gather",
    idea: "The pairwise reduce_scatter, then each rank sends its block of the result to the root. \
           No partial sum ever travels: for many bytes in rank order.",
    rounds: "2(P − 1)", sent: "Pb", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    combines: AtOneRank, considered: ForRankOrder,
    source: "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, IJHPCA 19(1), 2005",
    cost: |v| {
        let (ranks, others) = (v.world_size as f64, v.others());
        let has_others = others.min(1.0);
        Cost {
            rounds: 2.0 * others,
            sent: has_others * ranks * v.block,
            hops: 2.0 * has_others,
            messages: (ranks + 1.0) * others,
            traffic: (ranks + 1.0) * v.others_blocks(),
            moved: 2.0 * v.others_blocks(),
            combined: v.others_blocks(),
            scratch: 0.0,
        }
    },
    picture: "\
round  rank 0    rank 1    rank 2    rank 3    rank 4
    1  1→1 +0←4  2→2 +1←0  3→3 +2←1  4→4 +3←2  0→0 +4←3
    2  2→2 +0←3  3→3 +1←4  4→4 +2←0  0→0 +3←1  1→1 +4←2
    3  3→3 +0←2  4→4 +1←3  0→0 +2←4  1→1 +3←0  2→2 +4←1
    4  4→4 Σ0←1  0→0 Σ1←2  1→1 Σ2←3  2→2 Σ3←4  3→3 Σ4←0
    5      1←1   1→0
    6      2←2             2→0
    7      3←3                       3→0
    8      4←4                                 4→0
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let layout = shape.even_layout();
    let shape = shape.with_layout(&layout);
    let mut steps = (reduce_scatter::pairwise::PROPERTIES.steps)(&shape);
    steps.extend((gather::flat::PROPERTIES.steps)(&shape));
    steps
}
