//! Everybody has the contributions of all and adds them up: fewest rounds in which the order of the ranks is kept.

use crate::plan::ceil_log2;
use crate::properties::properties;
use crate::{Cost, Shape, Step, all_gather};
use phalanx_core::Layout;

properties! {
    op: AllReduce, name: "gathered",
    idea: "Bruck's all_gather of the contributions; then each rank combines them in rank order. The choice for few bytes in rank order.",
    rounds: "⌈log₂P⌉", sent: "(P − 1)n", scratch: "Pn",
    worlds: Any, buffers: Contributions, overlaps: false,
    combines: AtEveryRank, considered: ForRankOrder,
    source: "folklore, with Bruck's all_gather, IEEE TPDS 8(11), 1997",
    cost: |v| {
        let others = v.others() * v.len;
        let scratch = v.world_size as f64 * v.len;
        Cost { scratch, ..Cost::of_equals(v, f64::from(ceil_log2(v.world_size)), others, others) }
    },
    picture: "\
round  rank 0       rank 1       rank 2       rank 3       rank 4
    1  0→4   1←1    1→0   2←2    2→1   3←3    3→2   4←4    4→3   0←0
    2  0-1→3 2-3←2  1-2→4 3-4←3  2-3→0 4,0←4  3-4→1 0-1←0  4,0→2 1-2←1
    3  0→1   4←4    1→2   0←0    2→3   1←1    3→4   2←2    4→0   3←3
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let rows = Layout::even(shape.world_size, shape.world_size * shape.layout.len());
    (all_gather::bruck::PROPERTIES.steps)(&shape.with_layout(&rows))
}
