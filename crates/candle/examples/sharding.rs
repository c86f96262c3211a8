//! What a rank needs of memory, and of time, as more is dealt out: a table of the stages of ZeRO, beside DDP.
//!
//! `cargo run --release -p phalanx-candle --example sharding` starts each case as a job of 1, 2 and 4 processes of one thread each. A model whose
//! weights dominate takes a few steps with AdamW. `heap` is the peak of what the allocator has given out, `VmHWM` that of the process's
//! resident memory, with memory that ranks share; both beyond what there was before the model. Each is that of the
//! rank that needs most. Bytes a weight are `heap` divided by the number of weights. A step takes what the slowest rank needs.

#![allow(clippy::print_stdout, reason = "an example reports to its user")]

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Linear, Module, VarBuilder, VarMap};
use peak_alloc::PeakAlloc;
use phalanx::config::Source;
use phalanx::launch::{Launch, Outcome};
use phalanx::{Config, ProcessGroup, ReduceOp};
use phalanx_candle::{AdamW, DistributedDataParallel, ShardConfig, Sharded, Stage, Unit, Units};
use std::process::ExitCode;
use std::time::Instant;

#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

const LAYERS: usize = 16;
const WIDTH: usize = 1024;
/// Rows of a batch.
const ROWS: usize = 16;
const STEPS: usize = 9;
const WEIGHTS: usize = LAYERS * WIDTH * WIDTH;

const CASES: [(&str, Option<Stage>); 4] = [
    ("DDP", None),
    ("ZeRO-1", Some(Stage::Optimizer)),
    ("ZeRO-2", Some(Stage::Gradients)),
    ("ZeRO-3", Some(Stage::Weights)),
];

fn main() -> anyhow::Result<ExitCode> {
    if Config::from_env()?.source != Source::Alone {
        let case = std::env::args().nth(1).unwrap_or_default();
        let group = phalanx::init()?;
        for (name, stage) in CASES.into_iter().filter(|(name, _)| *name == case) {
            measure(&group, name, stage)?;
        }
        group.finalize()?;
        return Ok(ExitCode::SUCCESS);
    }
    println!("{WEIGHTS} weights in {LAYERS} layers, {ROWS} rows a rank; MiB, bytes a weight, ms a step");
    for ranks in [1, 2, 4] {
        for (case, _) in CASES {
            let launch = Launch::new(std::env::current_exe()?).args([case]).ranks(ranks);
            if let Outcome::Failure(failure) = launch.env("RAYON_NUM_THREADS", "1").run()? {
                println!("{failure}");
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn layer(vb: VarBuilder<'_>) -> Result<Linear> {
    candle_nn::linear_no_bias(WIDTH, WIDTH, vb)
}

fn layers<L>(vb: &VarBuilder<'_>, layer: impl Fn(VarBuilder<'_>) -> Result<L>) -> Result<Vec<L>> {
    (0..LAYERS).map(|i| layer(vb.pp(i))).collect()
}

fn loss<L: Module>(layers: &[L], x: &Tensor) -> Result<Tensor> {
    let mut x = x.clone();
    for layer in layers {
        x = layer.forward(&x)?.relu()?;
    }
    x.sqr()?.mean_all()
}

enum Model {
    Whole(DistributedDataParallel<Vec<Linear>>, AdamW),
    Sharded(Sharded<Vec<Unit<Linear>>>, AdamW),
}

impl Model {
    fn new(group: &ProcessGroup, stage: Option<Stage>) -> phalanx_candle::Result<Self> {
        let Some(stage) = stage else {
            let varmap = VarMap::new();
            let (dtype, config) = (DType::F32, Default::default());
            let ddp = DistributedDataParallel::build(&varmap, dtype, group, config, |vb| layers(&vb, layer))?;
            return Ok(Self::Whole(ddp, AdamW::new(&varmap, Default::default())?));
        };
        let config = ShardConfig::default().stage(stage);
        let model = |units: &Units, vb| layers(&vb, |vb| units.unit(vb, layer));
        let zero = Sharded::build(DType::F32, group, config, model)?;
        let optimizer = AdamW::sharded(&zero, Default::default())?;
        Ok(Self::Sharded(zero, optimizer))
    }

    fn step(&mut self, x: &Tensor) -> phalanx_candle::Result<()> {
        match self {
            Self::Whole(ddp, optimizer) => {
                let loss = ddp.forward(|layers| loss(layers, x))?;
                optimizer.step(&ddp.backward(&loss)?)
            }
            Self::Sharded(zero, optimizer) => {
                let loss = zero.forward(|layers| loss(layers, x))?;
                optimizer.step(&zero.backward(&loss)?)
            }
        }
    }
}

fn measure(group: &ProcessGroup, case: &str, stage: Option<Stage>) -> anyhow::Result<()> {
    let x = Tensor::randn(0f32, 1.0, (ROWS, WIDTH), &Device::Cpu)?;
    group.barrier()?;
    HEAP.reset_peak_usage();
    let (heap, resident) = (HEAP.current_usage(), resident_kib()?);
    let mut model = Model::new(group, stage)?;
    let mut steps_ms = Vec::new();
    for _ in 0..STEPS {
        let start = Instant::now();
        model.step(&x)?;
        steps_ms.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let mut most = [(HEAP.peak_usage() - heap) as f64, (resident_kib()? - resident) * 1024.0];
    group.all_reduce(&mut most, ReduceOp::Max)?;
    group.all_reduce(&mut steps_ms, ReduceOp::Max)?;
    steps_ms.sort_by(f64::total_cmp);
    if group.rank() == 0 {
        let [heap, resident] = most.map(|bytes| bytes / f64::from(1 << 20));
        let (ranks, least, median) = (group.world_size(), steps_ms[0], steps_ms[STEPS / 2]);
        println!(
            "{ranks} ranks  {case:<6}  heap {heap:>6.0}  VmHWM {resident:>6.0}  bytes a weight {:>5.1}  step {least:>5.0}, median {median:>5.0}",
            most[0] / WEIGHTS as f64
        );
    }
    Ok(())
}

/// The most that has been resident.
fn resident_kib() -> anyhow::Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let text = line.and_then(|line| line.split_whitespace().next()).unwrap_or_default();
    Ok(text.parse()?)
}
