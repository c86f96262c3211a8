//! Partners exchange all the blocks they have, over doubling distances.

use crate::plan::{exchange, recv, send};
use crate::properties::properties;
use crate::{Action, Cost, Shape, Step};

properties! {
    op: AllGather, name: "recursive_doubling",
    idea: "Partners at distance 1, 2, 4, … exchange all the blocks they have. As cheap as Bruck's on paper; where ranks share cores \
           it is faster, because a rank waits for the one rank that waits for it.",
    rounds: "log₂P", sent: "(P − 1)b", scratch: "none",
    worlds: PowersOfTwo, buffers: InPlace, overlaps: false,
    source: "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, IJHPCA 19(1), 2005",
    cost: |v| {
        let volume = (v.world_size as f64 - 1.0) * v.block;
        let (rounds, ranks) = (f64::from(v.world_size.ilog2()), v.world_size as f64);
        Cost {
            rounds,
            sent: volume,
            hops: rounds,
            messages: rounds * ranks,
            traffic: volume * ranks,
            moved: volume,
            ..Cost::default()
        }
    },
    picture: "\
round  rank 0       rank 1       rank 2       rank 3
    1  0→1   1←1    1→0   0←0    2→3   3←3    3→2   2←2
    2  0-1→2 2-3←2  0-1→3 2-3←3  2-3→0 0-1←0  2-3→1 0-1←1
",
}

/// Before the round of `distance`, a rank holds the blocks of the `distance` ranks that differ from it in lower bits only.
fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let Shape { rank, world_size, layout, .. } = *shape;
    (0..world_size.ilog2())
        .filter_map(|round| {
            let distance = 1 << round;
            let partner = rank ^ distance;
            let held_by = |rank: usize| {
                let first = rank & !(distance - 1);
                layout.blocks(first..first + distance)
            };
            exchange(send(partner, held_by(rank)), recv(partner, held_by(partner), Action::Copy))
        })
        .collect()
}
