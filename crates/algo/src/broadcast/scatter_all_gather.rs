//! Van de Geijn's broadcast: deal the buffer out, then let everybody collect it.

use crate::plan::ceil_log2;
use crate::properties::properties;
use crate::{Cost, Shape, Step, all_gather, scatter};

properties! {
    op: Broadcast, name: "scatter_all_gather",
    idea: "The binomial scatter, then Bruck's all_gather: the root sends the buffer less than twice instead of ⌈log₂P⌉ times. \
           The original collects over a ring; Bruck moves no more bytes in fewer rounds.",
    rounds: "2⌈log₂P⌉", sent: "2(P − 1)b", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "Barnett, Gupta, Payne, Shuler, van de Geijn, Watts: Interprocessor collective communication library (InterCom), SHPCC 1994",
    cost: |v| {
        let volume = (v.world_size as f64 - 1.0) * v.block;
        let rounds = f64::from(ceil_log2(v.world_size));
        let ranks = v.world_size as f64;
        Cost {
            rounds: 2.0 * rounds,
            sent: 2.0 * volume,
            hops: 2.0 * rounds,
            messages: ranks - 1.0 + rounds * ranks,
            traffic: rounds * ranks / 2.0 * v.block + volume * ranks,
            moved: 2.0 * volume,
            ..Cost::default()
        }
    },
    picture: "\
round  rank 0       rank 1       rank 2       rank 3       rank 4
    1  4→4                                                       4←0
    2  2-3→2                           2-3←0
    3  1→1                1←0    3→3                3←2
    4  0→4   1←1    1→0   2←2    2→1   3←3    3→2   4←4    4→3   0←0
    5  0-1→3 2-3←2  1-2→4 3-4←3  2-3→0 4,0←4  3-4→1 0-1←0  4,0→2 1-2←1
    6  0→1   4←4    1→2   0←0    2→3   1←1    3→4   2←2    4→0   3←3
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let layout = shape.even_layout();
    let shape = shape.with_layout(&layout);
    let mut steps = (scatter::binomial::PROPERTIES.steps)(&shape);
    steps.extend((all_gather::bruck::PROPERTIES.steps)(&shape));
    steps
}
