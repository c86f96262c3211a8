//! Down the binomial tree: the ranks that have the data double in each round.

use crate::plan::{ceil_log2, recv, send};
use crate::properties::properties;
use crate::tree;
use crate::{Action, Cost, Shape, Step};

properties! {
    op: Broadcast, name: "binomial",
    idea: "Each rank that has the buffer sends all of it to one that has not, the one with the largest subtree first. The choice for few bytes.",
    rounds: "⌈log₂P⌉", sent: "⌈log₂P⌉n, by the root", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, IJHPCA 19(1), 2005",
    cost: |v| {
        let rounds = f64::from(ceil_log2(v.world_size));
        let others = v.world_size as f64 - 1.0;
        Cost {
            rounds,
            sent: rounds * v.len,
            hops: rounds,
            messages: others,
            traffic: others * v.len,
            moved: rounds * v.len,
            ..Cost::default()
        }
    },
    picture: "\
round  rank 0  rank 1  rank 2       rank 3  rank 4
    1  0-4→4                                0-4←0
    2  0-4→2                 0-4←0
    3  0-4→1   0-4←0   0-4→3        0-4←2
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let whole = 0..shape.layout.len();
    let place = tree::place(shape.rank, shape.world_size, shape.root);
    let down = place.children.iter().rev().map(|child| send(child.top, whole.clone()));
    place
        .parent
        .map(|parent| recv(parent, whole.clone(), Action::Copy))
        .into_iter()
        .chain(down)
        .flatten()
        .collect()
}
