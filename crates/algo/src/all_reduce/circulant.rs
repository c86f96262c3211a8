//! Fewest rounds and fewest bytes at once, for any number of ranks.

use crate::plan::ceil_log2;
use crate::properties::properties;
use crate::{Cost, Shape, Step, all_gather, reduce_scatter};

properties! {
    op: AllReduce, name: "circulant",
    idea: "The circulant reduce_scatter, then Bruck's all_gather, which is its mirror image: \
           logarithmically many rounds at the bandwidth of the ring, without folding.",
    rounds: "2⌈log₂P⌉", sent: "2(P − 1)b", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    combines: OnTheWay,
    source: "Träff: Optimal, non-pipelined reduce-scatter and allreduce algorithms, arXiv:2410.14234, 2024",
    cost: |v| {
        let rounds = 2.0 * f64::from(ceil_log2(v.world_size));
        Cost::of_equals(v, rounds, 2.0 * v.others_blocks(), v.others_blocks())
    },
    picture: "\
round  rank 0        rank 1        rank 2        rank 3        rank 4
    1  4→4   +0←1    0→0   +1←2    1→1   +2←3    2→2   +3←4    3→3   +4←0
    2  2-3→2 +0-1←3  3-4→3 +1-2←4  4,0→4 +2-3←0  0-1→0 +3-4←1  1-2→1 +4,0←2
    3  1→1   Σ0←4    2→2   Σ1←0    3→3   Σ2←1    4→4   Σ3←2    0→0   Σ4←3
    4  0→4   1←1     1→0   2←2     2→1   3←3     3→2   4←4     4→3   0←0
    5  0-1→3 2-3←2   1-2→4 3-4←3   2-3→0 4,0←4   3-4→1 0-1←0   4,0→2 1-2←1
    6  0→1   4←4     1→2   0←0     2→3   1←1     3→4   2←2     4→0   3←3
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let layout = shape.even_layout();
    let shape = shape.with_layout(&layout);
    let mut steps = (reduce_scatter::circulant::PROPERTIES.steps)(&shape);
    steps.extend((all_gather::bruck::PROPERTIES.steps)(&shape));
    steps
}

#[cfg(test)]
mod tests {
    use crate::{Algorithm, Volume};

    #[test]
    fn no_other_bandwidth_optimal_algorithm_is_cheaper() {
        for world_size in 2..=1000 {
            let len = (1 << 20) as f64;
            let cost =
                |a: Algorithm| a.cost(Volume { world_size, len, block: (len / world_size as f64).ceil() });
            let (this, ring) = (cost(Algorithm::AllReduceCirculant), cost(Algorithm::AllReduceRing));
            assert!(this.rounds <= ring.rounds && (this.sent, this.combined) == (ring.sent, ring.combined));
            let folded = cost(Algorithm::AllReduceHalvingDoubling);
            assert!(this.rounds <= folded.rounds, "{world_size}");
            assert!(world_size.is_power_of_two() || this.sent < folded.sent, "{world_size}");
        }
    }
}
