//! What every hook promises, over every kind of link: the same bits on every rank, nothing lost for good, and fewer bytes.

use phalanx::{ProcessGroup, ReduceOp};
use phalanx_checkpoint::{Checkpoints, State};
use phalanx_compress::{Bucket, Cast, CommHook, Int8, PowerSgd, TopK, Traffic};
use phalanx_testkit::World;
use std::path::Path;

type New = fn() -> Box<dyn CommHook>;

/// Each hook, how many times fewer bytes it sends between two ranks, and whether it feeds back.
const HOOKS: [(&str, New, f64, bool); 6] = [
    ("f16", || Box::new(Cast::f16()), 2.0, false),
    ("bf16", || Box::new(Cast::bf16()), 2.0, false),
    ("int8", || Box::new(Int8::new()), 3.7, true),
    ("top-k", || Box::new(TopK::new(0.05).unwrap()), 9.9, true),
    ("PowerSGD 1", || Box::new(PowerSgd::new(1).unwrap()), 20.0, true),
    ("PowerSGD 4", || Box::new(PowerSgd::new(4).unwrap()), 6.0, true),
];

const SHAPES: [&[usize]; 3] = [&[60, 50], &[50], &[40, 7, 10]];
const LEN: usize = 3000 + 50 + 2800 + 13;

/// Gradients that differ from rank to rank and from step to step: a part that stays, and noise.
fn gradients(rank: usize, step: usize) -> Vec<f32> {
    let number = |i: usize| {
        let steady = ((i / 50) as f32 * 0.3).sin() * ((i % 50) as f32 * 0.2 + rank as f32).cos();
        let noise = ((i * 7919 + step * 104_729 + rank * 31) % 1009) as f32 / 1009.0 - 0.5;
        steady + 0.3 * noise
    };
    (0..LEN).map(number).collect()
}

