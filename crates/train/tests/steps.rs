//! What steps come to is what adding up by hand comes to, to the last bit, over every transport, whether gradients are sent while
//! the backward pass runs or after it.

mod common;

use common::{ALL, MODEL, MODES, array, everywhere, gradient, gradients, number, reducer, sum, sums, worlds};
use phalanx::DType;
use phalanx_testkit::World;
use phalanx_train::compress::{Cast, PowerSgd};
use phalanx_train::{Array, Reducer, Share, sync_gradients};

#[test]
fn gradients_are_the_means_of_all_ranks() {
    for world in worlds() {
        for world_size in 1..=4 {
            for cap_bytes in [0, 100, 1 << 20] {
                world.run(world_size, move |group| {
                    for mode in MODES {
                        let mut reducer = reducer(&group, cap_bytes, mode);
                        for step in 0..3 {
                            reducer.begin(Share::EQUAL, (0..ALL).rev()).unwrap();
                            // Each rank completes its gradients in another order.
                            for at in 0..ALL {
                                let index = (at + group.rank() + step) % ALL;
                                let mine = gradient(index, group.rank(), step, world_size as f64);
                                reducer.ready(index, mine).unwrap();
                            }
                            assert_eq!(
                                reducer.finish().unwrap(),
                                sums(world_size, step),
                                "{world_size} ranks"
                            );
                        }
                    }
                });
            }
        }
    }
}

#[test]
fn gradients_that_are_there_already_take_one_call() {
    everywhere(3, |group, mode| {
        let mut reducer = reducer(&group, 100, mode);
        for step in 0..2 {
            let found = reducer.reduce(gradients(group.rank(), step, 3.0), Share::EQUAL).unwrap();
            assert_eq!(found, sums(3, step));
        }
        let once = sync_gradients(common::parameters(), gradients(group.rank(), 5, 3.0), &group).unwrap();
        assert_eq!(once, sums(3, 5));
    });
}

#[test]
fn parameters_may_be_used_here_or_there_or_nowhere_and_differently_in_each_step() {
    // The last is used in the last step only; the others by all ranks but one, by one, or by all.
    let uses = |index: usize, rank: usize, step: usize| match index {
        _ if index == ALL - 1 => step == 3,
        0 => !(rank + step).is_multiple_of(3),
        1 => (rank + step) % 3 == 1,
        2 => rank == 2,
        _ => true,
    };
    // Alone in their buckets, and with others that are used.
    for cap_bytes in [30, 1 << 20] {
        everywhere(3, move |group, mode| {
            let mut reducer = reducer(&group, cap_bytes, mode);
            for step in 0..4 {
                let used = || (0..ALL).filter(|&index| uses(index, group.rank(), step));
                reducer.begin(Share::EQUAL, used()).unwrap();
                used().for_each(|i| reducer.ready(i, gradient(i, group.rank(), step, 3.0)).unwrap());
                for (index, found) in reducer.finish().unwrap().into_iter().enumerate() {
                    let users: Vec<usize> = (0..3).filter(|&rank| uses(index, rank, step)).collect();
                    let expected = (!users.is_empty()).then(|| sum(index, &users, step));
                    assert_eq!(found, expected, "{} in step {step}", MODEL[index].0);
                }
            }
        });
    }
}

#[test]
fn what_was_to_come_and_did_not_counts_as_zeros() {
    everywhere(2, |group, mode| {
        let mut reducer = reducer(&group, 100, mode);
        for step in 0..2 {
            reducer.begin(Share::EQUAL, 0..ALL).unwrap();
            for index in (0..ALL).filter(|&index| index != 1 + group.rank()) {
                reducer.ready(index, gradient(index, group.rank(), step, 2.0)).unwrap();
            }
            let found = reducer.finish().unwrap();
            assert_eq!((&found[1], &found[2]), (&Some(sum(1, &[1], step)), &Some(sum(2, &[0], step))));
            assert_eq!((&found[0], &found[3..]), (&sums(2, step)[0], &sums(2, step)[3..]));
        }
    });
}

