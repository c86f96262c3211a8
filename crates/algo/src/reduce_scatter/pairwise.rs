//! Everybody sends everybody its contribution.

use crate::card::card;
use crate::plan::{exchange, recv, send};
use crate::{Action, Cost, Shape, Step};

card! {
    op: ReduceScatter, name: "pairwise",
    idea: "In step s a rank sends the rank s after it that one's block, and combines its own from the rank s before it. \
           No partial sum ever travels, and no message waits for another to be sent.",
    rounds: "P − 1", sent: "(P − 1)b", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, IJHPCA 19(1), 2005",
    cost: |v| {
        let others = v.world_size as f64 - 1.0;
        let volume = others * v.block;
        let ranks = v.world_size as f64;
        Cost {
            rounds: others,
            sent: volume,
            hops: others.min(1.0),
            messages: others * ranks,
            traffic: volume * ranks,
            moved: volume,
            combined: volume,
            scratch: 0.0,
        }
    },
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let Shape { rank, world_size, layout, .. } = *shape;
    (1..world_size)
        .filter_map(|s| {
            let (to, from) = ((rank + s) % world_size, (rank + world_size - s) % world_size);
            let action = if s == world_size - 1 { Action::Finish } else { Action::Combine };
            exchange(send(to, layout.block(to)), recv(from, layout.block(rank), action))
        })
        .collect()
}
