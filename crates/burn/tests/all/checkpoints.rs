//! A training that is stopped and goes on ends as one that is not.

use crate::common::copy_all;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamConfig, ModuleOptimizer};
use burn::tensor::{Device, Tensor};
use phalanx::ProcessGroup;
use phalanx_burn::DistributedDataParallel;
use phalanx_burn::checkpoint::{
    Checkpoints, Error, State, load_module, load_optimizer, save_module, save_optimizer,
};
use phalanx_testkit::World;
use std::path::{Path, PathBuf};

#[derive(Module, Debug)]
struct Mlp {
    first: Linear,
    second: Linear,
}

fn device() -> Device {
    Device::default().autodiff()
}

fn model(width: usize) -> Mlp {
    let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&device());
    Mlp { first: layer(3, width), second: layer(width, 2) }
}

fn bits(model: &Mlp) -> Vec<u32> {
    let layers = [&model.first, &model.second];
    let all = layers.map(|layer| layer.weight.val().into_data().try_into_vec::<f32>().unwrap());
    all.concat().iter().map(|x| x.to_bits()).collect()
}

/// Trains up to a step, from the newest checkpoint if there is one, and saves the end.
fn train(folder: &Path, group: &ProcessGroup, until: u64) -> Vec<u32> {
    let (mut model, mut optimizer): (_, ModuleOptimizer) = (model(4), AdamConfig::new().init());
    let mut checkpoints = Checkpoints::open(folder, group).unwrap();
    let mut step = 0;
    if let Some(found) = checkpoints.latest_good().unwrap() {
        load_module(&mut model, "model", &found).unwrap();
        optimizer = load_optimizer(optimizer, "adam", &found).unwrap();
        step = found.step();
    }
    let mut ddp = DistributedDataParallel::new(&mut model, group, Default::default()).unwrap();
    while step < until {
        // All ranks have the same batch: so the gradients do not depend on how many ranks there are.
        let x = Tensor::<2>::full([2, 3], 0.5 + step as f32 / 8.0, &device());
        let out = model.second.forward(model.first.forward(x).tanh());
        let grads = ddp.backward(&model, (out - 1.0).square().mean()).unwrap();
        model = optimizer.step(0.05, model, grads);
        step += 1;
        if step == 2 || step == until {
            let mut state = State::new();
            save_module(&model, "model", &mut state).unwrap();
            save_optimizer(&optimizer, "adam", &mut state, group).unwrap();
            checkpoints.save(step, state).unwrap();
        }
    }
    bits(&model)
}

fn on(world: &World, ranks: usize, folder: &Path, until: u64) -> Vec<u32> {
    let folder: PathBuf = folder.to_owned();
    let ends = world.run(ranks, move |group| train(&folder, &group, until));
    assert!(ends.iter().all(|end| *end == ends[0]), "ranks ended with other weights");
    ends.into_iter().next().unwrap()
}

#[test]
fn a_training_goes_on_with_adam_on_other_ranks() {
    for world in [World::thread(), World::shm(), World::tcp()] {
        let folder = tempfile::tempdir().unwrap();
        let [begun, straight] = ["begun", "straight"].map(|name| folder.path().join(name));
        on(&world, 2, &begun, 2);
        copy_all(&begun, &straight);
        let expected = on(&world, 2, &straight, 6);
        for ranks in [1, 2, 4] {
            let stopped = folder.path().join(format!("on {ranks}"));
            copy_all(&begun, &stopped);
            on(&world, 4, &stopped, 4); // and stopped once more; of four equal gradients the mean is exact, of three it is not
            assert_eq!(on(&world, ranks, &stopped, 6), expected, "stopped twice, then on {ranks} ranks");
        }
    }
}

#[test]
fn another_model_is_refused_and_nothing_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints = Checkpoints::open(folder.path(), &phalanx::threads(1)[0]).unwrap();
    let mut state = State::new();
    save_module(&model(4), "model", &mut state).unwrap();
    checkpoints.save(1, state).unwrap();
    let found = checkpoints.load(1).unwrap();

    let mut wider = model(5);
    let before = bits(&wider);
    let error = load_module(&mut wider, "model", &found).unwrap_err();
    assert!(matches!(error, Error::OtherTensor { .. }), "{error}");
    assert_eq!(bits(&wider), before);
    assert!(load_module(&mut wider, "other", &found).is_err());
    assert!(load_optimizer(AdamConfig::new().init(), "adam", &found).is_err());
}
