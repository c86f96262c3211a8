//! Ranks that train for themselves meet when it is time.

use super::by_hand::{descend, gradients, wide};
use super::{Averaging, Toy, assert_close, bits, everywhere};
use crate::World;
use std::collections::BTreeMap;

const RATE: f64 = 0.1;
const SYNC_EVERY: u64 = 3;

type Weights = BTreeMap<String, Vec<f64>>;

/// Eight steps, of which the third, the sixth, and the end bring the ranks together.
pub fn weights_are_means_of_what_ranks_have_trained<A: Averaging>(world: &World) {
    everywhere(world, |group| {
        let (toy, world_size) = (Toy::new(41), group.world_size());
        let mut averaged = A::average(&toy, &group, SYNC_EVERY, RATE).unwrap();
        let mut of_all: Vec<Weights> = vec![wide(&toy.weights); world_size];
        for step in 1..=8 {
            averaged.step(&toy.batch(4, group.rank(), step)).unwrap();
            for (rank, weights) in of_all.iter_mut().enumerate() {
                let (_, grads) = gradients(&toy, weights, &toy.batch(4, rank, step));
                descend(weights, &grads, RATE);
            }
            if (step as u64).is_multiple_of(SYNC_EVERY) {
                of_all = vec![mean(&of_all); world_size];
            }
            assert_close(&averaged.weights(), &of_all[group.rank()], "weights of a rank");
        }
        averaged.finish().unwrap();
        assert_close(&averaged.weights(), &mean(&of_all), "weights at the end");
        bits(&averaged.weights())
    });
}

/// Each rank begins with other weights.
pub fn ranks_begin_with_the_weights_of_rank_0<A: Averaging>(world: &World) {
    everywhere(world, |group| {
        let averaged = A::average(&Toy::new(50 + group.rank()), &group, SYNC_EVERY, RATE).unwrap();
        assert_eq!(averaged.weights(), Toy::new(50).weights);
    });
}

fn mean(of_all: &[Weights]) -> Weights {
    let mean = |name: &String, i: usize| {
        of_all.iter().map(|weights| weights[name][i]).sum::<f64>() / of_all.len() as f64
    };
    let one = |(name, values): (&String, &Vec<f64>)| {
        (name.clone(), (0..values.len()).map(|i| mean(name, i)).collect())
    };
    of_all[0].iter().map(one).collect()
}
