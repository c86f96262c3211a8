//! A training that is stopped and goes on from its checkpoint, on as many ranks as there are then, is the one that was never stopped.

use crate::common::{everywhere, worlds};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{Module, ModuleT, VarBuilder, VarMap};
use phalanx::ProcessGroup;
use phalanx_candle::checkpoint::{Checkpoints, Error, State, load_vars, save_vars};
use phalanx_candle::{AdamW, DistributedDataParallel, DistributedSampler, Tail};
use std::path::Path;
use std::sync::Arc;

const EPOCHS: u64 = 3;

/// The weights of a small network, the same from run to run.
fn vars() -> VarMap {
    let varmap = VarMap::new();
    for (name, shape) in [("in.weight", vec![7, 3]), ("in.bias", vec![7]), ("out.weight", vec![1, 7])] {
        let count: usize = shape.iter().product();
        let wave = Tensor::arange(1.0f64, count as f64 + 1.0, &Device::Cpu).unwrap().sin().unwrap();
        let var = Var::from_tensor(&wave.reshape(shape).unwrap()).unwrap();
        varmap.data().lock().unwrap().insert(name.to_owned(), var);
    }
    varmap
}

fn loss(varmap: &VarMap, indices: &[usize]) -> Tensor {
    let var = |name: &str| varmap.data().lock().unwrap()[name].as_tensor().clone();
    let hidden = candle_nn::Linear::new(var("in.weight"), Some(var("in.bias")));
    let out = candle_nn::Linear::new(var("out.weight"), None);
    let x: Vec<f64> =
        indices.iter().flat_map(|&i| [i as f64 / 50.0, (i % 7) as f64, (i % 3) as f64]).collect();
    let x = Tensor::from_vec(x, (indices.len(), 3), &Device::Cpu).unwrap();
    let y = x.sum_keepdim(1).unwrap().tanh().unwrap();
    let found = out.forward(&hidden.forward(&x).unwrap().tanh().unwrap()).unwrap();
    candle_nn::loss::mse(&found, &y).unwrap()
}

/// Trains until the end or for `steps` steps, from the last checkpoint in `folder`, and saves each step. Returns the weights, and the
/// step that was reached.
fn train(group: &ProcessGroup, folder: &Path, steps: u64) -> (Vec<f64>, u64) {
    let varmap = vars();
    let mut optimizer = AdamW::new(&varmap, Default::default()).unwrap();
    let sampler = DistributedSampler::new(50, 12, group.rank(), group.world_size()).unwrap();
    let sampler = sampler.seed(9).tail(Tail::Uneven);
    let (mut step, mut place) = (0, sampler.start());
    let mut checkpoints = Checkpoints::open(folder, group).unwrap().keep(2);
    if let Some(found) = checkpoints.latest_good().unwrap() {
        load_vars(&varmap, "model", &found).unwrap();
        found.restore("optimizer", &mut optimizer).unwrap();
        (step, place) = (found.step(), found.value("sampler").unwrap());
    }
    let ddp = DistributedDataParallel::new(&varmap, group, Default::default()).unwrap();
    let until = step + steps;
    while place.epoch < EPOCHS && step < until {
        let mut batches = sampler.resume(&place).unwrap();
        while step < until {
            let Some(batch) = batches.next() else { break };
            let grads = ddp.backward_share(&loss(&varmap, &batch.indices), batch.share()).unwrap();
            optimizer.step(&grads).unwrap();
            step += 1;
            let mut state = State::new();
            save_vars(&varmap, "model", &mut state).unwrap();
            state.add("optimizer", &optimizer).unwrap();
            state.value("sampler", &batches.state()).unwrap();
            checkpoints.save_async(step, state).unwrap();
        }
        place = batches.state();
    }
    checkpoints.wait().unwrap();
    let mut weights = Vec::new();
    for name in ["in.weight", "in.bias", "out.weight"] {
        let var = varmap.data().lock().unwrap()[name].flatten_all().unwrap();
        weights.extend(var.to_vec1::<f64>().unwrap());
    }
    (weights, step)
}

