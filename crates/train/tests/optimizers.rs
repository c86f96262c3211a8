//! Optimizers over several ranks: the same bits on all of them, as one process would have found, and through checkpoints.

mod common;

use common::{ALL, MODEL, array, gradient, number, reducer, sums, worlds};
use phalanx::ProcessGroup;
use phalanx_testkit::World;
use phalanx_train::checkpoint::{Checkpoints, State, Stateful, load_tensors, save_tensors};
use phalanx_train::{
    AdamW, AdamWParams, Array, Error, Gradients, Result, Sgd, SgdParams, Share, Tensor, sync_model,
    verify_parameters,
};
use std::path::Path;

const ADAMW: AdamWParams = AdamWParams { lr: 0.1, beta1: 0.9, beta2: 0.999, eps: 1e-3, weight_decay: 0.1 };
const SGD: SgdParams =
    SgdParams { lr: 0.1, momentum: 0.9, dampening: 0.25, weight_decay: 0.1, nesterov: false };

/// Either optimizer.
enum Either {
    AdamW(AdamW<Array>),
    Sgd(Sgd<Array>),
}

impl Either {
    fn all(weights: &[Array]) -> [Self; 2] {
        [Self::AdamW(AdamW::new(named(weights), ADAMW).unwrap()), Self::Sgd(Sgd::new(named(weights), SGD))]
    }

    fn step(&mut self, weights: &mut Vec<Array>, grads: &[Option<Array>]) -> Result<()> {
        match self {
            Self::AdamW(adamw) => adamw.step(weights, grads),
            Self::Sgd(sgd) => sgd.step(weights, grads),
        }
    }
}

impl Either {
    fn sync(&mut self, group: &ProcessGroup, root: usize) -> Result<()> {
        match self {
            Self::AdamW(adamw) => adamw.sync(group, root),
            Self::Sgd(sgd) => sgd.sync(group, root),
        }
    }
}

impl Stateful for Either {
    fn save<'a>(&'a self, prefix: &str, state: &mut State<'a>) -> phalanx_train::checkpoint::Result<()> {
        match self {
            Self::AdamW(adamw) => adamw.save(prefix, state),
            Self::Sgd(sgd) => sgd.save(prefix, state),
        }
    }

    fn load(
        &mut self,
        prefix: &str,
        from: &phalanx_train::checkpoint::Checkpoint,
    ) -> phalanx_train::checkpoint::Result<()> {
        match self {
            Self::AdamW(adamw) => adamw.load(prefix, from),
            Self::Sgd(sgd) => sgd.load(prefix, from),
        }
    }
}

fn weights() -> Vec<Array> {
    (0..ALL).map(|index| array(index, |element| number(index, 0, 0, element) / 8.0)).collect()
}

fn named(weights: &[Array]) -> impl Iterator<Item = (&str, &Array)> {
    weights.iter().zip(MODEL).map(|(weight, (name, ..))| (name, weight))
}

/// The gradients of a step, whose mean over the ranks is the sum of their numbers. The last parameter has none at first.
fn gradients(group: &ProcessGroup, step: usize) -> Gradients<Array> {
    let (rank, factor) = (group.rank(), group.world_size() as f64);
    (0..ALL).map(|index| (index + 1 < ALL || step > 1).then(|| gradient(index, rank, step, factor))).collect()
}

fn expected(world_size: usize, step: usize) -> Gradients<Array> {
    let mut all = sums(world_size, step);
    if step <= 1 {
        all[ALL - 1] = None;
    }
    all
}

#[test]
fn all_ranks_have_the_bits_that_one_process_finds() {
    for world in worlds() {
        world.run(3, |group| {
            for kind in 0..2 {
                let (mut ours, mut alone) = (weights(), weights());
                let [our, single] = [&ours, &alone].map(|weights| Either::all(weights).into_iter().nth(kind));
                let (mut our, mut single) = (our.unwrap(), single.unwrap());
                let mut reducer = reducer(&group, 100, false);
                reducer.set_missing_gradients(phalanx_train::MissingGradients::Allow);
                for step in 0..5 {
                    let grads = reducer.reduce(gradients(&group, step), Share::EQUAL).unwrap();
                    our.step(&mut ours, &grads).unwrap();
                    single.step(&mut alone, &expected(3, step)).unwrap();
                    assert_eq!(ours, alone, "step {step}");
                }
                assert_ne!(ours, weights());
                verify_parameters(named(&ours), &group).unwrap();
            }
        });
    }
}

