//! What data-parallel training promises besides what the suite of adapters looks at.

use phalanx::on_threads;
use phalanx_tch::checkpoint::{Checkpoints, State, Stateful, load_vars, save_vars};
use phalanx_tch::{
    AdamWParams, DdpConfig, DiLoCo, DiLoCoConfig, DistributedDataParallel, Error, MissingGradients, Overlap,
    ShardConfig, Sharded, Share, Stage, verify_parameters,
};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

fn network(store: &nn::VarStore) -> impl Module + use<> {
    let root = &store.root();
    nn::seq().add(nn::linear(root / "hidden", 3, 8, Default::default())).add_fn(Tensor::tanh).add(nn::linear(
        root / "output",
        8,
        2,
        Default::default(),
    ))
}

fn rows(rank: usize) -> Tensor {
    Tensor::from_slice2(&[[1f32, 2.0, 3.0], [0.5, -1.0, rank as f32]])
}

fn bits(store: &nn::VarStore) -> Vec<(String, Vec<u32>)> {
    let mut all: Vec<_> = store.variables().into_iter().collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    let numbers = |tensor: Tensor| Vec::<f32>::try_from(tensor.reshape(-1)).unwrap();
    all.into_iter()
        .map(|(name, tensor)| (name, numbers(tensor).into_iter().map(f32::to_bits).collect()))
        .collect()
}

#[test]
fn overlap_is_refused_and_says_why() {
    let group = &phalanx::threads(1)[0];
    let store = nn::VarStore::new(Device::Cpu);
    let _x = store.root().ones("x", &[1]);
    let config = DdpConfig::default().overlap(Overlap::On);
    let error = DistributedDataParallel::new(&store, group, config).unwrap_err().to_string();
    assert!(error.contains("tch tells nobody"), "{error}");
}

/// The rank that has no gradient gets one; one that is laid across is brought in order.
#[test]
fn gradients_become_those_of_all_ranks_wherever_they_were() {
    let found = on_threads(2, |group| {
        let store = nn::VarStore::new(Device::Cpu);
        let x = store.root().ones("x", &[2, 3]);
        let mut ddp = DistributedDataParallel::new(&store, &group, Default::default()).unwrap();
        let factors = Tensor::from_slice2(&[[1f32, 2.0], [3.0, 4.0], [5.0, 6.0]]);
        if group.rank() == 0 {
            (x.tr() * factors).sum(Kind::Float).backward();
        }
        ddp.sync_gradients(Share::EQUAL).unwrap();
        Ok(Vec::<f32>::try_from(x.grad().reshape(-1)).unwrap())
    })
    .unwrap();
    assert_eq!(found, [[0.5, 1.5, 2.5, 1.0, 2.0, 3.0], [0.5, 1.5, 2.5, 1.0, 2.0, 3.0]]);
}

