//! Rabenseifner's reduce: everybody sums a share, the root collects the shares.

use crate::plan::ceil_log2;
use crate::properties::properties;
use crate::tree;
use crate::{Cost, Shape, Step, gather, reduce_scatter};

properties! {
    op: Reduce, name: "reduce_scatter_gather",
    idea: "The circulant reduce_scatter, then the binomial gather: no rank moves or combines the buffer more than twice.",
    rounds: "2⌈log₂P⌉", sent: "at most (P − 1 + ⌊P/2⌋)b", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    combines: OnTheWay,
    source: "Rabenseifner: Optimization of collective reduction operations, ICCS 2004, with Träff's reduce_scatter, arXiv:2410.14234",
    cost: |v| {
        let volume = (v.world_size as f64 - 1.0) * v.block;
        let rounds = f64::from(ceil_log2(v.world_size));
        let ranks = v.world_size as f64;
        Cost {
            rounds: 2.0 * rounds,
            sent: volume + tree::largest_subtree(v.world_size) as f64 * v.block,
            hops: 2.0 * rounds,
            messages: rounds * ranks + ranks - 1.0,
            traffic: volume * ranks + rounds * ranks / 2.0 * v.block,
            moved: 2.0 * volume,
            combined: volume,
            scratch: 0.0,
        }
    },
    picture: "\
round  rank 0        rank 1        rank 2        rank 3        rank 4
    1  4→4   +0←1    0→0   +1←2    1→1   +2←3    2→2   +3←4    3→3   +4←0
    2  2-3→2 +0-1←3  3-4→3 +1-2←4  4,0→4 +2-3←0  0-1→0 +3-4←1  1-2→1 +4,0←2
    3  1→1   Σ0←4    2→2   Σ1←0    3→3   Σ2←1    4→4   Σ3←2    0→0   Σ4←3
    4        1←1     1→0                 3←3     3→2
    5        2-3←2                 2-3→0
    6        4←4                                               4→0
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let layout = shape.even_layout();
    let shape = shape.with_layout(&layout);
    let mut steps = (reduce_scatter::circulant::PROPERTIES.steps)(&shape);
    steps.extend((gather::binomial::PROPERTIES.steps)(&shape));
    steps
}
