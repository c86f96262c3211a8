//! Round the ring twice: once to combine, once to copy.

use crate::properties::properties;
use crate::{Cost, Shape, Step, all_gather, reduce_scatter};

properties! {
    op: AllReduce, name: "ring",
    idea: "The ring reduce_scatter, then the ring all_gather: bandwidth-optimal, and every rank talks to two neighbours only.",
    rounds: "2(P − 1)", sent: "2(P − 1)b", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    combines: OnTheWay,
    source: "Patarasuk, Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 69(2), 2009",
    cost: |v| Cost::of_equals(v, 2.0 * v.others(), 2.0 * v.others_blocks(), v.others_blocks()),
    picture: "\
round  rank 0    rank 1    rank 2    rank 3    rank 4
    1  4→1 +3←4  0→2 +4←0  1→3 +0←1  2→4 +1←2  3→0 +2←3
    2  3→1 +2←4  4→2 +3←0  0→3 +4←1  1→4 +0←2  2→0 +1←3
    3  2→1 +1←4  3→2 +2←0  4→3 +3←1  0→4 +4←2  1→0 +0←3
    4  1→1 Σ0←4  2→2 Σ1←0  3→3 Σ2←1  4→4 Σ3←2  0→0 Σ4←3
    5  0→1 4←4   1→2 0←0   2→3 1←1   3→4 2←2   4→0 3←3
    6  4→1 3←4   0→2 4←0   1→3 0←1   2→4 1←2   3→0 2←3
    7  3→1 2←4   4→2 3←0   0→3 4←1   1→4 0←2   2→0 1←3
    8  2→1 1←4   3→2 2←0   4→3 3←1   0→4 4←2   1→0 0←3
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let layout = shape.even_layout();
    let shape = shape.with_layout(&layout);
    let mut steps = (reduce_scatter::ring::PROPERTIES.steps)(&shape);
    steps.extend((all_gather::ring::PROPERTIES.steps)(&shape));
    steps
}

#[cfg(test)]
mod tests {
    use crate::{Algorithm, Shape};
    use phalanx_core::Layout;

    #[test]
    fn ranks_talk_to_their_neighbours_only() {
        let layout = Layout::even(7, 70);
        for rank in 0..7 {
            let shape = Shape { rank, world_size: 7, layout: &layout, recv_layout: None, root: 0 };
            let steps = Algorithm::AllReduceRing.steps(&shape);
            assert_eq!(steps.len(), 12);
            for step in steps {
                assert_eq!(step.send.map(|s| s.peer), Some((rank + 1) % 7));
                assert_eq!(step.recv.map(|r| r.peer), Some((rank + 6) % 7));
            }
        }
    }
}