#[test]
fn shares_of_different_sizes_are_weighed_and_who_has_none_counts_for_nothing() {
    everywhere(3, |group, mode| {
        let samples = [5, 3, 0];
        let mut reducer = reducer(&group, 100, mode);
        for step in 0..2 {
            let share = Share::new(samples[group.rank()], 8);
            let factor = if group.rank() == 2 { f64::NAN } else { 8.0 };
            let found = reducer.reduce(gradients(group.rank(), step, factor), share).unwrap();
            for (index, found) in found.into_iter().enumerate() {
                let weighed = |e| 5.0 * number(index, 0, step, e) + 3.0 * number(index, 1, step, e);
                assert_eq!(found, Some(array(index, weighed)));
            }
        }
    });
}

#[test]
fn ranks_with_fewer_batches_follow_the_others() {
    let batches = [2, 0, 4];
    everywhere(3, move |group, mode| {
        let mut reducer = reducer(&group, 100, mode);
        for step in 0..4 {
            let found = if step < batches[group.rank()] {
                reducer.reduce(gradients(group.rank(), step, 6.0), Share::EQUAL).unwrap()
            } else {
                reducer.join().unwrap().expect("rank 2 has batches")
            };
            // The mean over those that have a batch.
            let working: Vec<usize> = (0..3).filter(|&rank| step < batches[rank]).collect();
            for (index, found) in found.into_iter().enumerate() {
                let number = |e| working.iter().map(|&rank| number(index, rank, step, e)).sum::<f64>();
                let mean = |e| 6.0 / working.len() as f64 * number(e);
                assert_eq!(found, Some(array(index, mean)), "{} in step {step}", MODEL[index].0);
            }
        }
        assert_eq!(reducer.join().unwrap(), None);
    });
}

#[test]
fn who_joins_follows_weighed_steps_too() {
    everywhere(2, |group, mode| {
        let mut reducer = reducer(&group, 100, mode);
        let found = match group.rank() {
            0 => reducer.reduce(gradients(0, 0, 1.0), Share::new(4, 4)).unwrap(),
            _ => reducer.join().unwrap().expect("rank 0 has a batch"),
        };
        assert_eq!(found, sums(1, 0));
    });
}

#[test]
fn what_was_kept_is_added_to_the_next_step_and_to_no_other() {
    everywhere(2, |group, mode| {
        let rank = group.rank();
        let mut reducer = reducer(&group, 100, mode);
        for index in 0..4 {
            reducer.keep(index, gradient(index, rank, 10, 2.0)).unwrap();
            reducer.keep(index, gradient(index, rank, 11, 2.0)).unwrap();
        }
        reducer.begin(Share::EQUAL, 2..ALL).unwrap();
        (2..ALL).for_each(|index| reducer.ready(index, gradient(index, rank, 12, 2.0)).unwrap());
        for (index, found) in reducer.finish().unwrap().into_iter().enumerate() {
            let (steps, ranks) = (
                if index < 2 {
                    10..12
                } else if index < 4 {
                    10..13
                } else {
                    12..13
                },
                0..2,
            );
            let number = |e| {
                let of = |step| ranks.clone().map(|rank| number(index, rank, step, e)).sum::<f64>();
                steps.clone().map(of).sum()
            };
            assert_eq!(found, Some(array(index, number)), "{}", MODEL[index].0);
        }
        let found = reducer.reduce(gradients(rank, 13, 2.0), Share::EQUAL).unwrap();
        assert_eq!(found, sums(2, 13));

        // What is kept during a step that does not wait for it is for the next one.
        reducer.begin(Share::EQUAL, [1]).unwrap();
        reducer.ready(1, gradient(1, rank, 14, 2.0)).unwrap();
        reducer.keep(1, gradient(1, rank, 15, 2.0)).unwrap();
        assert_eq!(reducer.finish().unwrap()[1], sums(2, 14)[1]);
        assert_eq!(reducer.reduce(vec![None; ALL], Share::EQUAL).unwrap()[1], sums(2, 15)[1]);
    });
}

