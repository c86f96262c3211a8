//! From the root straight to everybody.

use crate::plan::{others, recv, send};
use crate::properties::properties;
use crate::{Action, Cost, Shape, Step};

properties! {
    op: Broadcast, name: "flat",
    idea: "The root sends the whole buffer to one rank after the other. Nobody waits for anybody else: the choice for few bytes where \
           ranks share cores.",
    rounds: "P − 1", sent: "(P − 1)n, by the root", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "folklore",
    cost: |v| Cost::of_star(v.world_size, v.len, (v.world_size as f64 - 1.0) * v.len),
    picture: "\
round  rank 0  rank 1  rank 2  rank 3  rank 4
    1  0-4→1   0-4←0
    2  0-4→2           0-4←0
    3  0-4→3                   0-4←0
    4  0-4→4                           0-4←0
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let whole = 0..shape.layout.len();
    if shape.rank != shape.root {
        return recv(shape.root, whole, Action::Copy).into_iter().collect();
    }
    others(shape).filter_map(|peer| send(peer, whole.clone())).collect()
}
