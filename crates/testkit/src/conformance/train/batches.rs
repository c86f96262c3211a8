//! Batches that ranks do not have alike.

use super::by_hand::{descend, together, wide};
use super::{Batch, Library, ONE_BUCKET, Toy, assert_close, bits, everywhere};
use crate::World;

/// Rank `r` has `r + 1` samples: each sample counts the same.
pub fn uneven_batches_count_by_their_samples<L: Library>(world: &World) {
    everywhere(world, |group| {
        let toy = Toy::new(5);
        let global: usize = (1..=group.world_size()).sum();
        let batch = |rank: usize| (toy.batch(rank + 1, rank, 0), (rank + 1) as f64 / global as f64);
        let batches: Vec<_> = (0..group.world_size()).map(batch).collect();
        let mut library = L::wrap(&toy, &group, ONE_BUCKET).unwrap();
        let mine = &batches[group.rank()].0;
        let (_, grads) = library.step(Some(mine), Some((mine.rows, global))).unwrap();
        let (_, expected) = together(&toy, &wide(&toy.weights), &batches);
        assert_close(&grads, &expected, "gradients of uneven batches");
        bits(&grads)
    });
}

/// The last rank has none in this step. Where it is alone, nobody has.
pub fn a_rank_without_samples_takes_part<L: Library>(world: &World) {
    everywhere(world, |group| {
        let (toy, last) = (Toy::new(6), group.world_size() - 1);
        let batches: Vec<_> = (0..last).map(|rank| (toy.batch(3, rank, 0), 1.0 / last as f64)).collect();
        let mut library = L::wrap(&toy, &group, ONE_BUCKET).unwrap();
        let mine = batches.get(group.rank()).map(|(batch, _)| batch);
        let share = (mine.map_or(0, |batch| batch.rows), 3 * last);
        let (_, grads) = library.step(mine, Some(share)).unwrap();
        let (_, expected) = together(&toy, &wide(&toy.weights), &batches);
        assert_close(&grads, &expected, "gradients where a rank has no samples");
        library.descend(0.1);
        (bits(&grads), bits(&library.weights()))
    });
}

/// Even ranks use `side`, odd ones do not, and in the next step the other way round.
pub fn a_weight_that_some_ranks_use_counts_as_zeros_elsewhere<L: Library>(world: &World) {
    everywhere(world, |group| {
        let (toy, world_size) = (Toy::new(7), group.world_size());
        let mut library = L::wrap(&toy, &group, 1).unwrap();
        let mut found = Vec::new();
        for step in 0..2 {
            let batch = |rank: usize| {
                let batch = toy.batch(3, rank, step);
                let batch = if rank % 2 == step { batch } else { batch.without_side() };
                (batch, 1.0 / world_size as f64)
            };
            let batches: Vec<_> = (0..world_size).map(batch).collect();
            let (_, grads) = library.step(Some(&batches[group.rank()].0), None).unwrap();
            let (_, expected) = together(&toy, &wide(&toy.weights), &batches);
            assert_close(&grads, &expected, "gradients of a weight that some use");
            found.push(bits(&grads));
        }
        found
    });
}

/// Not even one of zeros, which an optimizer would act upon. It is used in the step before, and in the step after.
pub fn a_weight_that_no_rank_uses_has_no_gradient<L: Library>(world: &World) {
    everywhere(world, |group| {
        let toy = Toy::new(8);
        let mut library = L::wrap(&toy, &group, ONE_BUCKET).unwrap();
        let mut used = |is_used: bool| {
            let batch = toy.batch(3, group.rank(), 0);
            let batch = if is_used { batch } else { batch.without_side() };
            library.step(Some(&batch), None).unwrap().1.contains_key("side")
        };
        assert_eq!([used(true), used(false), used(true)], [true, false, true]);
    });
}

/// Two batches are kept, the third is sent with them.
pub fn kept_gradients_are_added_up<L: Library>(world: &World) {
    everywhere(world, |group| {
        let (toy, world_size) = (Toy::new(9), group.world_size());
        let batches: Vec<Vec<Batch>> =
            (0..world_size).map(|rank| (0..3).map(|step| toy.batch(2, rank, step)).collect()).collect();
        let mut library = L::wrap(&toy, &group, ONE_BUCKET).unwrap();
        let [one, two, three] = &batches[group.rank()][..] else { unreachable!("there are three") };
        let mut found = Vec::new();
        // Nothing is left for the second time.
        for _ in 0..2 {
            library.accumulate(&one.clone().without_side()).unwrap();
            library.accumulate(two).unwrap();
            let (_, grads) = library.step(Some(three), None).unwrap();
            let weighed = batches.iter().flat_map(|all| {
                let [one, two, three] = [0, 1, 2].map(|i| all[i].clone());
                [one.without_side(), two, three].map(|batch| (batch, 1.0 / world_size as f64))
            });
            let (_, expected) = together(&toy, &wide(&toy.weights), &weighed.collect::<Vec<_>>());
            assert_close(&grads, &expected, "accumulated gradients");
            found.push(bits(&grads));
        }
        found
    });
}

/// Rank `r` has `1 + 2r` batches. Each step is the mean over those that have one, and all end with the same weights.
pub fn a_rank_without_more_batches_takes_part<L: Library>(world: &World) {
    everywhere(world, |group| {
        let (toy, world_size) = (Toy::new(11), group.world_size());
        let mut library = L::wrap(&toy, &group, ONE_BUCKET).unwrap();
        let mut weights = wide(&toy.weights);
        let count = |rank: usize| 1 + 2 * rank;
        for step in 0..count(world_size - 1) {
            let grads = if step < count(group.rank()) {
                library.step(Some(&toy.batch(2, group.rank(), step)), None).unwrap().1
            } else {
                library.join().unwrap().expect("another rank has batches")
            };
            let there: Vec<_> = (0..world_size).filter(|&rank| step < count(rank)).collect();
            let batch = |&rank: &usize| (toy.batch(2, rank, step), 1.0 / there.len() as f64);
            let (_, expected) = together(&toy, &weights, &there.iter().map(batch).collect::<Vec<_>>());
            assert_close(&grads, &expected, "gradients where some ranks have no more batches");
            library.descend(0.1);
            descend(&mut weights, &expected, 0.1);
        }
        assert_eq!(library.join().unwrap(), None);
        assert_close(&library.weights(), &weights, "weights at the end");
        bits(&library.weights())
    });
}
