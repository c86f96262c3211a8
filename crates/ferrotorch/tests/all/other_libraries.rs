//! Checkpoints that another library's ranks have saved, and that another library's ranks load.

use candle_core::{DType, Device};
use candle_nn::{VarBuilder, VarMap};
use ferrotorch_nn::{Linear, Module, Sequential, Tanh};
use phalanx_ferrotorch::checkpoint::{Checkpoints, State, load_module, save_module};
use std::collections::BTreeMap;

/// What candle and ferrotorch call the same tensors.
const NAMES: [(&str, &str); 4] = [
    ("model.hidden.weight", "net.0.weight"),
    ("model.hidden.bias", "net.0.bias"),
    ("model.output.weight", "net.2.weight"),
    ("model.output.bias", "net.2.bias"),
];

fn of_ferrotorch() -> Sequential<f32> {
    Sequential::new(vec![
        Box::new(Linear::<f32>::new(3, 4, true).unwrap()),
        Box::new(Tanh::new()),
        Box::new(Linear::<f32>::new(4, 2, true).unwrap()),
    ])
}

fn of_candle() -> VarMap {
    let varmap = VarMap::new();
    let vb = VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu);
    candle_nn::linear(3, 4, vb.pp("hidden")).unwrap();
    candle_nn::linear(4, 2, vb.pp("output")).unwrap();
    varmap
}

type Bits = BTreeMap<String, Vec<u32>>;

/// By the names that candle has.
fn candles(varmap: &VarMap) -> Bits {
    let variables = varmap.data().lock().unwrap();
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
    let one = |(name, var): (&String, &candle_core::Var)| {
        (format!("model.{name}"), bits(var.flatten_all().unwrap().to_vec1().unwrap()))
    };
    variables.iter().map(one).collect()
}

/// By the names that candle has.
fn ferrotorchs(net: &Sequential<f32>) -> Bits {
    let table = BTreeMap::from(NAMES.map(|(candles, own)| (own, candles)));
    let named = net.named_parameters().into_iter();
    named
        .map(|(name, parameter)| {
            let values = parameter.data_vec().unwrap();
            let name = table[&*format!("net.{name}")].to_owned();
            (name, values.into_iter().map(f32::to_bits).collect())
        })
        .collect()
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
        let mut net = of_ferrotorch();
        load_module(&mut net, "net", &found.renamed(NAMES).unwrap()).unwrap();
        Ok(ferrotorchs(&net))
    })
    .unwrap();
    assert!(loaded.iter().all(|loaded| *loaded == saved[0]));
}

#[test]
fn candles_ranks_load_what_ferrotorchs_have_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_path_buf();
    let saved = phalanx::on_threads(2, move |group| {
        let net = of_ferrotorch();
        let backend = std::sync::Arc::new(phalanx_ferrotorch::Group::from(group.clone()));
        let mut ddp = phalanx_ferrotorch::DDP::new(net, backend);
        ddp.broadcast_parameters(0).unwrap();
        let mut state = State::new();
        save_module(ddp.module(), "net", &mut state).unwrap();
        Checkpoints::open(path.clone(), &group).unwrap().save(1, state).unwrap();
        Ok(ferrotorchs(ddp.module()))
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