/// Trains from where the last training has ended.
fn train(group: &ProcessGroup, kind: usize, folder: &Path, steps: usize) -> Vec<Array> {
    let mut weights = weights();
    let mut optimizer = Either::all(&weights).into_iter().nth(kind).unwrap();
    let mut checkpoints = Checkpoints::open(folder, group).unwrap();
    let mut begun = 0;
    if let Some(found) = checkpoints.latest_good().unwrap() {
        weights.iter_mut().for_each(|weight| weight.multiply(0.0).unwrap());
        let names = MODEL.iter().map(|(name, ..)| *name);
        load_tensors(names.zip(&mut weights), "model", &found).unwrap();
        found.restore("optimizer", &mut optimizer).unwrap();
        begun = found.step() as usize;
    }
    for step in begun..begun + steps {
        optimizer.step(&mut weights, &expected(2, step)).unwrap();
    }
    let mut state = State::new();
    save_tensors(named(&weights), "model", &mut state);
    state.add("optimizer", &optimizer).unwrap();
    checkpoints.save((begun + steps) as u64, state).unwrap();
    weights
}

#[test]
fn a_training_that_stops_after_any_step_goes_on_to_the_last_bit() {
    for kind in 0..2 {
        let whole = tempfile::tempdir().unwrap();
        let whole = World::thread().run(1, move |group| train(&group, kind, whole.path(), 6)).remove(0);
        for stop in 1..6 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().to_owned();
            let first = path.clone();
            World::thread().run(2, move |group| train(&group, kind, &first, stop));
            for ended in World::thread().run(3, move |group| train(&group, kind, &path, 6 - stop)) {
                assert_eq!(ended, whole, "stopped after {stop}");
            }
        }
    }
}

/// Ranks have made another number of steps, with other gradients. Of the last parameter the root may remember nothing yet, where others do.
#[test]
fn ranks_that_come_later_take_what_the_root_remembers() {
    const ROOT: usize = 1;
    for world in worlds() {
        for stop in 0..4 {
            world.run(3, move |group| {
                for kind in 0..2 {
                    let mut ours = weights();
                    let mut optimizer = Either::all(&ours).into_iter().nth(kind).unwrap();
                    for step in 0..[0, stop, 3][group.rank()] {
                        optimizer.step(&mut ours, &expected(1 + group.rank(), step)).unwrap();
                    }
                    sync_model(MODEL.iter().map(|(name, ..)| *name).zip(&mut ours), &group, ROOT).unwrap();
                    optimizer.sync(&group, ROOT).unwrap();
                    for step in 0..2 {
                        optimizer.step(&mut ours, &expected(2, step)).unwrap();
                    }

                    let mut alone = weights();
                    let mut single = Either::all(&alone).into_iter().nth(kind).unwrap();
                    for step in 0..stop {
                        single.step(&mut alone, &expected(1 + ROOT, step)).unwrap();
                    }
                    for step in 0..2 {
                        single.step(&mut alone, &expected(2, step)).unwrap();
                    }
                    assert_eq!(ours, alone, "after {stop} steps of the root, {}", group.describe());
                }
            });
        }
    }
}

#[test]
fn an_optimizer_of_other_weights_is_told_on_every_rank() {
    World::thread().run(2, |group| {
        let weight = Array::from(vec![1f32; 2 + group.rank()]);
        let error = Sgd::new([("a", &weight)], SGD).sync(&group, 0).unwrap_err();
        assert!(matches!(&error, Error::ModelMismatch { name, rank: 1, .. } if name == "a"), "{error}");
    });
}

#[test]
fn gradients_that_do_not_fit_are_refused_and_nothing_is_changed() {
    let mut weights = vec![Array::from(vec![1f32; 4]), Array::from(vec![1f32; 2])];
    let before = weights.clone();
    let mut sgd = Sgd::new(["a", "b"].into_iter().zip(&weights), SGD);
    let good = || Some(Array::from(vec![1f32; 4]));
    for (grads, told) in [
        (vec![good()], "SGD was given 1 gradients for 2 weights"),
        (
            vec![good(), Some(Array::from(vec![1f64; 2]))],
            "SGD was given f64 [2] as the gradient of `b`, which is f32 [2]",
        ),
        (vec![good(), good()], "SGD was given f32 [4] as the gradient of `b`, which is f32 [2]"),
    ] {
        let error = sgd.step(&mut weights, &grads).unwrap_err().to_string();
        assert!(error.contains(told), "{error}");
        assert_eq!(weights, before);
    }
}
