//! Shares that do not make one batch: no gradient is made of them.

mod common;

use common::{ALL, everywhere, gradient, gradients, reducer, sum, worlds};
use phalanx::{ProcessGroup, ReduceOp};
use phalanx_train::{Error, Gradients, Result, Share};

/// What the error says between its brackets, once it is sure that all ranks got it, that nobody got gradients, and that the group works on.
fn refused(outcome: Result<Gradients<phalanx_train::Array>>, group: &ProcessGroup) -> String {
    let error = outcome.unwrap_err();
    let Error::ShareMismatch { shares, .. } = &error else { panic!("{error}") };
    assert_eq!(shares.len(), group.world_size());
    let mut ones = [1u32];
    group.all_reduce(&mut ones, ReduceOp::Sum).unwrap();
    assert_eq!(ones, [group.world_size() as u32]);
    let told = error.to_string();
    assert!(told.starts_with("the shares of the ranks do not make one batch: "), "{told}");
    assert!(
        told.contains("; pass Share::new(samples of this rank, samples of all ranks together)"),
        "{told}"
    );
    assert_eq!(format!("{error:?}"), told);
    told.split_once("batch: ").unwrap().1.split_once("; pass").unwrap().0.to_owned()
}

#[test]
fn shares_that_do_not_add_up_are_refused_on_all_ranks() {
    let cases: [([(usize, usize); 3], &str); 5] = [
        // Each rank takes its own batch for the whole: the gradient would be three times as large.
        (
            [(8, 8); 3],
            "together they have 24 samples of a global batch of 8 (ranks 0 to 2: 8 of 8 samples each)",
        ),
        (
            [(3, 8), (4, 8), (0, 8)],
            "together they have 7 samples of a global batch of 8 (rank 0: 3 of 8 samples; rank 1: 4 of 8 samples; rank 2: 0 of 8 samples)",
        ),
        (
            [(2, 4), (2, 6), (2, 8)],
            "the ranks do not agree on the size of the global batch (rank 0: 2 of 4 samples; rank 1: 2 of 6 samples; rank 2: 2 of 8 \
             samples)",
        ),
        (
            [(1 << 40, 3 << 40), (1 << 40, 3 << 40), ((1 << 40) + 1, 3 << 40)],
            "together they have 3298534883329 samples of a global batch of 3298534883328 (ranks 0 to 1: 1099511627776 of 3298534883328 \
             samples each; rank 2: 1099511627777 of 3298534883328 samples)",
        ),
        (
            [(0, 8); 3],
            "together they have 0 samples of a global batch of 8 (ranks 0 to 2: 0 of 8 samples each)",
        ),
    ];
    for (shares, expected) in cases {
        everywhere(3, move |group, overlap| {
            let mut reducer = reducer(&group, 100, overlap);
            let (samples, global) = shares[group.rank()];
            // What was kept for it is gone with it.
            reducer.keep(0, gradient(0, group.rank(), 7, 1.0)).unwrap();
            let outcome = reducer.reduce(gradients(group.rank(), 0, 1.0), Share::new(samples, global));
            assert_eq!(refused(outcome, &group), expected);
            // The next step is as if this one had not been.
            let samples = [3, 4, 1];
            let scaled = gradients(group.rank(), 1, 8.0 / samples[group.rank()] as f64);
            let found = reducer.reduce(scaled, Share::new(samples[group.rank()], 8)).unwrap();
            assert_eq!(found, (0..ALL).map(|index| Some(sum(index, &[0, 1, 2], 1))).collect::<Vec<_>>());
        });
    }
}

#[test]
fn equal_shares_and_counted_ones_do_not_mix() {
    for world in worlds() {
        world.run(3, |group| {
            let mut reducer = reducer(&group, 100, false);
            let share = if group.rank() == 1 { Share::new(4, 4) } else { Share::EQUAL };
            let told = refused(reducer.reduce(gradients(group.rank(), 0, 1.0), share), &group);
            let expected = "some shares are equal, and some are of a number of samples (rank 0: an equal share; rank 1: 4 of 4 samples; rank 2: \
                            an equal share)";
            assert_eq!(told, expected);
        });
    }
}

#[test]
fn who_has_no_more_batches_hears_of_it_too() {
    everywhere(3, |group, overlap| {
        let mut reducer = reducer(&group, 100, overlap);
        let outcome = match group.rank() {
            2 => reducer.join().map(|grads| grads.expect("others have batches")),
            rank => reducer.reduce(gradients(rank, 0, 1.0), Share::new(4, 12)),
        };
        let expected = "together they have 8 samples of a global batch of 12 (ranks 0 to 1: 4 of 12 samples each; rank 2: no more batches)";
        assert_eq!(refused(outcome, &group), expected);
        // Those that still have batches make the whole.
        let outcome = match group.rank() {
            2 => reducer.join().map(|grads| grads.expect("others have batches")),
            rank => reducer.reduce(gradients(rank, 0, 2.0), Share::new(4, 8)),
        };
        assert_eq!(outcome.unwrap(), (0..ALL).map(|index| Some(sum(index, &[0, 1], 0))).collect::<Vec<_>>());
    });
}

#[test]
fn who_has_no_samples_need_not_know_how_many_others_have() {
    everywhere(3, |group, overlap| {
        let mut reducer = reducer(&group, 100, overlap);
        let (samples, global) = [(2, 4), (2, 4), (0, 0)][group.rank()];
        let mine = if samples > 0 { gradients(group.rank(), 0, 2.0) } else { vec![None; ALL] };
        let found = reducer.reduce(mine, Share::new(samples, global)).unwrap();
        assert_eq!(found, (0..ALL).map(|index| Some(sum(index, &[0, 1], 0))).collect::<Vec<_>>());
        let nobody = reducer.reduce(vec![None; ALL], Share::new(0, 0)).unwrap();
        assert_eq!(nobody, vec![None; ALL]);
    });
}
