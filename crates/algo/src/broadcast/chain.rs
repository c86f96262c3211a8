//! Down a chain of all ranks, in pieces: each rank passes on what it has while the next piece arrives.

use crate::plan::{exchange, recv, send};
use crate::properties::properties;
use crate::{Action, Cost, Shape, Step};
use phalanx_core::Layout;

/// Pieces for each rank. More would fill the chain sooner, at the price of more messages.
pub(crate) const PIECES_A_RANK: usize = 3;

properties! {
    op: Broadcast, name: "chain",
    idea: "The buffer goes from rank to rank in pieces. No broadcast moves fewer bytes, neither from one rank nor altogether; \
           the last rank waits for the chain to fill. The choice for many bytes.",
    rounds: "4P − 2", sent: "n", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "Pješivac-Grbović, Angskun, Bosilca, Fagg, Gabriel, Dongarra: Performance analysis of MPI collective operations, Cluster Computing 10(2), 2007",
    cost: |v| {
        let pieces = v.len.min((PIECES_A_RANK * v.world_size) as f64);
        if v.world_size == 1 || pieces == 0.0 {
            return Cost::default();
        }
        let rounds = pieces + v.world_size as f64 - 2.0;
        let piece = (v.len / pieces).ceil();
        let others = v.world_size as f64 - 1.0;
        Cost {
            rounds,
            sent: v.len,
            hops: others,
            messages: pieces * others,
            traffic: others * v.len,
            moved: rounds * piece,
            ..Cost::default()
        }
    },
    picture: "\
round  rank 0  rank 1   rank 2   rank 3   rank 4
    1  0→1         0←0
    2  1→1     0→2 1←0      0←1
    3  2→1     1→2 2←0  0→3 1←1      0←2
    4  3→1     2→2 3←0  1→3 2←1  0→4 1←2  0←3
    5  4→1     3→2 4←0  2→3 3←1  1→4 2←2  1←3
    6          4→2      3→3 4←1  2→4 3←2  2←3
    7                   4→3      3→4 4←2  3←3
    8                            4→4      4←3
",
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    let Shape { rank, world_size, root, .. } = *shape;
    let place = (rank + world_size - root) % world_size;
    let (previous, next) = ((rank + world_size - 1) % world_size, (rank + 1) % world_size);
    let pieces = shape.layout.len().min(PIECES_A_RANK * world_size);
    if pieces == 0 {
        return Vec::new();
    }
    let layout = Layout::even(pieces, shape.layout.len());
    let arrives = |i: usize| recv(previous, layout.block(i), Action::Copy).filter(|_| place > 0);
    let leaves = |i: usize| send(next, layout.block(i)).filter(|_| place + 1 < world_size);
    // While piece i arrives, the one before it leaves.
    (0..=pieces)
        .filter_map(|i| {
            let arriving = (i < pieces).then(|| arrives(i)).flatten();
            let leaving = i.checked_sub(1).and_then(leaves);
            exchange(leaving, arriving)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::{Algorithm, Volume};

    #[test]
    fn little_more_than_the_buffer_crosses_the_longest_path() {
        for world_size in 2..=64 {
            let len = (1 << 20) as f64;
            let volume = Volume { world_size, len, block: (len / world_size as f64).ceil() };
            let chain = Algorithm::BroadcastChain.cost(volume);
            assert_eq!(chain.sent, len);
            assert!(chain.moved < 1.34 * len, "{world_size}");
            assert!(
                chain.moved <= Algorithm::BroadcastScatterAllGather.cost(volume).moved + 128.0,
                "{world_size}"
            );
        }
    }
}