fn reduce(hook: &mut dyn CommHook, gradients: &mut [f32], group: &ProcessGroup) {
    hook.reduce(Bucket { index: 3, gradients, shapes: &SHAPES }, group).unwrap();
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

#[test]
fn every_rank_ends_with_the_same_bits_near_the_sum_and_nothing_is_lost_for_good() {
    for world in [World::thread(), World::shm(), World::tcp()] {
        for (name, new, _, feeds_back) in HOOKS {
            for ranks in [1, 3] {
                let steps = 40;
                let found = world.run(ranks, move |group| {
                    let mut hook = new();
                    let (mut sum, mut expected) = (vec![0.0f64; LEN], vec![0.0f64; LEN]);
                    let mut bits = Vec::new();
                    let mut distances = Vec::new();
                    for step in 0..steps {
                        let mut mine = gradients(group.rank(), step);
                        let mut plain = mine.clone();
                        group.all_reduce(&mut plain, ReduceOp::Sum).unwrap();
                        reduce(&mut *hook, &mut mine, &group);
                        bits.extend(mine.iter().map(|value| value.to_bits()));
                        sum.iter_mut().zip(&mine).for_each(|(sum, value)| *sum += f64::from(*value));
                        expected.iter_mut().zip(&plain).for_each(|(sum, value)| *sum += f64::from(*value));
                        // How far the sum of all steps is from the truth, in steps.
                        let one = norm(plain.iter().map(|value| f64::from(*value)));
                        distances.push(norm(sum.iter().zip(&expected).map(|(a, b)| a - b)) / one);
                    }
                    (bits, distances)
                });
                assert!(found.iter().all(|(bits, _)| *bits == found[0].0), "{name} on {ranks} ranks");
                let distances = &found[0].1;
                let (middle, last) = (distances[steps / 2 - 1], distances[steps - 1]);
                if feeds_back {
                    // What is left out stays as much as it was: it does not add up.
                    assert!(last < 1.3 * middle + 0.01, "{name} on {ranks} ranks: {middle}, then {last}");
                    assert!(last / (steps as f64) < 0.3, "{name} on {ranks} ranks: {last}");
                } else {
                    assert!(last < 0.02 * steps as f64, "{name} on {ranks} ranks: {last}");
                }
            }
        }
    }
}

#[test]
fn as_many_bytes_are_sent_as_was_promised() {
    for (name, new, promised, _) in HOOKS {
        for Traffic { sent, plain } in World::thread().run(2, move |group| {
            let mut hook = new();
            (0..3).for_each(|step| reduce(&mut *hook, &mut gradients(group.rank(), step), &group));
            hook.traffic()
        }) {
            assert_eq!(plain, 3 * 4 * LEN as u64, "{name}");
            let ratio = plain as f64 / sent as f64;
            assert!((promised..1.1 * promised).contains(&ratio), "{name}: {ratio}");
        }
    }
}

#[test]
fn steps_without_gradients_and_with_none_that_are_numbers_do_not_spoil_the_next() {
    for (name, new, ..) in HOOKS {
        World::thread().run(2, move |group| {
            let mut hook = new();
            let mut zeros = vec![0.0; LEN];
            reduce(&mut *hook, &mut zeros, &group);
            assert!(zeros.iter().all(|value| *value == 0.0), "{name}");

            for none in [f32::NAN, f32::INFINITY] {
                let mut bad = gradients(group.rank(), 0);
                bad[17] = if group.rank() == 1 { none } else { 1.0 };
                reduce(&mut *hook, &mut bad, &group);
                assert!(!bad[17].is_finite(), "{name}: whoever looks for overflows finds it");
            }

            for step in 0..40 {
                let mut mine = gradients(group.rank(), step);
                reduce(&mut *hook, &mut mine, &group);
                let sound = mine.iter().all(|value| value.is_finite());
                assert!(sound && mine.iter().any(|value| *value != 0.0), "{name}, step {step}");
            }
        });
    }
}

#[test]
fn buckets_are_kept_apart_and_may_be_of_any_length() {
    for (name, new, ..) in HOOKS {
        World::thread().run(3, move |group| {
            let (mut together, mut alone) = (new(), [new(), new()]);
            for step in 0..5 {
                for (index, len) in [(0, 1000), (1, 257)] {
                    let mut a = gradients(group.rank(), step)[..len].to_vec();
                    let mut b = a.clone();
                    together.reduce(Bucket::flat(index, &mut a), &group).unwrap();
                    alone[index].reduce(Bucket::flat(index, &mut b), &group).unwrap();
                    assert_eq!(a, b, "{name}");
                }
            }
            for len in [0, 1, 2, 255, 256, 768, 1537] {
                let mut values = vec![1.0f32; len];
                together.reduce(Bucket::flat(0, &mut values), &group).unwrap();
                together.reduce(Bucket::flat(0, &mut values), &group).unwrap();
                assert_eq!(values.len(), len);
            }
        });
    }
}

/// Gradients that are the same in each step are rounded the same way in each, were that not fed back: in the first round, and in the second,
/// where whole numbers up to 127 need no rounding in the first.
#[test]
fn both_roundings_to_bytes_are_fed_back() {
    for whole in [false, true] {
        World::thread().run(3, move |group| {
            let of = |i: usize, rank: usize| match (whole, i % 256) {
                (true, 0) => 127.0,
                (true, _) => ((i * 31 + rank * 17) % 127) as f32,
                (false, _) => 1.0 + (i as f32 * 0.37 + rank as f32).sin(),
            };
            let mut hook = Int8::new();
            let expected: Vec<f32> = (0..2000).map(|i| (0..3).map(|rank| of(i, rank)).sum()).collect();
            let (mut sum, mut distances, steps) = (vec![0.0f64; 2000], Vec::new(), 200);
            for step in 1..=steps {
                let mut mine: Vec<f32> = (0..2000).map(|i| of(i, group.rank())).collect();
                hook.reduce(Bucket::flat(0, &mut mine), &group).unwrap();
                sum.iter_mut().zip(&mine).for_each(|(sum, value)| *sum += f64::from(*value));
                let apart =
                    sum.iter().zip(&expected).map(|(sum, one)| sum - f64::from(*one) * f64::from(step));
                distances.push(norm(apart));
            }
            let (early, last) = (distances[..20].iter().fold(0.0, |a: f64, &b| a.max(b)), distances[199]);
            assert!(last < 2.0 * early, "whole: {whole}: {early}, then {last}");
        });
    }
}

/// PowerSGD finds a gradient of low rank as it is, from the second step on.
#[test]
fn what_has_as_few_directions_as_are_sent_arrives_whole() {
    World::shm().run(2, |group| {
        let mut hook = PowerSgd::new(2).unwrap();
        let scale = 1.0 + group.rank() as f32;
        let of = |scale: f32| -> Vec<f32> {
            let element =
                |i: usize, j: usize| (i as f32 * 0.3).sin() * j as f32 + (j as f32 * 0.7).cos() * 5.0;
            (0..60 * 50).map(|at| scale * element(at / 50, at % 50)).collect()
        };
        for step in 0..4 {
            let mut mine = of(scale);
            hook.reduce(Bucket { index: 0, gradients: &mut mine, shapes: &[&[60, 50]] }, &group).unwrap();
            let expected = of(3.0);
            let apart = norm(mine.iter().zip(&expected).map(|(a, b)| f64::from(a - b)));
            let whole = norm(expected.iter().map(|value| f64::from(*value)));
            assert!(step == 0 || apart < 1e-4 * whole, "step {step}: {apart} of {whole}");
        }
    });
}

/// Saves what `hook` remembers.
fn save(hook: &dyn CommHook, folder: &Path, group: &ProcessGroup) {
    let mut state = State::new();
    hook.save("hook", group, &mut state).unwrap();
    Checkpoints::open(folder, group).unwrap().save(1, state).unwrap();
}

/// Has `hook` remember what was saved.
fn load(hook: &mut dyn CommHook, folder: &Path, group: &ProcessGroup) {
    let found = Checkpoints::open(folder, group).unwrap().latest_good().unwrap().unwrap();
    hook.load("hook", group, &found).unwrap();
}

#[test]
fn a_hook_goes_on_from_a_checkpoint_to_the_last_bit() {
    for world in [World::thread(), World::shm(), World::tcp()] {
        for (name, new, _, feeds_back) in HOOKS {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().to_owned();
            world.run(3, move |group| {
                let (mut first, mut second, mut forgetful) = (new(), new(), new());
                (0..3).for_each(|step| reduce(&mut *first, &mut gradients(group.rank(), step), &group));
                save(&*first, &path, &group);
                load(&mut *second, &path, &group);
                for step in 3..6 {
                    let [mut expected, mut found, mut other] =
                        [(); 3].map(|()| gradients(group.rank(), step));
                    reduce(&mut *first, &mut expected, &group);
                    reduce(&mut *second, &mut found, &group);
                    reduce(&mut *forgetful, &mut other, &group);
                    let bits =
                        |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&found), bits(&expected), "{name}, step {step}");
                    assert_eq!(bits(&other) != bits(&expected), feeds_back, "{name}, step {step}");
                }
            });
        }
    }
}

