//! Fewest rounds and fewest bytes at once, for any number of ranks.

use crate::card::card;
use crate::plan::ceil_log2;
use crate::{Cost, Shape, Step, all_gather, reduce_scatter};

card! {
    op: AllReduce, name: "circulant",
    idea: "The circulant reduce_scatter, then Bruck's all_gather, which is its mirror image: \
           logarithmically many rounds at the bandwidth of the ring, without folding.",
    rounds: "2⌈log₂P⌉", sent: "2(P − 1)b", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "Träff: Optimal, non-pipelined reduce-scatter and allreduce algorithms, arXiv:2410.14234, 2024",
    cost: |v| {
        let volume = (v.world_size as f64 - 1.0) * v.block;
        let rounds = f64::from(ceil_log2(v.world_size));
        Cost { rounds: 2.0 * rounds, sent: 2.0 * volume, moved: 2.0 * volume, combined: volume, scratch: 0.0 }
    },
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let layout = shape.even_layout();
    let shape = shape.with_layout(&layout);
    let mut steps = (reduce_scatter::circulant::CARD.steps)(&shape);
    steps.extend((all_gather::bruck::CARD.steps)(&shape));
    steps
}
