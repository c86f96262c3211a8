//! What ranks find together is what one process finds with all their batches.

use super::by_hand::{descend, together, wide};
use super::{Library, ONE_BUCKET, Toy, assert_close, bits, everywhere};
use crate::World;
use phalanx_group::{ProcessGroup, threads_with};
use std::collections::BTreeMap;
use std::time::Duration;

/// Of batches of one size: the mean over the ranks.
pub fn gradients_are_those_of_all_batches_together<L: Library>(world: &World) {
    everywhere(world, |group| one_step::<L>(&group, &Toy::new(1)));
}

/// A weight that both layers use has one gradient, of both.
pub fn a_tied_weight_has_the_gradients_of_both_uses<L: Library>(world: &World) {
    everywhere(world, |group| one_step::<L>(&group, &Toy::tied(1)));
}

fn one_step<L: Library>(group: &ProcessGroup, toy: &Toy) -> BTreeMap<String, Vec<u32>> {
    let world_size = group.world_size();
    let batches: Vec<_> =
        (0..world_size).map(|rank| (toy.batch(4, rank, 0), 1.0 / world_size as f64)).collect();
    let mut library = L::wrap(toy, group, ONE_BUCKET).unwrap();
    let (loss, grads) = library.step(Some(&batches[group.rank()].0), None).unwrap();
    let weights = wide(&toy.weights);
    let (own, _) = super::gradients(toy, &weights, &batches[group.rank()].0);
    assert!((f64::from(loss) - own).abs() < 1e-5, "this rank's loss is {loss}, expected {own}");
    let (_, expected) = together(toy, &weights, &batches);
    assert_close(&grads, &expected, "gradients of a step");
    bits(&grads)
}

/// Losses and weights of a training, beside the library's own with all samples on one rank, and beside f64.
pub fn fifty_steps_are_those_of_one_process<L: Library>(world: &World) {
    const ROWS: usize = 12; // for 1 to 4 ranks
    const RATE: f64 = 0.1;
    everywhere(world, |group| {
        let toy = Toy::new(2);
        let alone = threads_with(1, Duration::from_secs(60), "").unwrap().remove(0);
        let mut one = L::wrap(&toy, &alone, ONE_BUCKET).unwrap();
        let mut many = L::wrap(&toy, &group, ONE_BUCKET).unwrap();
        let mut weights = wide(&toy.weights);
        let (rank, rows) = (group.rank(), ROWS / group.world_size());
        for step in 0..50 {
            let whole = toy.batch(ROWS, 0, step);
            let mut mine = whole.clone();
            mine.rows = rows;
            mine.x = whole.x[rank * rows * toy.inputs..][..rows * toy.inputs].to_vec();
            mine.y = whole.y[rank * rows * toy.outputs..][..rows * toy.outputs].to_vec();

            let (of_one, _) = one.step(Some(&whole), None).unwrap();
            let (own, _) = many.step(Some(&mine), None).unwrap();
            let mut of_many = [own / group.world_size() as f32];
            group.all_reduce(&mut of_many, phalanx_core::ReduceOp::Sum).unwrap();
            let (by_hand, grads) = super::gradients(&toy, &weights, &whole);
            let off = (of_many[0] - of_one).abs();
            assert!(off < 1e-5, "step {step}: a loss of {} on ranks, {of_one} in one process", of_many[0]);
            assert!((f64::from(of_one) - by_hand).abs() < 1e-5, "step {step}: {of_one}, by hand {by_hand}");

            one.descend(RATE);
            many.descend(RATE);
            descend(&mut weights, &grads, RATE);
        }
        assert_close(&many.weights(), &weights, "weights after fifty steps");
        bits(&many.weights())
    });
}
