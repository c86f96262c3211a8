//! The losses of a training whose weights, data and batches stand in a safetensors file: for `scripts/beside-pytorch`, which trains the same
//! with PyTorch.
//!
//! `losses FILE MODEL RANKS after|during [candle|layers]`: `MODEL` is `mlp` or `cnn`; gradients are sent after the backward pass, or during it; the layers
//! are candle's, or those of `phalanx_candle::layers`. Prints a line a step.

#![allow(clippy::print_stdout, reason = "a program talks to its user")]

use anyhow::Context;
use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{Conv2dConfig, Module, Optimizer, SGD, Sequential, VarBuilder, VarMap};
use phalanx::config::Source;
use phalanx::launch::{Launch, Outcome};
use phalanx::{Config, ReduceOp, chunk};
use phalanx_candle::{DdpConfig, DistributedDataParallel, Overlap, layers};
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (first, whose) = match &args[..] {
        [first @ .., whose] if first.len() == 4 => (first, &whose[..]),
        first => (first, "candle"),
    };
    let [file, model, ranks, mode] = first else {
        anyhow::bail!("usage: losses FILE mlp|cnn RANKS after|during [candle|layers]");
    };
    if Config::from_env()?.source != Source::Alone {
        train(file, model, mode, whose)?;
        return Ok(ExitCode::SUCCESS);
    }
    let launch = Launch::new(std::env::current_exe()?).args(&args).ranks(ranks.parse()?);
    let outcome = launch.env("RAYON_NUM_THREADS", "1").run()?;
    if let Outcome::Failure(failure) = &outcome {
        println!("{failure}");
    }
    Ok(ExitCode::from(u8::try_from(outcome.exit_code()).unwrap_or(1)))
}

type Layer = Box<dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync>;

fn boxed(layer: impl Module + Send + Sync + 'static) -> Layer {
    Box::new(move |x| layer.forward(x))
}

fn linear(whose: &str, from: usize, to: usize, vb: VarBuilder<'_>) -> Result<Layer> {
    Ok(match whose {
        "layers" => boxed(layers::linear(from, to, vb)?),
        _ => boxed(candle_nn::linear(from, to, vb)?),
    })
}

fn conv(whose: &str, from: usize, to: usize, vb: VarBuilder<'_>) -> Result<Layer> {
    let same_size = Conv2dConfig { padding: 1, ..Default::default() };
    Ok(match whose {
        "layers" => boxed(layers::conv2d(from, to, 3, same_size, vb)?),
        _ => boxed(candle_nn::conv2d(from, to, 3, same_size, vb)?),
    })
}

fn relu(whose: &str) -> fn(&Tensor) -> Result<Tensor> {
    if whose == "layers" { layers::relu } else { Tensor::relu }
}

fn mlp(whose: &str, vb: VarBuilder<'_>) -> Result<Sequential> {
    Ok(candle_nn::seq()
        .add(linear(whose, 64, 128, vb.pp(0))?)
        .add_fn(relu(whose))
        .add(linear(whose, 128, 128, vb.pp(2))?)
        .add_fn(relu(whose))
        .add(linear(whose, 128, 10, vb.pp(4))?))
}

/// With mean pooling: candle's backward pass of the maximum gives a quarter of the gradient for windows of four.
fn cnn(whose: &str, vb: VarBuilder<'_>) -> Result<Sequential> {
    Ok(candle_nn::seq()
        .add_fn(|x| x.reshape(((), 1, 8, 8)))
        .add(conv(whose, 1, 8, vb.pp(1))?)
        .add_fn(relu(whose))
        .add_fn(|x| x.avg_pool2d(2))
        .add(conv(whose, 8, 16, vb.pp(4))?)
        .add_fn(relu(whose))
        .add_fn(|x| x.flatten_from(1))
        .add(linear(whose, 16 * 4 * 4, 10, vb.pp(7))?))
}

fn train(file: &str, model: &str, mode: &str, whose: &str) -> anyhow::Result<()> {
    let group = phalanx::init()?;
    let tensors = candle_core::safetensors::load(file, &Device::Cpu)?;
    let tensor = |name: &str| tensors.get(name).with_context(|| format!("{file} has no {name}"));
    let (x, y) = (tensor("x")?, tensor("y")?.to_dtype(DType::U32)?);

    let varmap = VarMap::new();
    let overlap = if mode == "during" { Overlap::On } else { Overlap::Off };
    // Small, so that there are several.
    let config = DdpConfig::default().overlap(overlap).bucket_cap_bytes(16 << 10);
    let build = if model == "cnn" { cnn } else { mlp };
    let ddp = DistributedDataParallel::build(&varmap, DType::F32, &group, config, |vb| build(whose, vb))?;
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