#[test]
fn what_was_kept_by_a_rank_without_samples_counts_for_nothing() {
    everywhere(2, |group, mode| {
        let rank = group.rank();
        let mut reducer = reducer(&group, 100, mode);
        reducer.keep(5, gradient(5, rank, 10, 8.0)).unwrap();
        let share = Share::new([8, 0][rank], 8);
        let found = reducer.reduce(vec![None; ALL], share).unwrap();
        assert_eq!(found[5], Some(array(5, |e| 8.0 * number(5, 0, 10, e))));
        let found = reducer.reduce(gradients(rank, 11, 2.0), Share::EQUAL).unwrap();
        assert_eq!(found, sums(2, 11), "nor later");
    });
}

#[test]
fn gradients_can_travel_in_another_type() {
    everywhere(2, |group, mode| {
        let wires = [DType::F16, DType::F32, DType::F64, DType::F32, DType::BF16, DType::F16, DType::F32];
        let parameters: Vec<_> =
            common::parameters().into_iter().zip(wires).map(|(p, wire)| p.wire(wire)).collect();
        let mut reducer = Reducer::<Array>::new(parameters, &group, 100, mode).unwrap();
        for step in 0..2 {
            let found = reducer.reduce(gradients(group.rank(), step, 2.0), Share::EQUAL).unwrap();
            assert_eq!(found, sums(2, step), "in the types of the parameters");
        }
    });
}

#[test]
fn sums_beyond_f16_have_means_within() {
    everywhere(3, |group, mode| {
        let mut reducer = reducer(&group, 100, mode);
        let mut mine = vec![None; ALL];
        mine[2] = Some(array(2, |_| 60_000.0));
        let found = reducer.reduce(mine, Share::EQUAL).unwrap();
        let found = found[2].as_ref().unwrap().as_slice::<half::f16>().unwrap();
        assert!(found.iter().all(|x| (x.to_f64() - 60_000.0).abs() < 100.0), "{found:?}");
    });
}

#[test]
fn hooks_add_up_gradients_of_f32_and_leave_the_others_alone() {
    everywhere(2, |group, mode| {
        let mut reducer = reducer(&group, 100, mode);
        reducer.set_hook(Box::new(Cast::f16())); // which has all of our numbers
        assert!(!reducer.overlaps());
        for step in 0..2 {
            let found = reducer.reduce(gradients(group.rank(), step, 2.0), Share::EQUAL).unwrap();
            assert_eq!(found, sums(2, step));
        }
        assert!(reducer.traffic().unwrap().ratio() > 1.9);
    });
}

#[test]
fn hooks_know_shapes_and_buckets() {
    everywhere(2, |group, mode| {
        let mut reducer = reducer(&group, 100, mode);
        // Of a matrix of rank 1 nothing is lost. It would not be one in another shape.
        reducer.set_hook(Box::new(PowerSgd::new(1).unwrap()));
        let mut mine: Vec<Option<Array>> = vec![None; ALL];
        mine[5] = Some(array(5, |i| ((1 + i / 5) * (1 + i % 5)) as f64));
        for _ in 0..3 {
            let found = reducer.reduce(mine.clone(), Share::EQUAL).unwrap();
            let (found, expected) = (found[5].as_ref().unwrap(), mine[5].as_ref().unwrap());
            let pairs = found.as_slice::<f32>().unwrap().iter().zip(expected.as_slice::<f32>().unwrap());
            pairs.for_each(|(f, e)| assert!((f - e).abs() < 1e-3, "{found:?}"));
        }
        assert!(reducer.traffic().unwrap().ratio() > 1.0);
    });
}

#[test]
fn buckets_are_under_way_as_soon_as_they_are_complete() {
    World::tcp().run(2, |group| {
        let mut reducer = reducer(&group, 0, true);
        let mut launched = Vec::new();
        for step in 0..2 {
            reducer.begin(Share::EQUAL, [3, 1, 0]).unwrap();
            for index in [1, 3, 0] {
                reducer.ready(index, gradient(index, group.rank(), step, 2.0)).unwrap();
                launched.push(reducer.launched());
            }
            reducer.finish().unwrap();
        }
        // 1 waits for 3, whose bucket goes first. When 0 is there too, the rest is found to be used by nobody.
        assert_eq!(launched[..2], [0, 2]);
        assert_eq!(launched[3..5], [0, 2]);
        assert_eq!(launched[2], launched[5]);
        assert!(launched[2] >= 3);
    });
}
