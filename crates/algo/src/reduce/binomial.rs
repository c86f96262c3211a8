//! Up the binomial tree.

use crate::plan::{ceil_log2, recv, send};
use crate::properties::properties;
use crate::tree;
use crate::{Action, Cost, Shape, Step};

properties! {
    op: Reduce, name: "binomial",
    idea: "Each rank combines what its children send, the smallest subtree first, and sends the sum to its parent. The choice for few bytes.",
    rounds: "⌈log₂P⌉", sent: "n", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    combines: OnTheWay,
    source: "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, IJHPCA 19(1), 2005",
    cost: |v| {
        let rounds = f64::from(ceil_log2(v.world_size));
        let others = v.world_size as f64 - 1.0;
        Cost {
            rounds,
            sent: v.len,
            hops: rounds,
            messages: others,
            traffic: others * v.len,
            moved: rounds * v.len,
            combined: rounds * v.len,
            scratch: 0.0,
        }
    },
    picture: "\
round  rank 0  rank 1  rank 2        rank 3  rank 4
    1  +0-4←1  0-4→0         +0-4←3  0-4→2
    2  +0-4←2          0-4→0
    3  Σ0-4←4                                0-4→0
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let whole = 0..shape.layout.len();
    let place = tree::place(shape.rank, shape.world_size, shape.root);
    let last = place.children.last().copied();
    let up = place.children.iter().map(|child| {
        let finishes = place.parent.is_none() && Some(*child) == last;
        recv(child.top, whole.clone(), if finishes { Action::Finish } else { Action::Combine })
    });
    up.chain(place.parent.map(|parent| send(parent, whole.clone()))).flatten().collect()
}