#[test]
fn a_training_that_is_stopped_ends_with_the_weights_of_one_that_is_not() {
    for world in worlds() {
        // Ends with what rank 0 has.
        let trained = |ranks: usize, folder: &Path, steps: u64| {
            let folder = folder.to_owned();
            world.run(ranks, move |group| train(&group, &folder, steps)).swap_remove(0)
        };
        let plain = tempfile::tempdir().unwrap();
        let expected = trained(2, plain.path(), u64::MAX);
        assert_eq!(expected.1, EPOCHS * 5);
        for stops in [[(2, 1), (2, 6), (2, 5), (2, 9)], [(1, 3), (4, 4), (3, 2), (2, 9)]] {
            let folder = tempfile::tempdir().unwrap();
            let mut last = (Vec::new(), 0);
            for &(ranks, steps) in &stops {
                last = trained(ranks, folder.path(), steps);
            }
            let (found, steps) = last;
            assert_eq!(steps, expected.1);
            if stops.iter().all(|&(ranks, _)| ranks == 2) {
                assert_eq!(found, expected.0, "to the last bit");
            }
            // Other numbers of ranks add up in another order.
            let apart = found.iter().zip(&expected.0).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(apart < 1e-12, "{apart}");
        }
    }
}

#[test]
fn running_statistics_are_those_of_one_rank() {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    everywhere(3, move |group| {
        let normalised = || {
            let varmap = VarMap::new();
            let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
            (candle_nn::batch_norm(5, 1e-5, vb).unwrap(), varmap)
        };
        let (norm, varmap) = normalised();
        let own = Tensor::full(1.0 + group.rank() as f32, (4, 5), &Device::Cpu).unwrap();
        norm.forward_t(&own, true).unwrap();
        let mut checkpoints = Checkpoints::open(folder.path(), &group).unwrap();
        let mut state = State::new();
        save_vars(&varmap, "m", &mut state).unwrap();
        checkpoints.save(1, state).unwrap();
        let found = checkpoints.latest_good().unwrap().unwrap();
        let (loaded, varmap) = normalised();
        load_vars(&varmap, "m", &found).unwrap();
        assert_eq!(loaded.running_mean().to_vec1::<f32>().unwrap(), [0.1; 5], "a tenth of rank 0's batch");
    });
}

#[test]
fn a_model_of_another_kind_is_refused_and_stays_as_it_is() {
    let model = |shape: &[usize], dtype: DType, more: bool| {
        let varmap = VarMap::new();
        let mut data = varmap.data().lock().unwrap();
        for (name, shape) in
            [("a", &[2][..]), ("b", shape)].into_iter().chain(more.then_some(("c", &[1][..])))
        {
            data.insert(name.into(), Var::ones(shape, dtype, &Device::Cpu).unwrap());
        }
        drop(data);
        varmap
    };
    let folder = Arc::new(tempfile::tempdir().unwrap());
    everywhere(2, move |group| {
        let mut checkpoints = Checkpoints::open(folder.path(), &group).unwrap();
        let saved = model(&[3, 5], DType::BF16, false);
        for parameter in saved.all_vars() {
            parameter.set(&parameter.affine(3.0, 0.0).unwrap()).unwrap();
        }
        let mut state = State::new();
        save_vars(&saved, "m", &mut state).unwrap();
        checkpoints.save(1, state).unwrap();
        let found = checkpoints.latest_good().unwrap().unwrap();
        for (other, complaint) in [
            (
                model(&[5, 3], DType::BF16, false),
                "tensor `m.b` is bf16 [3, 5] in the checkpoint, and was expected to be bf16 [5, 3]",
            ),
            (
                model(&[3, 5], DType::F32, false),
                "tensor `m.a` is bf16 [2] in the checkpoint, and was expected to be f32 [2]",
            ),
            (model(&[3, 5], DType::BF16, true), "tensor `m.c` is not in checkpoint"),
        ] {
            let error = load_vars(&other, "m", &found).unwrap_err();
            assert!(matches!(error, Error::OtherTensor { .. } | Error::Missing { .. }));
            assert!(error.to_string().starts_with(complaint), "{error}");
            for var in other.all_vars() {
                let sum = var.to_dtype(DType::F32).unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
                assert_eq!(sum, var.elem_count() as f32, "unchanged");
            }
        }
        let same = model(&[3, 5], DType::BF16, false);
        load_vars(&same, "m", &found).unwrap();
        for var in same.all_vars() {
            let sum = var.to_dtype(DType::F32).unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
            assert_eq!(sum, 3.0 * var.elem_count() as f32);
        }
    });
}
