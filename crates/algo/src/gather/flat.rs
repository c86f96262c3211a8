//! Everybody sends straight to the root.

use crate::plan::{others, recv, send};
use crate::properties::properties;
use crate::{Action, Cost, Shape, Step};

properties! {
    op: Gather, name: "flat",
    idea: "The root takes in one block after the other. No byte travels twice: the choice for many bytes.",
    rounds: "P − 1", sent: "b", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "folklore",
    cost: |v| Cost::of_star(v.world_size, v.block, v.block),
    picture: "\
round  rank 0  rank 1  rank 2  rank 3  rank 4
    1  1←1     1→0
    2  2←2             2→0
    3  3←3                     3→0
    4  4←4                             4→0
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let Shape { rank, layout, root, .. } = *shape;
    if rank != root {
        return send(root, layout.block(rank)).into_iter().collect();
    }
    others(shape).filter_map(|peer| recv(peer, layout.block(peer), Action::Copy)).collect()
}
