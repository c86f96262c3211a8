//! The losses of a training whose weights, data and batches stand in a safetensors file: for `scripts/beside-pytorch`, which trains the same
//! with PyTorch.
//!
//! `losses FILE MODEL RANKS after|during`: `MODEL` is `mlp` or `cnn`; gradients are sent after the backward pass, or during it. Prints
//! a line a step.

#![allow(clippy::print_stdout, reason = "a program talks to its user")]

use anyhow::Context;
use candle_core::{D, DType, Device, Result};
use candle_nn::{Activation, Conv2dConfig, Module, Optimizer, SGD, Sequential, VarBuilder, VarMap};
use phalanx::config::Source;
use phalanx::launch::{Launch, Outcome};
use phalanx::{Config, ReduceOp, chunk};
use phalanx_candle::{DdpConfig, DistributedDataParallel, Overlap};
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, model, ranks, mode] = &args[..] else {
        anyhow::bail!("usage: losses FILE mlp|cnn RANKS after|during");
    };
    if Config::from_env()?.source != Source::Alone {
        train(file, model, mode)?;
        return Ok(ExitCode::SUCCESS);
    }
    let launch = Launch::new(std::env::current_exe()?).args(&args).ranks(ranks.parse()?);
    let outcome = launch.env("RAYON_NUM_THREADS", "1").run()?;
    if let Outcome::Failure(failure) = &outcome {
        println!("{failure}");
    }
    Ok(ExitCode::from(u8::try_from(outcome.exit_code()).unwrap_or(1)))
}

fn mlp(vb: VarBuilder<'_>) -> Result<Sequential> {
    Ok(candle_nn::seq()
        .add(candle_nn::linear(64, 128, vb.pp(0))?)
        .add(Activation::Relu)
        .add(candle_nn::linear(128, 128, vb.pp(2))?)
        .add(Activation::Relu)
        .add(candle_nn::linear(128, 10, vb.pp(4))?))
}

/// With mean pooling: candle's backward pass of the maximum gives a quarter of the gradient for windows of four.
fn cnn(vb: VarBuilder<'_>) -> Result<Sequential> {
    let same_size = Conv2dConfig { padding: 1, ..Default::default() };
    Ok(candle_nn::seq()
        .add_fn(|x| x.reshape(((), 1, 8, 8)))
        .add(candle_nn::conv2d(1, 8, 3, same_size, vb.pp(1))?)
        .add(Activation::Relu)
        .add_fn(|x| x.avg_pool2d(2))
        .add(candle_nn::conv2d(8, 16, 3, same_size, vb.pp(4))?)
        .add(Activation::Relu)
        .add_fn(|x| x.flatten_from(1))
        .add(candle_nn::linear(16 * 4 * 4, 10, vb.pp(7))?))
}

fn train(file: &str, model: &str, mode: &str) -> anyhow::Result<()> {
    let group = phalanx::init()?;
    let tensors = candle_core::safetensors::load(file, &Device::Cpu)?;
    let tensor = |name: &str| tensors.get(name).with_context(|| format!("{file} has no {name}"));
    let (x, y) = (tensor("x")?, tensor("y")?.to_dtype(DType::U32)?);

    let varmap = VarMap::new();
    let overlap = if mode == "during" { Overlap::On } else { Overlap::Off };
    // Small, so that there are several.
    let config = DdpConfig::default().overlap(overlap).bucket_cap_bytes(16 << 10);
    let build = if model == "cnn" { cnn } else { mlp };
    let ddp = DistributedDataParallel::build(&varmap, DType::F32, &group, config, build)?;
    for (name, var) in varmap.data().lock().expect("nobody panicked").iter() {
        var.set(tensor(&format!("{model}.{name}"))?)?;
    }

    let mut optimizer = SGD::new(varmap.all_vars(), 0.3)?;
    let mine = chunk(group.rank(), group.world_size(), x.dim(1)?);
    for step in 0..x.dim(0)? {
        let x = x.get(step)?.narrow(0, mine.start, mine.len())?.contiguous()?;
        let y = y.get(step)?.narrow(D::Minus1, mine.start, mine.len())?.contiguous()?;
        let loss = ddp.forward(|model| candle_nn::loss::cross_entropy(&model.forward(&x)?, &y))?;
        optimizer.step(&ddp.backward(&loss)?)?;
        let mut of_all = [f64::from(loss.to_scalar::<f32>()?)];
        group.all_reduce(&mut of_all, ReduceOp::Avg)?;
        if group.rank() == 0 {
            println!("{}", of_all[0]);
        }
    }
    Ok(group.finalize()?)
}