#[test]
fn a_frozen_variable_is_not_missed_and_may_be_trained_later() {
    on_threads(2, |group| {
        let mut store = nn::VarStore::new(Device::Cpu);
        let x = store.root().ones("x", &[1]);
        store.freeze();
        let y = store.root().ones("y", &[1]);
        let config = DdpConfig::default().missing_gradients(MissingGradients::Error);
        let mut ddp = DistributedDataParallel::new(&store, &group, config).unwrap();
        ddp.backward(&(&x * &y).sum(Kind::Float)).unwrap();
        assert!(!x.grad().defined());
        store.unfreeze();
        ddp.backward(&(&x * group.rank() as f64).sum(Kind::Float)).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(f64::try_from(x.grad()).unwrap(), 0.5);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_step_that_fails_leaves_no_gradients() {
    on_threads(2, |group| {
        let store = nn::VarStore::new(Device::Cpu);
        let (x, y) = (store.root().ones("x", &[1]), store.root().ones("y", &[1]));
        let config = DdpConfig::default().missing_gradients(MissingGradients::Error);
        let mut ddp = DistributedDataParallel::new(&store, &group, config).unwrap();
        let error = ddp.backward(&x.sum(Kind::Float)).unwrap_err();
        assert!(matches!(error, Error::NoGradient { names, .. } if names == ["y"]));
        assert!(!x.grad().defined());
        ddp.backward(&(x.shallow_clone() * &y).sum(Kind::Float)).unwrap();
        assert_eq!(f64::try_from(x.grad()).unwrap(), 1.0);
        Ok(())
    })
    .unwrap();
}

/// ZeRO in both its stages comes to what data-parallel training and the optimizer of the same name come to, but for rounding.
#[test]
fn zero_is_data_parallel_training() {
    for stage in [Stage::Optimizer, Stage::Gradients] {
        on_threads(3, move |group| {
            let plain = nn::VarStore::new(Device::Cpu);
            let mut dealt = nn::VarStore::new(Device::Cpu);
            let models = [&plain, &dealt].map(network);
            let mut ddp = DistributedDataParallel::new(&plain, &group, Default::default()).unwrap();
            let mut sgd = nn::sgd(0.9, 0.0, 0.01, false).build(&plain, 0.1).unwrap();
            dealt.copy(&plain).unwrap();
            let mut zero = Sharded::new(&dealt, &group, ShardConfig::default().stage(stage)).unwrap();
            let params =
                phalanx_tch::SgdParams { lr: 0.1, momentum: 0.9, weight_decay: 0.01, ..Default::default() };
            let mut own = zero.sgd(params);
            for _ in 0..10 {
                let x = rows(group.rank());
                sgd.zero_grad();
                ddp.backward(&models[0].forward(&x).square().mean(Kind::Float)).unwrap();
                sgd.step();
                let grads = zero.backward(&models[1].forward(&x).square().mean(Kind::Float)).unwrap();
                own.step(&mut zero, &grads).unwrap();
                zero.gather().unwrap();
            }
            let (one, other) = (plain.variables(), dealt.variables());
            for (name, weight) in one {
                let off = f64::try_from((weight - &other[&name]).abs().max()).unwrap();
                assert!(off < 1e-6, "{name} is {off} away with {stage:?}");
            }
            verify_parameters(&dealt, &group).unwrap();
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn a_store_without_weights_can_not_be_dealt_out() {
    let group = &phalanx::threads(1)[0];
    let error =
        Sharded::new(&nn::VarStore::new(Device::Cpu), group, Default::default()).unwrap_err().to_string();
    assert!(error.contains("no variables that need gradients"), "{error}");
}

/// A training that is dealt out over two ranks goes on on three, and on one, where it was.
#[test]
fn a_checkpoint_is_loaded_on_another_number_of_ranks() {
    let temporary = tempfile::tempdir().unwrap();
    let mut ends = Vec::new();
    for ranks in [2, 3, 1] {
        let folder = temporary.path().to_path_buf();
        let ends_of_all = on_threads(ranks, move |group| {
            let store = nn::VarStore::new(Device::Cpu);
            let model = network(&store);
            let mut checkpoints = Checkpoints::open(folder.clone(), &group).unwrap();
            let found = checkpoints.latest_good().unwrap();
            if let Some(found) = &found {
                load_vars(&store, "model", found).unwrap();
            }
            let begun = bits(&store);
            let mut zero = Sharded::new(&store, &group, Default::default()).unwrap();
            let mut adamw = zero.adamw(AdamWParams { lr: 0.01, ..Default::default() }).unwrap();
            if let Some(found) = &found {
                adamw.load("optimizer", found).unwrap();
            }
            for _ in 0..5 {
                let grads = zero.backward(&model.forward(&rows(0)).square().mean(Kind::Float)).unwrap();
                adamw.step(&mut zero, &grads).unwrap();
                zero.gather().unwrap();
            }
            let mut state = State::new();
            save_vars(&store, "model", &mut state).unwrap();
            state.add("optimizer", &adamw).unwrap();
            checkpoints.save(found.map_or(0, |found| found.step()) + 5, state).unwrap();
            Ok((begun, bits(&store)))
        })
        .unwrap();
        assert!(ends_of_all.iter().all(|end| end.1 == ends_of_all[0].1));
        ends.push(ends_of_all.into_iter().next().unwrap());
    }
    assert_eq!(ends[0].1, ends[1].0);
    assert_eq!(ends[1].1, ends[2].0);
    assert_ne!(ends[1].1, ends[2].1);
}

#[test]
fn diloco_meets_now_and_then() {
    on_threads(2, |group| {
        let store = nn::VarStore::new(Device::Cpu);
        let model = network(&store);
        let mut diloco = DiLoCo::new(&store, &group, DiLoCoConfig::local_sgd(5)).unwrap();
        let mut sgd = nn::Sgd::default().build(&store, 0.1).unwrap();
        for step in 1..=12 {
            sgd.backward_step(&model.forward(&rows(group.rank())).square().mean(Kind::Float));
            diloco.step().unwrap();
            assert_eq!(verify_parameters(&store, &group).is_ok(), step % 5 == 0, "step {step}");
        }
        diloco.finish().unwrap();
        verify_parameters(&store, &group).unwrap();
        Ok(())
    })
    .unwrap();
}
