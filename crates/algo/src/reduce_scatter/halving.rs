//! Recursive halving: each round settles half of what is left.

use crate::plan::{exchange, recv, send};
use crate::properties::properties;
use crate::{Action, Cost, Shape, Step};

properties! {
    op: ReduceScatter, name: "halving",
    idea: "Partners at distance P/2, P/4, …, 1 split the blocks still open between them: each sends the other's half and combines its own.",
    rounds: "log₂P", sent: "(P − 1)b", scratch: "none",
    worlds: PowersOfTwo, buffers: InPlace, overlaps: false,
    combines: OnTheWay,
    source: "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, IJHPCA 19(1), 2005",
    cost: |v| Cost::of_equals(v, f64::from(v.world_size.ilog2()), v.others_blocks(), v.others_blocks()),
    picture: "\
round  rank 0        rank 1        rank 2        rank 3
    1  2-3→2 +0-1←2  2-3→3 +0-1←3  0-1→0 +2-3←0  0-1→1 +2-3←1
    2  1→1   Σ0←1    0→0   Σ1←0    3→3   Σ2←3    2→2   Σ3←2
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let Shape { rank, world_size, layout, .. } = *shape;
    (0..world_size.ilog2())
        .rev()
        .filter_map(|round| {
            let distance = 1 << round;
            let partner = rank ^ distance;
            let half_of = |rank: usize| {
                let first = rank & !(distance - 1);
                layout.blocks(first..first + distance)
            };
            let action = if distance == 1 { Action::Finish } else { Action::Combine };
            exchange(send(partner, half_of(partner)), recv(partner, half_of(rank), action))
        })
        .collect()
}
