//! From the root straight to everybody.

use crate::card::card;
use crate::plan::{recv, send};
use crate::{Action, Cost, Shape, Step};

card! {
    op: Broadcast, name: "flat",
    idea: "The root sends the whole buffer to one rank after the other. Nobody waits for anybody else: the choice for few bytes where \
           ranks share cores.",
    rounds: "P − 1", sent: "(P − 1)n, by the root", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "folklore",
    cost: |v| {
        let others = v.world_size as f64 - 1.0;
        Cost {
            rounds: others,
            sent: others * v.len,
            hops: others.min(1.0),
            messages: others,
            traffic: others * v.len,
            moved: others * v.len,
            ..Cost::default()
        }
    },
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let Shape { rank, world_size, root, .. } = *shape;
    let whole = 0..shape.layout.len();
    if rank != root {
        return recv(root, whole, Action::Copy).into_iter().collect();
    }
    (1..world_size).filter_map(|distance| send((root + distance) % world_size, whole.clone())).collect()
}
