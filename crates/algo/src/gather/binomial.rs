//! Blocks climb the binomial tree and travel in ever larger groups.

use crate::plan::{ceil_log2, recv, send};
use crate::properties::properties;
use crate::tree;
use crate::{Action, Cost, Shape, Step};

properties! {
    op: Gather, name: "binomial",
    idea: "Each rank collects the blocks of its subtree, then sends them to its parent in one message. The choice for few bytes.",
    rounds: "⌈log₂P⌉", sent: "at most ⌊P/2⌋b", scratch: "(⌊P/2⌋ − 1)b, for the blocks that a rank relays",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, IJHPCA 19(1), 2005",
    cost: |v| {
        let half = (v.world_size / 2) as f64;
        let (rounds, ranks) = (f64::from(ceil_log2(v.world_size)), v.world_size as f64);
        Cost {
            rounds,
            sent: tree::largest_subtree(v.world_size) as f64 * v.block,
            hops: rounds,
            messages: ranks - 1.0,
            traffic: rounds * ranks / 2.0 * v.block,
            moved: (v.world_size as f64 - 1.0) * v.block,
            combined: 0.0,
            scratch: (half - 1.0).max(0.0) * v.block,
        }
    },
    picture: "\
round  rank 0  rank 1  rank 2     rank 3  rank 4
    1  1←1     1→0           3←3  3→2
    2  2-3←2           2-3→0
    3  4←4                                4→0
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let place = tree::place(shape.rank, shape.world_size, shape.root);
    let collect =
        place.children.iter().map(|child| recv(child.top, child.blocks(shape.layout), Action::Copy));
    let up = place.parent.map(|parent| send(parent, place.own.blocks(shape.layout)));
    collect.chain(up).flatten().collect()
}
