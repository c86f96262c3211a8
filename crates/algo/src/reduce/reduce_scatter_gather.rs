//! Rabenseifner's reduce: everybody sums a share, the root collects the shares.

use crate::card::card;
use crate::plan::ceil_log2;
use crate::{Cost, Shape, Step, gather, reduce_scatter};

card! {
    op: Reduce, name: "reduce_scatter_gather",
    idea: "The circulant reduce_scatter, then the binomial gather: no rank moves or combines the buffer more than twice.",
    rounds: "2⌈log₂P⌉", sent: "(P − 1 + ⌊P/2⌋)b", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "Rabenseifner: Optimization of collective reduction operations, ICCS 2004, with Träff's reduce_scatter, arXiv:2410.14234",
    cost: |v| {
        let volume = (v.world_size as f64 - 1.0) * v.block;
        let rounds = f64::from(ceil_log2(v.world_size));
        let ranks = v.world_size as f64;
        Cost {
            rounds: 2.0 * rounds,
            sent: volume + (v.world_size / 2) as f64 * v.block,
            hops: 2.0 * rounds,
            messages: rounds * ranks + ranks - 1.0,
            traffic: volume * ranks + rounds * ranks / 2.0 * v.block,
            moved: 2.0 * volume,
            combined: volume,
            scratch: 0.0,
        }
    },
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let layout = shape.even_layout();
    let shape = shape.with_layout(&layout);
    let mut steps = (reduce_scatter::circulant::CARD.steps)(&shape);
    steps.extend((gather::binomial::CARD.steps)(&shape));
    steps
}