/// What was left out on some ranks comes, on others, in the steps that follow.
#[test]
fn another_number_of_ranks_sends_what_was_left_out() {
    for (name, new, _, feeds_back) in HOOKS {
        for (before, after) in [(3, 2), (2, 3), (4, 1)] {
            if !feeds_back {
                continue;
            }
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().to_owned();
            // What is owed: all that was given, without what came out.
            let saved = path.clone();
            let owed = World::thread().run(before, move |group| {
                let (mut hook, mut owed) = (new(), vec![0.0f64; LEN]);
                for step in 0..4 {
                    let mut given = gradients(group.rank(), step);
                    let mut came = given.clone();
                    group.all_reduce(&mut given, ReduceOp::Sum).unwrap();
                    reduce(&mut *hook, &mut came, &group);
                    let differences = given.iter().zip(&came).map(|(given, came)| f64::from(given - came));
                    owed.iter_mut().zip(differences).for_each(|(owed, difference)| *owed += difference);
                }
                save(&*hook, &saved, &group);
                owed
            });
            let owed = owed.into_iter().next().unwrap();
            let whole = norm(owed.iter().copied());
            assert!(whole > 0.1, "{name}: {whole}");
            World::thread().run(after, move |group| {
                let (mut hook, mut left) = (new(), owed.clone());
                load(&mut *hook, &path, &group);
                for _ in 0..80 {
                    let mut came = vec![0.0; LEN];
                    reduce(&mut *hook, &mut came, &group);
                    left.iter_mut().zip(&came).for_each(|(left, came)| *left -= f64::from(*came));
                }
                let rest = norm(left.iter().copied());
                assert!(rest < 0.01 * whole, "{name}, {before} ranks, then {after}: {rest} of {whole}");
            });
        }
    }
}
