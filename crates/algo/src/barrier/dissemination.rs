//! Empty messages over doubling distances.

use crate::plan::ceil_log2;
use crate::properties::properties;
use crate::{Action, Cost, Recv, Send, Shape, Span, Step};

properties! {
    op: Barrier, name: "dissemination",
    idea: "At distance 1, 2, 4, … a rank tells a rank after it that it came, and hears the same from a rank before it. \
           After the last round it has heard, directly or not, from all.",
    rounds: "⌈log₂P⌉", sent: "nothing but empty messages", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "Hensgen, Finkel, Manber: Two algorithms for barrier synchronization, IJPP 17(1), 1988",
    cost: |v| {
        let rounds = f64::from(ceil_log2(v.world_size));
        Cost { rounds, hops: rounds, messages: rounds * v.world_size as f64, ..Cost::default() }
    },
    picture: "\
round  rank 0   rank 1   rank 2   rank 3   rank 4
    1  ·→1 ·←4  ·→2 ·←0  ·→3 ·←1  ·→4 ·←2  ·→0 ·←3
    2  ·→2 ·←3  ·→3 ·←4  ·→4 ·←0  ·→0 ·←1  ·→1 ·←2
    3  ·→4 ·←1  ·→0 ·←2  ·→1 ·←3  ·→2 ·←4  ·→3 ·←0
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let Shape { rank, world_size, .. } = *shape;
    (0..ceil_log2(world_size))
        .map(|round| {
            let distance = 1 << round;
            let (to, from) = ((rank + distance) % world_size, (rank + world_size - distance) % world_size);
            Step {
                send: Some(Send { peer: to, span: Span::default() }),
                recv: Some(Recv { peer: from, span: Span::default(), action: Action::Copy }),
            }
        })
        .collect()
}
