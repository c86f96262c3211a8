//! What does not fit together is refused on every rank.

use super::{Library, ONE_BUCKET, Toy, assert_close, everywhere};
use crate::World;

/// All ranks get the same words, and the next step is fine.
pub fn shares_that_make_no_batch_are_refused<L: Library>(world: &World) {
    everywhere(world, |group| {
        let (toy, world_size) = (Toy::new(12), group.world_size());
        let mut library = L::wrap(&toy, &group, ONE_BUCKET).unwrap();
        let batch = toy.batch(2, group.rank(), 0);
        let too_many = Some((2, 2 * world_size + 1));
        let error = library.step(Some(&batch), too_many).expect_err("a sample is missing");
        assert!(error.contains("do not make one batch"), "{error}");

        let (_, grads) = library.step(Some(&batch), Some((2, 2 * world_size))).unwrap();
        let weights = super::by_hand::wide(&toy.weights);
        let batches = (0..world_size).map(|rank| (toy.batch(2, rank, 0), 1.0 / world_size as f64));
        let (_, expected) = super::by_hand::together(&toy, &weights, &batches.collect::<Vec<_>>());
        assert_close(&grads, &expected, "gradients after a refusal");
        error
    });
}

/// The last rank has built another one.
pub fn another_network_is_refused_by_name<L: Library>(world: &World) {
    everywhere(world, |group| {
        let is_last = group.rank() > 0 && group.rank() == group.world_size() - 1;
        let toy = Toy::sized(3, if is_last { 6 } else { 5 }, 2, false, 1);
        match L::wrap(&toy, &group, ONE_BUCKET) {
            Ok(_) if group.world_size() == 1 => String::new(),
            Ok(_) => panic!("the networks are not the same"),
            Err(error) => {
                assert!(error.contains("differs between ranks") && error.contains("first"), "{error}");
                error
            }
        }
    });
}
