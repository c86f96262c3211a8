//! Whole buffers exchanged over doubling distances: fewest rounds, most bytes.

use crate::plan::{exchange, recv, send};
use crate::power_of_two;
use crate::properties::properties;
use crate::{Action, Cost, Shape, Step};

properties! {
    op: AllReduce, name: "recursive_doubling",
    idea: "Partners at distance 1, 2, 4, … exchange all they have and both combine it. \
           Ranks beyond a power of two are folded onto others. The choice for few bytes.",
    rounds: "⌊log₂P⌋, and 2 more unless P is a power of two",
    sent: "⌊log₂P⌋n, and n more unless P is a power of two", scratch: "n",
    worlds: Any, buffers: InPlace, overlaps: true,
    combines: OnTheWay,
    source: "Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, IJHPCA 19(1), 2005",
    cost: |v| {
        let (core, folded) = power_of_two::core_of(v.world_size);
        let (rounds, folded) = (f64::from(core.ilog2()), f64::from(folded));
        let messages = core as f64 * rounds + 2.0 * (v.world_size - core) as f64;
        Cost {
            rounds: rounds + 2.0 * folded,
            sent: (rounds + folded) * v.len,
            hops: rounds + 2.0 * folded,
            messages,
            traffic: messages * v.len,
            moved: (rounds + 2.0 * folded) * v.len,
            combined: (rounds + folded) * v.len,
            scratch: v.len,
        }
    },
    picture: "\
round  rank 0        rank 1        rank 2        rank 3        rank 4
    1        +0-4←4                0-4→3 +0-4←3  0-4→2 +0-4←2  0-4→0
    2  0-4→1 +0-4←1  0-4→0 +0-4←0
    3  0-4→2 Σ0-4←2  0-4→3 Σ0-4←3  0-4→0 Σ0-4←0  0-4→1 Σ0-4←1
    4  0-4→4                                                         0-4←0
",
}

/// Both partners compute `mine ∘ theirs`: the same bits, because every operator is commutative.
fn steps(shape: &Shape<'_>) -> Vec<Step> {
    power_of_two::all_reduce(shape, |core| {
        let whole = 0..core.layout.len();
        (0..core.world_size.ilog2())
            .filter_map(|round| {
                let partner = core.rank ^ (1 << round);
                let last = 2 << round == core.world_size;
                let action = if last { Action::Finish } else { Action::Combine };
                exchange(send(partner, whole.clone()), recv(partner, whole.clone(), action))
            })
            .collect()
    })
}
