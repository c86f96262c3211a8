//! Training that is dealt out comes to what one process comes to.

use super::by_hand::{descend, together, wide};
use super::{Batch, Sharding, Toy, assert_close, bits, everywhere};
use crate::World;

const RATE: f64 = 0.1;

/// Of the same batch sizes: the mean over the ranks, in ten steps.
pub fn weights_are_those_of_one_process<S: Sharding>(world: &World) {
    for with_gradients in [false, true] {
        everywhere(world, move |group| {
            let (toy, world_size) = (Toy::new(21), group.world_size());
            let mut dealt = S::deal_out(&toy, &group, with_gradients, RATE).unwrap();
            let mut weights = wide(&toy.weights);
            for step in 0..10 {
                let batch = |rank: usize| (toy.batch(4, rank, step), 1.0 / world_size as f64);
                let batches: Vec<_> = (0..world_size).map(batch).collect();
                dealt.step(Some(&batches[group.rank()].0), None).unwrap();
                let (_, grads) = together(&toy, &weights, &batches);
                descend(&mut weights, &grads, RATE);
            }
            assert_close(&dealt.weights(), &weights, "weights that were dealt out");
            bits(&dealt.weights())
        });
    }
}

/// Rank `r` has `r` samples: the first has none, unless it is alone.
pub fn batches_count_by_their_samples<S: Sharding>(world: &World) {
    for with_gradients in [false, true] {
        everywhere(world, move |group| {
            let (toy, world_size) = (Toy::new(22), group.world_size());
            let samples = |rank: usize| if world_size == 1 { 2 } else { rank };
            let global: usize = (0..world_size).map(samples).sum();
            let batch =
                |rank: usize| (toy.batch(samples(rank), rank, 0), samples(rank) as f64 / global as f64);
            let batches: Vec<(Batch, f64)> = (0..world_size).map(batch).collect();
            let mut dealt = S::deal_out(&toy, &group, with_gradients, RATE).unwrap();
            let mine = Some(&batches[group.rank()].0).filter(|batch| batch.rows > 0);
            dealt.step(mine, Some((samples(group.rank()), global))).unwrap();
            let there: Vec<_> = batches.into_iter().filter(|(batch, _)| batch.rows > 0).collect();
            let mut weights = wide(&toy.weights);
            let (_, grads) = together(&toy, &weights, &there);
            descend(&mut weights, &grads, RATE);
            assert_close(&dealt.weights(), &weights, "weights after uneven batches");
            bits(&dealt.weights())
        });
    }
}

/// Each rank begins with other weights.
pub fn ranks_begin_with_the_weights_of_rank_0<S: Sharding>(world: &World) {
    everywhere(world, |group| {
        let dealt = S::deal_out(&Toy::new(30 + group.rank()), &group, true, RATE).unwrap();
        assert_eq!(dealt.weights(), Toy::new(30).weights);
    });
}
