//! Everybody sends straight to the root.

use crate::card::card;
use crate::plan::{recv, send};
use crate::{Action, Cost, Shape, Step};

card! {
    op: Gather, name: "flat",
    idea: "The root takes in one block after the other. No byte travels twice: the choice for many bytes.",
    rounds: "P − 1", sent: "b", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "folklore",
    cost: |v| {
        let others = v.world_size as f64 - 1.0;
        Cost {
            rounds: others,
            sent: v.block,
            hops: others.min(1.0),
            messages: others,
            traffic: others * v.block,
            moved: others * v.block,
            ..Cost::default()
        }
    },
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let Shape { rank, world_size, layout, root, .. } = *shape;
    if rank != root {
        return send(root, layout.block(rank)).into_iter().collect();
    }
    (1..world_size)
        .filter_map(|distance| {
            let peer = (root + distance) % world_size;
            recv(peer, layout.block(peer), Action::Copy)
        })
        .collect()
}
