//! The root sends straight to everybody.

use crate::plan::{others, recv, send};
use crate::properties::properties;
use crate::{Action, Cost, Shape, Step};

properties! {
    op: Scatter, name: "flat",
    idea: "The root sends one block after the other. No byte travels twice: the choice for many bytes.",
    rounds: "P − 1", sent: "(P − 1)b, by the root", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "folklore",
    cost: |v| Cost::of_star(v.world_size, v.block, (v.world_size as f64 - 1.0) * v.block),
    picture: "\
round  rank 0  rank 1  rank 2  rank 3  rank 4
    1  1→1     1←0
    2  2→2             2←0
    3  3→3                     3←0
    4  4→4                             4←0
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let Shape { rank, layout, root, .. } = *shape;
    if rank != root {
        return recv(root, layout.block(rank), Action::Copy).into_iter().collect();
    }
    others(shape).filter_map(|peer| send(peer, layout.block(peer))).collect()
}
