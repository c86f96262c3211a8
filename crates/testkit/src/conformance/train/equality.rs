//! Ranks are equal, to the bit.

use super::{Library, ONE_BUCKET, Toy, bits, everywhere};
use crate::World;

/// Each rank has built the network with weights of its own.
pub fn ranks_begin_with_the_weights_of_rank_0<L: Library>(world: &World) {
    everywhere(world, |group| {
        let library = L::wrap(&Toy::new(10 + group.rank()), &group, ONE_BUCKET).unwrap();
        assert_eq!(bits(&library.weights()), bits(&Toy::new(10).weights));
    });
}

/// Where gradients lie on their way changes nothing: one bucket for all, one for each weight, and some between. Of sums of two numbers this is so whatever the
/// algorithm; those of more are made in an order that may depend on the place, so they are told from each other by rounding at most.
pub fn buckets_of_any_size_give_the_same_bits<L: Library>(world: &World) {
    everywhere(world, |group| {
        let toy = Toy::new(4);
        let mut all = Vec::new();
        for cap in [1, 40, 64, ONE_BUCKET] {
            let mut library = L::wrap(&toy, &group, cap).unwrap();
            for step in 0..3 {
                library.step(Some(&toy.batch(3, group.rank(), step)), None).unwrap();
                library.descend(0.1);
            }
            all.push(library.weights());
        }
        for other in &all[1..] {
            if group.world_size() <= 2 {
                assert_eq!(bits(other), bits(&all[0]));
            }
            super::assert_close(other, &super::by_hand::wide(&all[0]), "weights with other buckets");
        }
        all.iter().map(bits).collect::<Vec<_>>()
    });
}
