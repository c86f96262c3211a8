//! Rabenseifner's algorithm: halve and combine, then double and copy.

use crate::power_of_two;
use crate::properties::properties;
use crate::{Cost, Shape, Step, all_gather, reduce_scatter};

properties! {
    op: AllReduce, name: "halving_doubling",
    idea: "reduce_scatter by recursive halving, then all_gather by recursive doubling. \
           Ranks beyond a power of two (p = 2^⌊log₂P⌋) are folded onto others.",
    rounds: "2⌊log₂P⌋, and 2 more unless P is a power of two",
    sent: "2(p − 1)⌈n/p⌉, and n more unless P is a power of two", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    combines: OnTheWay,
    source: "Rabenseifner: Optimization of collective reduction operations, ICCS 2004",
    cost: |v| {
        let (core, folded) = power_of_two::core_of(v.world_size);
        let volume = (core as f64 - 1.0) * (v.len / core as f64).ceil();
        let (rounds, folded) = (f64::from(core.ilog2()), f64::from(folded));
        let (ranks, guests) = (core as f64, (v.world_size - core) as f64);
        Cost {
            rounds: 2.0 * (rounds + folded),
            sent: 2.0 * volume + folded * v.len,
            hops: 2.0 * (rounds + folded),
            messages: 2.0 * (ranks * rounds + guests),
            traffic: 2.0 * (ranks * volume + guests * v.len),
            moved: 2.0 * (volume + folded * v.len),
            combined: volume + folded * v.len,
            scratch: 0.0,
        }
    },
    picture: "\
round  rank 0        rank 1        rank 2        rank 3        rank 4
    1        +0-4←4  2-4→3 +0-1←3                0-1→1 +2-4←1  0-4→0
    2  2-4→2 +0-1←2                0-1→0 +2-4←0
    3  1→1   Σ0←1    0→0   Σ1←0    3-4→3 Σ2←3    2→2   Σ3-4←2
    4  0→1   1←1     1→0   0←0     2→3   3-4←3   3-4→2 2←2
    5  0-1→2 2-4←2   0-1→3 2-4←3   2-4→0 0-1←0   2-4→1 0-1←1
    6  0-4→4                                                         0-4←0
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    power_of_two::all_reduce(shape, |core| {
        let layout = core.even_layout();
        let core = core.with_layout(&layout);
        let mut steps = (reduce_scatter::halving::PROPERTIES.steps)(&core);
        steps.extend((all_gather::recursive_doubling::PROPERTIES.steps)(&core));
        steps
    })
}
