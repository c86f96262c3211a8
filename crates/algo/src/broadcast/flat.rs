//! The star: from the root to everybody.

use crate::card::card;
use crate::plan::{recv, send};
use crate::{Action, Cost, Shape, Step};

card! {
    op: Broadcast, name: "flat",
    idea: "The root sends the buffer to everybody. The choice for few bytes where ranks share cores: nobody waits for a rank that waits.",
    rounds: "P − 1", sent: "(P − 1)n, by the root", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "folklore",
    cost: |v| {
        let others = v.world_size as f64 - 1.0;
        let volume = others * v.len;
        Cost {
            rounds: others,
            sent: volume,
            hops: others.min(1.0),
            messages: others,
            traffic: volume,
            moved: volume,
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
    (1..world_size).filter_map(|by| send((root + by) % world_size, whole.clone())).collect()
}
