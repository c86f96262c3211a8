//! Training that communicates seldom, of plain arrays: every number is that of plain arithmetic, through stops too.

use half::bf16;
use phalanx::ProcessGroup;
use phalanx_testkit::World;
use phalanx_train::checkpoint::{Checkpoints, State, copied, info, load_tensors};
use phalanx_train::{Array, DiLoCo, DiLoCoConfig, Tensor, verify_parameters};
use std::path::Path;

const RATE: f64 = 0.25;
/// In an order that is not that of their names: two layers, of 2 and 3 weights.
const NAMES: [&str; 2] = ["b.weight", "a.weight"];

/// The numbers of both weights.
type Pair = [Vec<f64>; 2];

fn start() -> Pair {
    [vec![1.0, -2.0], vec![0.5, 3.0, -0.25]]
}

/// Where a rank is drawn to in a step, element by element: its data, so to speak.
fn target(rank: usize, step: usize, element: usize) -> f64 {
    (0.3 * rank as f64 + 0.7 * step as f64 + element as f64).sin() + rank as f64
}

/// A step of a rank's own optimizer.
fn inner_step(weights: &mut [f64], rank: usize, step: usize) {
    weights.iter_mut().enumerate().for_each(|(i, w)| *w -= RATE * (*w - target(rank, step, i)));
}

/// All ranks in one place, as the papers write it: rank 0's weights after each step, and at the end the outer ones. The fragments are given by their weights.
fn by_hand(config: DiLoCoConfig, ranks: usize, fragments: &[&[usize]], steps: usize) -> Vec<Pair> {
    let (every, delay) = (config.sync_every as usize, config.delay as usize);
    let mut anchor = start();
    let mut momentum = start().map(|weights| vec![0.0; weights.len()]);
    let mut local = vec![start(); ranks];
    let mut under_way: Option<(usize, &[usize], Pair)> = None;
    let mut story = Vec::new();
    let means = |anchor: &Pair, local: &[Pair]| {
        [0, 1].map(|at| {
            let of =
                |i: usize| local.iter().map(|rank| anchor[at][i] - rank[at][i]).sum::<f64>() / ranks as f64;
            (0..anchor[at].len()).map(of).collect::<Vec<_>>()
        })
    };
    let mut take = |fragment: &[usize], mean: &Pair, anchor: &mut Pair, local: &mut [Pair]| {
        for &at in fragment {
            for i in 0..anchor[at].len() {
                let m = &mut momentum[at][i];
                *m = config.outer_momentum * *m + mean[at][i];
                anchor[at][i] -= config.outer_learning_rate * (mean[at][i] + config.outer_momentum * *m);
                let mixed = |w: f64| config.mix * w + (1.0 - config.mix) * anchor[at][i];
                local.iter_mut().for_each(|rank| rank[at][i] = mixed(rank[at][i]));
            }
        }
    };
    for step in 1..=steps {
        for (rank, weights) in local.iter_mut().enumerate() {
            weights.iter_mut().for_each(|weights| inner_step(weights, rank, step));
        }
        for now in [false, true] {
            if let Some((_, fragment, mean)) = under_way.take_if(|(due, ..)| *due <= step) {
                take(fragment, &mean, &mut anchor, &mut local);
            }
            for (at, fragment) in fragments.iter().enumerate() {
                if !now && step % every == ((at + 1) * every / fragments.len()) % every {
                    under_way = Some((step + delay, fragment, means(&anchor, &local)));
                }
            }
        }
        story.push(local[0].clone());
    }
    story
}

/// The weights of a rank, as a program has them.
fn arrays() -> Vec<Array> {
    start().map(Array::from).into()
}

fn named(weights: &[Array]) -> impl Iterator<Item = (&str, &Array)> {
    NAMES.into_iter().zip(weights)
}

