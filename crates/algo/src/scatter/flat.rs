//! The root sends straight to everybody.

use crate::card::card;
use crate::plan::{recv, send};
use crate::{Action, Cost, Shape, Step};

card! {
    op: Scatter, name: "flat",
    idea: "The root sends one block after the other. No byte travels twice: the choice for many bytes.",
    rounds: "P − 1", sent: "(P − 1)b, by the root", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "folklore",
    cost: |v| {
        let others = v.world_size as f64 - 1.0;
        Cost {
            rounds: others,
            sent: others * v.block,
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
        return recv(root, layout.block(rank), Action::Copy).into_iter().collect();
    }
    (1..world_size)
        .filter_map(|distance| {
            let peer = (root + distance) % world_size;
            send(peer, layout.block(peer))
        })
        .collect()
}
