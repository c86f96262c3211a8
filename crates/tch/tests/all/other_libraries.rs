//! Checkpoints that another library's ranks have saved, and that another library's ranks load.

use candle_core::DType;
use candle_nn::{VarBuilder, VarMap};
use phalanx_tch::checkpoint::{Checkpoints, State, load_vars, save_vars};
use std::collections::BTreeMap;
use tch::nn::{self, VarStore};

/// What candle and tch call the same tensors.
const NAMES: [(&str, &str); 4] = [
    ("model.near.weight", "net.conv.weight"),
    ("model.near.bias", "net.conv.bias"),
    ("model.classes.weight", "net.linear.weight"),
    ("model.classes.bias", "net.linear.bias"),
];

fn of_tch() -> VarStore {
    let store = VarStore::new(tch::Device::Cpu);
    nn::conv2d(store.root() / "conv", 2, 3, 3, Default::default());
    nn::linear(store.root() / "linear", 4, 2, Default::default());
    store
}

fn of_candle() -> VarMap {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &candle_core::Device::Cpu);
    candle_nn::conv2d(2, 3, 3, Default::default(), vb.pp("near")).unwrap();
    candle_nn::linear(4, 2, vb.pp("classes")).unwrap();
    varmap
}

type Bits = BTreeMap<String, Vec<u32>>;

fn bits(values: Vec<f32>) -> Vec<u32> {
    values.into_iter().map(f32::to_bits).collect()
}

/// By the names that candle has.
fn candles(varmap: &VarMap) -> Bits {
    let variables = varmap.data().lock().unwrap();
    let one = |(name, var): (&String, &candle_core::Var)| {
        (format!("model.{name}"), bits(var.flatten_all().unwrap().to_vec1().unwrap()))
    };
    variables.iter().map(one).collect()
}

/// By the names that candle has.
fn tchs(store: &VarStore) -> Bits {
    let table = BTreeMap::from(NAMES.map(|(candles, own)| (own, candles)));
    let one = |(name, var): (String, tch::Tensor)| {
        (table[&*format!("net.{name}")].to_owned(), bits(Vec::try_from(var.reshape(-1)).unwrap()))
    };
    store.variables().into_iter().map(one).collect()
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
        let store = of_tch();
        load_vars(&store, "net", &found.renamed(NAMES).unwrap()).unwrap();
        Ok(tchs(&store))
    })
    .unwrap();
    assert!(loaded.iter().all(|loaded| *loaded == saved[0]));
}

#[test]
fn candles_ranks_load_what_tchs_have_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_path_buf();
    let saved = phalanx::on_threads(2, move |group| {
        let store = of_tch();
        phalanx_tch::sync_model(&store, &group, 0).unwrap();
        let mut state = State::new();
        save_vars(&store, "net", &mut state).unwrap();
        Checkpoints::open(path.clone(), &group).unwrap().save(1, state).unwrap();
        Ok(tchs(&store))
    })
    .unwrap();

    let path = folder.path().to_path_buf();
    let loaded = phalanx::on_threads(3, move |group| {
        let found = Checkpoints::open(path.clone(), &group).unwrap().load(1).unwrap();
        let varmap = of_candle();
        let found = found.renamed(NAMES.map(|(candles, own)| (own, candles))).unwrap();
        phalanx_candle::checkpoint::load_vars(&varmap, "model", &found).unwrap();
        Ok(candles(&varmap))
    })
    .unwrap();
    assert!(loaded.iter().all(|loaded| *loaded == saved[0]));
}
