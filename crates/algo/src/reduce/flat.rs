//! The star: everything to the root.

use crate::plan::{others, recv, send};
use crate::properties::properties;
use crate::{Action, Cost, Shape, Step};

properties! {
    op: Reduce, name: "flat",
    idea: "The root takes in every contribution. No partial sum ever travels: for few bytes in rank order.",
    rounds: "P − 1", sent: "n", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    combines: AtOneRank, considered: ForRankOrder,
    source: "folklore",
    cost: |v| Cost {
        combined: v.others() * v.len,
        ..Cost::of_star(v.world_size, v.len, v.len)
    },
    picture: "\
round  rank 0  rank 1  rank 2  rank 3  rank 4
    1  +0-4←1  0-4→0
    2  +0-4←2          0-4→0
    3  +0-4←3                  0-4→0
    4  Σ0-4←4                          0-4→0
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let Shape { rank, world_size, root, .. } = *shape;
    let whole = 0..shape.layout.len();
    if rank != root {
        return send(root, whole).into_iter().collect();
    }
    let last = (root + world_size - 1) % world_size;
    let action = |peer| if peer == last { Action::Finish } else { Action::Combine };
    others(shape).filter_map(|peer| recv(peer, whole.clone(), action(peer))).collect()
}