#[test]
fn every_step_is_that_of_plain_arithmetic() {
    let cases: [(DiLoCoConfig, &[&[usize]]); 3] = [
        (DiLoCoConfig::local_sgd(3), &[&[0, 1]]),
        (DiLoCoConfig::diloco(4), &[&[0, 1]]),
        (DiLoCoConfig::streaming(6, 2, 2).mix(0.25), &[&[1], &[0]]), // the larger layer first
    ];
    for (config, fragments) in cases {
        let steps = 13;
        let expected = by_hand(config, 3, fragments, steps);
        for world in [World::thread(), World::shm(), World::tcp()] {
            let stories = world.run(3, move |group| {
                let mut weights = arrays();
                if group.rank() > 0 {
                    weights.iter_mut().for_each(|weight| weight.multiply(3.0).unwrap()); // until rank 0's come
                }
                let mut diloco = DiLoCo::new(NAMES.into_iter().zip(&mut weights), &group, config).unwrap();
                let mut story = Vec::new();
                for step in 1..=steps {
                    for weight in &mut weights {
                        inner_step(weight.as_mut_slice().unwrap(), group.rank(), step);
                    }
                    let before = weights.clone();
                    let is_due = diloco.is_due();
                    diloco.step(&mut weights).unwrap();
                    assert!(is_due || weights == before, "step {step}");
                    story.push(weights.clone());
                }
                diloco.finish(&mut weights).unwrap();
                verify_parameters(named(&weights), &group).unwrap();
                story
            });
            for (step, (found, expected)) in stories[0].iter().zip(&expected).enumerate() {
                for (found, expected) in found.iter().zip(expected) {
                    let found = found.as_slice::<f64>().unwrap();
                    let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
                    assert!(found.iter().zip(expected).all(close), "{config:?}, step {step}: {found:?}");
                }
            }
        }
    }
}

/// Trains weights of 16 bits to step `until`, from the checkpoint in `folder` if there is one.
fn train(group: &ProcessGroup, folder: &Path, until: usize) -> Vec<Array> {
    let of = |numbers: Vec<f64>| Array::from(numbers.into_iter().map(bf16::from_f64).collect::<Vec<_>>());
    let mut weights: Vec<Array> = start().map(of).into();
    let config = DiLoCoConfig::streaming(6, 2, 3);
    let mut diloco = DiLoCo::new(NAMES.into_iter().zip(&mut weights), group, config).unwrap();
    let mut checkpoints = Checkpoints::open(folder, group).unwrap();
    let mut begun = 0;
    if let Some(found) = checkpoints.latest_good().unwrap() {
        found.restore("training", &mut diloco).unwrap();
        let own = found.of_rank(group.rank());
        load_tensors(NAMES.into_iter().zip(&mut weights), "local", &own).unwrap();
        begun = found.step() as usize;
    }
    for step in begun + 1..=until {
        for weight in &mut weights {
            for (i, w) in weight.as_mut_slice::<bf16>().unwrap().iter_mut().enumerate() {
                *w = bf16::from_f64(w.to_f64() - RATE * (w.to_f64() - target(group.rank(), step, i)));
            }
        }
        diloco.step(&mut weights).unwrap();
    }
    let mut state = State::new();
    state.add("training", &diloco).unwrap();
    let save_own = |own: &mut State<'_>| {
        let copies = NAMES.into_iter().zip(weights.clone());
        for (name, weight) in copies {
            let kind = info(&weight);
            own.tensor(format!("local.{name}"), kind, copied::<Array, _>(weight));
        }
        Ok(())
    };
    state.of_rank(group.rank(), save_own).unwrap();
    checkpoints.save(until as u64, state).unwrap();
    diloco.finish(&mut weights).unwrap();
    weights
}

#[test]
fn a_training_that_stops_with_a_mean_under_way_goes_on_as_if_it_had_not() {
    let run = |folder: &Path, until: usize| {
        let folder = folder.to_owned();
        World::thread().run(2, move |group| train(&group, &folder, until))
    };
    let nothing = tempfile::tempdir().unwrap();
    let expected = run(nothing.path(), 12);
    assert_eq!(expected[0], expected[1]);
    for stop in 1..12 {
        let folder = tempfile::tempdir().unwrap();
        run(folder.path(), stop);
        assert_eq!(run(folder.path(), 12), expected, "stopped after {stop}");
    }
}

#[test]
fn integers_and_configurations_that_make_no_sense_are_refused() {
    let group = &phalanx::threads(1)[0];
    let counter = Array::from(vec![1i64]);
    let told =
        DiLoCo::around([("counter", &counter)], group, DiLoCoConfig::diloco(2)).unwrap_err().to_string();
    assert!(told.contains("`counter` can't be averaged: it is i64"), "{told}");
    let weight = Array::from(vec![1f32]);
    let config = DiLoCoConfig::streaming(4, 2, 0);
    let told = DiLoCo::around([("weight", &weight)], group, config).unwrap_err().to_string();
    assert!(told.contains("fragments is 2, but the model has fewer layers"), "{told}");
    let config = DiLoCoConfig::diloco(0);
    let told = DiLoCo::around([("weight", &weight)], group, config).unwrap_err().to_string();
    assert!(told.contains("expected 1 to sync_every, which is 0"), "{told}");
}
