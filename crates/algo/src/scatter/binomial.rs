//! Blocks go down the binomial tree in ever smaller groups.

use crate::plan::{ceil_log2, recv, send};
use crate::properties::properties;
use crate::tree;
use crate::{Action, Cost, Shape, Step};

properties! {
    op: Scatter, name: "binomial",
    idea: "Each rank gets the blocks of its whole subtree and passes on those of its children, the largest subtree first. The choice for few bytes.",
    rounds: "⌈log₂P⌉", sent: "(P − 1)b, by the root", scratch: "(⌊P/2⌋ − 1)b, for the blocks that a rank relays",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, IJHPCA 19(1), 2005",
    cost: |v| {
        let volume = (v.world_size as f64 - 1.0) * v.block;
        let (rounds, ranks) = (f64::from(ceil_log2(v.world_size)), v.world_size as f64);
        Cost {
            rounds,
            sent: volume,
            hops: rounds,
            messages: ranks - 1.0,
            traffic: rounds * ranks / 2.0 * v.block,
            moved: volume,
            combined: 0.0,
            scratch: ((v.world_size / 2) as f64 - 1.0).max(0.0) * v.block,
        }
    },
    picture: "\
round  rank 0  rank 1  rank 2     rank 3  rank 4
    1  4→4                                4←0
    2  2-3→2               2-3←0
    3  1→1     1←0     3→3        3←2
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let place = tree::place(shape.rank, shape.world_size, shape.root);
    let get = place.parent.map(|parent| recv(parent, place.own.blocks(shape.layout), Action::Copy));
    let down = place.children.iter().rev().map(|child| send(child.top, child.blocks(shape.layout)));
    get.into_iter().chain(down).flatten().collect()
}
