//! The star: everything to rank 0, the result back.

use crate::plan::{recv, send};
use crate::properties::properties;
use crate::{Action, Cost, Shape, Step};

properties! {
    op: AllReduce, name: "flat",
    idea: "Rank 0 takes in every contribution in rank order, then sends the result to everybody.",
    rounds: "2(P − 1)", sent: "(P − 1)n, by rank 0; n by the others", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    combines: AtOneRank,
    source: "folklore; the reference for the others, because every element is combined in rank order",
    cost: |v| {
        let others = v.world_size as f64 - 1.0;
        Cost {
            rounds: 2.0 * others,
            sent: others * v.len,
            hops: 2.0 * others.min(1.0),
            messages: 2.0 * others,
            traffic: 2.0 * others * v.len,
            moved: 2.0 * others * v.len,
            combined: others * v.len,
            scratch: 0.0,
        }
    },
    picture: "\
round  rank 0        rank 1       rank 2       rank 3       rank 4
    1        +0-4←1  0-4→0
    2        +0-4←2               0-4→0
    3        +0-4←3                            0-4→0
    4        Σ0-4←4                                         0-4→0
    5  0-4→1               0-4←0
    6  0-4→2                            0-4←0
    7  0-4→3                                         0-4←0
    8  0-4→4                                                      0-4←0
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let (whole, world_size) = (0..shape.layout.len(), shape.world_size);
    if shape.rank > 0 {
        return [send(0, whole.clone()), recv(0, whole, Action::Copy)].into_iter().flatten().collect();
    }
    let collect = (1..world_size).map(|peer| {
        let action = if peer == world_size - 1 { Action::Finish } else { Action::Combine };
        recv(peer, whole.clone(), action)
    });
    let spread = (1..world_size).map(|peer| send(peer, whole.clone()));
    collect.chain(spread).flatten().collect()
}

#[cfg(test)]
mod tests {
    use crate::{Algorithm, Shape};
    use phalanx_core::Layout;

    #[test]
    fn contributions_are_combined_in_rank_order() {
        let layout = Layout::even(6, 9);
        let shape = Shape { rank: 0, world_size: 6, layout: &layout, recv_layout: None, root: 0 };
        let steps = Algorithm::AllReduceFlat.steps(&shape);
        let order: Vec<_> = steps.iter().flat_map(|s| &s.recv).map(|r| r.peer).collect();
        assert_eq!(order, [1, 2, 3, 4, 5]);
    }
}
