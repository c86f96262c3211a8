//! What communication adds to a training step: two ranks, as processes, one thread each, that share memory.
//!
//! `cargo bench -p phalanx-candle --bench step`, with `-- mlp` or `-- cnn` for one model only. Steps without communication and
//! steps with [`DistributedDataParallel`] take turns in the same processes, a few of each at a time. A step is what the
//! slower rank needs for it.

#![allow(clippy::print_stdout, reason = "a benchmark reports to its user")]

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Activation, Conv2dConfig, Module, Optimizer, SGD, Sequential, VarBuilder, VarMap};
use phalanx::launch::{Launch, Outcome};
use phalanx::{Config, ProcessGroup, ReduceOp, Source};
use phalanx_candle::{DdpConfig, DistributedDataParallel};
use std::process::ExitCode;
use std::time::Instant;

/// Turns of each kind; one more goes before, to warm up.
const ROUNDS: usize = 12;

fn main() -> anyhow::Result<ExitCode> {
    let config = Config::from_env()?;
    if config.source != Source::Alone {
        let group = phalanx::init()?;
        let models: [(&str, usize, Build, &[usize]); 2] =
            [("mlp", 5, mlp, &[64, 784]), ("cnn", 2, cnn, &[32, 3, 32, 32])];
        for (name, steps, build, shape) in models {
            // Cargo adds an argument of its own, `--bench`.
            if std::env::args().skip(1).all(|arg| arg == name || arg.starts_with("--")) {
                compare(&group, name, steps, build, shape)?;
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    println!("model  parameters  batch  step   median ms    min ms  overhead");
    // One thread a rank: with two ranks on two cores more would only be in each other's way.
    let launch = Launch::new(std::env::current_exe()?).args(std::env::args_os().skip(1)).ranks(2);
    let outcome = launch.env("RAYON_NUM_THREADS", "1").run()?;
    if let Outcome::Failure(failure) = &outcome {
        println!("{failure}");
    }
    Ok(ExitCode::from(u8::try_from(outcome.exit_code()).unwrap_or(1)))
}

/// How a model is made.
type Build = fn(VarBuilder<'_>) -> Result<Sequential>;

/// 5.15 million weights, nearly all in two matrices.
fn mlp(vb: VarBuilder<'_>) -> Result<Sequential> {
    let mut layers = candle_nn::seq();
    for (i, (from, to)) in [(784, 1536), (1536, 1536), (1536, 1024)].into_iter().enumerate() {
        layers = layers.add(candle_nn::linear(from, to, vb.pp(i))?).add(Activation::Relu);
    }
    Ok(layers.add(candle_nn::linear(1024, 10, vb.pp("classes"))?))
}

/// 1.14 million weights, and much to compute with each.
fn cnn(vb: VarBuilder<'_>) -> Result<Sequential> {
    let same_size = Conv2dConfig { padding: 1, ..Default::default() };
    let conv = |from, to| candle_nn::conv2d(from, to, 3, same_size, vb.pp(to));
    Ok(candle_nn::seq()
        .add(conv(3, 32)?)
        .add(Activation::Relu)
        .add(conv(32, 64)?)
        .add(Activation::Relu)
        .add_fn(|x| x.max_pool2d(2))
        .add(conv(64, 128)?)
        .add(Activation::Relu)
        .add_fn(|x| x.max_pool2d(2)?.flatten_from(1))
        .add(candle_nn::linear(8 * 8 * 128, 128, vb.pp("hidden"))?)
        .add(Activation::Relu)
        .add(candle_nn::linear(128, 10, vb.pp("classes"))?))
}

/// One model with its optimizer, which takes the steps of one kind.
struct Trainer {
    model: Sequential,
    optimizer: SGD,
    ddp: Option<DistributedDataParallel>,
    parameters: usize,
    milliseconds: Vec<f64>,
}

impl Trainer {
    fn new(group: &ProcessGroup, build: Build, config: Option<DdpConfig>) -> anyhow::Result<Self> {
        let varmap = VarMap::new();
        let model = build(VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
        let ddp = config.map(|config| DistributedDataParallel::new(&varmap, group, config)).transpose()?;
        let parameters = varmap.all_vars().iter().map(|var| var.elem_count()).sum();
        let optimizer = SGD::new(varmap.all_vars(), 0.001)?;
        Ok(Self { model, optimizer, ddp, parameters, milliseconds: Vec::new() })
    }

    fn step(&mut self, x: &Tensor, y: &Tensor) -> anyhow::Result<()> {
        let loss = candle_nn::loss::cross_entropy(&self.model.forward(x)?, y)?;
        let grads = match &self.ddp {
            Some(ddp) => ddp.backward(&loss)?,
            None => loss.backward()?,
        };
        Ok(self.optimizer.step(&grads)?)
    }
}

fn compare(
    group: &ProcessGroup,
    name: &str,
    steps: usize,
    build: Build,
    shape: &[usize],
) -> anyhow::Result<()> {
    let x = Tensor::randn(0f32, 1.0, shape, &Device::Cpu)?;
    let y = Tensor::from_iter((0..shape[0] as u32).map(|i| i % 10), &Device::Cpu)?;
    let mut trainers = [("alone", None), ("ddp", Some(DdpConfig::default()))]
        .map(|(kind, config)| Trainer::new(group, build, config).map(|trainer| (kind, trainer)))
        .into_iter()
        .collect::<anyhow::Result<Vec<_>>>()?;
    for round in 0..=ROUNDS {
        for (_, trainer) in &mut trainers {
            group.barrier()?;
            for step in 0..=steps {
                let start = Instant::now();
                trainer.step(&x, &y)?;
                // The first steps of all, and the first after another kind's, find cold caches.
                if round > 0 && step > 0 {
                    trainer.milliseconds.push(start.elapsed().as_secs_f64() * 1e3);
                }
            }
        }
    }
    let mut alone = None;
    for (kind, trainer) in &mut trainers {
        let times = &mut trainer.milliseconds;
        group.all_reduce(times, ReduceOp::Max)?;
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        let alone = *alone.get_or_insert(median);
        if group.rank() == 0 {
            println!(
                "{name:<5} {:>11} {:>6}  {kind:<5} {median:>9.2} {:>9.2} {:>8.1} %",
                trainer.parameters,
                shape[0],
                times[0],
                (median / alone - 1.0) * 100.0
            );
        }
    }
    Ok(())
}
