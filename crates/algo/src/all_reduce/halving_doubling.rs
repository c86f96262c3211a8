//! Rabenseifner's algorithm: halve and combine, then double and copy.

use crate::card::card;
use crate::fold;
use crate::plan::{exchange, recv, send};
use crate::{Action, Cost, Shape, Step, reduce_scatter};
use phalanx_core::Layout;

card! {
    op: AllReduce, name: "halving_doubling",
    idea: "reduce_scatter by recursive halving, then all_gather by recursive doubling. \
           Ranks beyond a power of two (p = 2^⌊log₂P⌋) are folded onto others.",
    rounds: "2⌊log₂P⌋, and 2 more unless P is a power of two",
    sent: "2(p − 1)⌈n/p⌉, and n more unless P is a power of two", scratch: "none",
    worlds: Any, buffers: InPlace, overlaps: false,
    source: "Rabenseifner: Optimization of collective reduction operations, ICCS 2004",
    cost: |v| {
        let (core, folded) = fold::core_of(v.world_size);
        let volume = (core as f64 - 1.0) * (v.len / core as f64).ceil();
        let folded = f64::from(folded);
        Cost {
            rounds: 2.0 * (f64::from(core.ilog2()) + folded),
            sent: 2.0 * volume + folded * v.len,
            moved: 2.0 * (volume + folded * v.len),
            combined: volume + folded * v.len,
            scratch: 0.0,
        }
    },
}

fn steps(shape: &Shape<'_>) -> Vec<Step> {
    fold::all_reduce(shape, |core| {
        let layout = core.even_layout();
        let mut steps = (reduce_scatter::halving::CARD.steps)(&core.with_layout(&layout));
        steps.extend(doubling(core.rank, &layout));
        steps
    })
}

/// The mirror image of recursive halving: partners at distance 1, 2, 4, … exchange the finished blocks they have.
fn doubling(rank: usize, layout: &Layout) -> impl Iterator<Item = Step> {
    (0..layout.world_size().ilog2()).filter_map(move |round| {
        let distance = 1 << round;
        let partner = rank ^ distance;
        let held_by = |rank: usize| {
            let first = rank & !(distance - 1);
            layout.blocks(first..first + distance)
        };
        exchange(send(partner, held_by(rank)), recv(partner, held_by(partner), Action::Copy))
    })
}
