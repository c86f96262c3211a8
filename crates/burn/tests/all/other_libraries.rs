//! Checkpoints that another library's ranks have saved, and that another library's ranks load.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{LayerNorm, LayerNormConfig};
use burn::tensor::{Device, Tensor};
use candle_core::DType;
use candle_nn::{VarBuilder, VarMap};
use phalanx_burn::checkpoint::{Checkpoints, State, load_module, save_module};
use std::collections::BTreeMap;

/// What candle and burn call the same tensors, which have the same dimensions in both.
const NAMES: [(&str, &str); 4] = [
    ("model.near.weight", "net.near.weight"),
    ("model.near.bias", "net.near.bias"),
    ("model.norm.weight", "net.norm.gamma"),
    ("model.norm.bias", "net.norm.beta"),
];

#[derive(Module, Debug)]
struct Net {
    near: Conv2d,
    norm: LayerNorm,
}

fn of_burn() -> Net {
    let device = Device::default();
    Net { near: Conv2dConfig::new([2, 3], [3, 3]).init(&device), norm: LayerNormConfig::new(5).init(&device) }
}

fn of_candle() -> VarMap {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &candle_core::Device::Cpu);
    candle_nn::conv2d(2, 3, 3, Default::default(), vb.pp("near")).unwrap();
    candle_nn::layer_norm(5, candle_nn::LayerNormConfig::default(), vb.pp("norm")).unwrap();
    for var in varmap.all_vars() {
        var.set(&var.rand_like(-1.0, 1.0).unwrap()).unwrap();
    }
    varmap
}

type Bits = BTreeMap<&'static str, Vec<u32>>;

/// By the names that candle has.
fn candles(varmap: &VarMap) -> Bits {
    let variables = varmap.data().lock().unwrap();
    let one = |(candles, _): (&'static str, _)| {
        let name = candles.strip_prefix("model.").unwrap();
        let values = variables[name].flatten_all().unwrap().to_vec1::<f32>().unwrap();
        (candles, values.into_iter().map(f32::to_bits).collect())
    };
    NAMES.into_iter().map(one).collect()
}

/// By the names that candle has, in the order of burn's module.
fn burns(net: &Net) -> Bits {
    struct Read(Vec<Vec<u32>>);
    impl ModuleVisitor for Read {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let values = param.val().into_data().try_into_vec::<f32>().unwrap();
            self.0.push(values.into_iter().map(f32::to_bits).collect());
        }
    }
    let mut read = Read(Vec::new());
    net.visit(&mut read);
    NAMES.into_iter().map(|(candles, _)| candles).zip(read.0).collect()
}

#[test]
fn what_candles_ranks_have_saved_is_loaded_bit_by_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_path_buf();
    let saved = phalanx::on_threads(2, move |group| {
        let varmap = of_candle();
        phalanx_candle::sync_model(&varmap, &group, 0).unwrap();
        let mut state = State::new();
        phalanx_candle::checkpoint::save_vars(&varmap, "model", &mut state).unwrap();
        Checkpoints::open(path.clone(), &group).unwrap().save(1, state).unwrap();
        Ok(candles(&varmap))
    })
    .unwrap();

    let path = folder.path().to_path_buf();
    let loaded = phalanx::on_threads(3, move |group| {
        let found = Checkpoints::open(path.clone(), &group).unwrap().load(1).unwrap();
        let mut net = of_burn();
        load_module(&mut net, "net", &found.renamed(NAMES).unwrap()).unwrap();
        Ok(burns(&net))
    })
    .unwrap();
    assert!(loaded.iter().all(|loaded| *loaded == saved[0]));
}

#[test]
fn candles_ranks_load_what_burns_have_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_path_buf();
    let saved = phalanx::on_threads(2, move |group| {
        let mut net = of_burn();
        phalanx_burn::sync_model(&mut net, &group, 0).unwrap();
        let mut state = State::new();
        save_module(&net, "net", &mut state).unwrap();
        Checkpoints::open(path.clone(), &group).unwrap().save(1, state).unwrap();
        Ok(burns(&net))
    })
    .unwrap();

    let path = folder.path().to_path_buf();
    let loaded = phalanx::on_threads(3, move |group| {
        let found = Checkpoints::open(path.clone(), &group).unwrap().load(1).unwrap();
        let varmap = of_candle();
        let names = NAMES.map(|(candles, burns)| (burns, candles));
        let found = found.renamed(names).unwrap();
        phalanx_candle::checkpoint::load_vars(&varmap, "model", &found).unwrap();
        Ok(candles(&varmap))
    })
    .unwrap();
    assert!(loaded.iter().all(|loaded| *loaded == saved[0]));
}
