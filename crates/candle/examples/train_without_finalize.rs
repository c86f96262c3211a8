//! Trainings that end without `finalize()`, in the way that their argument names: what the tests of endings run. Most are the
//! programs of the pages in `docs`. One that says nothing and exits with 0 has done all that it promised.
//!
//! `phalanx run -n 3 target/debug/examples/train_without_finalize ddp`

use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor};
use candle_nn::{Linear, Module, Optimizer, SGD, VarBuilder, VarMap};
use phalanx::ProcessGroup;
use phalanx_candle::{
    AdamW, DdpConfig, DiLoCo, DiLoCoConfig, DistributedDataParallel, Overlap, ShardConfig, Sharded, Stage,
    Unit, Units,
};
use phalanx_train::{Array, Parameter, Reducer, Share};

/// A way to end, by its name.
type Way = (&'static str, fn(ProcessGroup) -> Result<()>);

const WAYS: [Way; 8] = [
    ("ddp", |group| ddp(&group, DdpConfig::default())),
    ("ddp_overlapped", |group| ddp(&group, DdpConfig::default().overlap(Overlap::On))),
    ("ddp_of_a_model", ddp_of_a_model),
    ("sharded", |group| sharded(&group, Overlap::Auto)),
    ("sharded_overlapped", |group| sharded(&group, Overlap::On)),
    ("diloco", |group| diloco(&group, true)),
    ("diloco_unfinished", |group| diloco(&group, false)),
    ("reducer_overlapped", reducer),
];

fn main() -> Result<()> {
    let name = std::env::args().nth(1).unwrap_or_default();
    let (_, way) = WAYS.iter().find(|(known, _)| *known == name).context("no such way to end")?;
    way(phalanx::init()?)
}

/// The first program of `docs/reference/ddp.md`.
fn ddp(group: &ProcessGroup, config: DdpConfig) -> Result<()> {
    let varmap = VarMap::new();
    let ddp =
        DistributedDataParallel::build(&varmap, DType::F32, group, config, |vb| candle_nn::linear(4, 2, vb))?;
    let mut optimizer = SGD::new(varmap.all_vars(), 0.1)?;
    let batch = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?;
    for _ in 0..3 {
        let loss = ddp.forward(|model| model.forward(&batch)?.sqr()?.mean_all())?;
        let grads = ddp.backward(&loss)?;
        optimizer.step(&grads)?;
    }
    Ok(())
}

/// The one of `docs/reference/coming-from.md`.
fn ddp_of_a_model(group: ProcessGroup) -> Result<()> {
    let varmap = VarMap::new();
    let model = candle_nn::linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    let ddp = DistributedDataParallel::new(&varmap, &group, DdpConfig::default())?;
    let mut optimizer = SGD::new(varmap.all_vars(), 0.1)?;
    let x = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?;
    let loss = model.forward(&x)?.sqr()?.mean_all()?;
    optimizer.step(&ddp.backward(&loss)?)?;
    Ok(())
}

/// That of `docs/reference/sharding.md`.
fn sharded(group: &ProcessGroup, overlap: Overlap) -> Result<()> {
    fn model(units: &Units, vb: VarBuilder) -> candle_core::Result<Vec<Unit<Linear>>> {
        (0..4).map(|i| units.unit(vb.pp(i), |vb| candle_nn::linear(8, 8, vb))).collect()
    }
    let config = ShardConfig::default().stage(Stage::Weights).overlap(overlap);
    let zero = Sharded::build(DType::F32, group, config, model)?;
    let mut optimizer = candle_nn::AdamW::new(zero.shards(), Default::default())?;
    let batch = Tensor::ones((3, 8), DType::F32, &Device::Cpu)?;
    for _ in 0..3 {
        let loss = zero.forward(|layers| {
            layers.iter().try_fold(batch.clone(), |x, layer| layer.forward(&x)?.tanh())?.sqr()?.mean_all()
        })?;
        let grads = zero.backward(&loss)?;
        optimizer.step(&grads)?;
    }
    Ok(())
}

/// That of `docs/reference/low-communication.md`, with means that are formed while it trains. Unfinished, it ends while one is.
fn diloco(group: &ProcessGroup, finish: bool) -> Result<()> {
    let varmap = VarMap::new();
    let model = candle_nn::linear(4, 2, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    let adamw = AdamW::new(&varmap, Default::default())?;
    let mut optimizer = DiLoCo::new(adamw, &varmap, group, DiLoCoConfig::streaming(4, 2, 1))?;
    let batch = Tensor::ones((3, 4), DType::F32, &Device::Cpu)?;
    for _ in 0..16 {
        let loss = model.forward(&batch)?.sqr()?.mean_all()?;
        optimizer.step(&loss.backward()?)?;
    }
    if finish {
        optimizer.finish()?;
    }
    Ok(())
}

/// Gradients in plain memory, in several buckets that are under way at once.
fn reducer(group: ProcessGroup) -> Result<()> {
    let weights: Vec<_> = (1..9).map(|i| Array::from(vec![0f32; 1000 * i])).collect();
    let parameters: Vec<_> =
        weights.iter().enumerate().map(|(i, weight)| Parameter::of(format!("{i}"), weight)).collect();
    let mut reducer = Reducer::new(parameters, &group, 8 << 10, true)?;
    for _ in 0..3 {
        reducer.begin(Share::EQUAL, (0..8).rev())?;
        for i in (0..8).rev() {
            reducer.ready(i, Array::from(vec![1f32; 1000 * (i + 1)]))?;
        }
        let grads = reducer.finish()?;
        assert_eq!(grads[0], Some(Array::from(vec![1f32; 1000])));
    }
    Ok(())
}
