//! The digits by each way to send less: what a rank sends, and how well the model learns.
//!
//! The table of `docs/reference/low-communication.md`. Ranks are threads of this process: what is counted are the bytes that each way hands to the group.
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

use candle_core::{DType, Tensor};
use candle_nn::{ParamsAdamW, VarMap};
use clap::Parser;
use digits_common::data;
use digits_common::model::Cnn;
use phalanx::{ProcessGroup, threads};
use phalanx_candle::compress::{Cast, CommHook, Int8, PowerSgd, TopK, Traffic};
use phalanx_candle::{
    AdamW, DiLoCo, DiLoCoConfig, DistributedDataParallel, DistributedSampler, verify_parameters,
};

/// Trains a small convolutional network on handwritten digits by each way to send less, and prints a table.
#[derive(Debug, Parser)]
struct Options {
    /// Ranks to train with, as threads.
    #[arg(long, default_value_t = 4)]
    ranks: usize,

    /// Times to go through the training images.
    #[arg(long, default_value_t = 15)]
    epochs: u64,

    /// Images per step, all ranks together: as many for each rank.
    #[arg(long, default_value_t = 32)]
    batch_size: usize,

    /// Learning rate of AdamW, the same for each way.
    #[arg(long, default_value_t = 0.002)]
    lr: f64,

    /// Trainings for each way: initial weights and orders of the images.
    #[arg(long, default_value_t = 3)]
    seeds: u64,
}

type Hook = fn() -> phalanx::Result<Box<dyn CommHook>>;

/// A way to train on several ranks.
#[derive(Clone, Copy)]
enum Method {
    /// Gradients are added up in each step.
    Together(Option<Hook>),
    /// Weights are, now and then.
    Apart(DiLoCoConfig, Option<Hook>),
}

/// What a training of each kind needs from step to step.
enum Training {
    Together(Box<DistributedDataParallel>, AdamW),
    Apart(Box<DiLoCo<AdamW>>),
}

const BF16: Hook = || Ok(Box::new(Cast::bf16()));
const INT8: Hook = || Ok(Box::new(Int8::new()));

/// Each way, by name.
fn methods() -> [(&'static str, Method); 16] {
    use Method::{Apart, Together};
    [
        ("all_reduce in each step", Together(None)),
        ("f16", Together(Some(|| Ok(Box::new(Cast::f16()))))),
        ("bf16", Together(Some(BF16))),
        ("int8", Together(Some(INT8))),
        ("top-k, 5 %", Together(Some(|| Ok(Box::new(TopK::new(0.05)?))))),
        ("top-k, 1 %", Together(Some(|| Ok(Box::new(TopK::new(0.01)?))))),
        ("PowerSGD, rank 4", Together(Some(|| Ok(Box::new(PowerSgd::new(4)?))))),
        ("PowerSGD, rank 1", Together(Some(|| Ok(Box::new(PowerSgd::new(1)?))))),
        ("Local SGD, H = 10", Apart(DiLoCoConfig::local_sgd(10), None)),
        ("Local SGD, H = 20", Apart(DiLoCoConfig::local_sgd(20), None)),
        ("DiLoCo, H = 10", Apart(DiLoCoConfig::diloco(10), None)),
        ("DiLoCo, H = 20", Apart(DiLoCoConfig::diloco(20), None)),
        ("streaming DiLoCo, H = 20, 2 fragments, τ = 0", Apart(DiLoCoConfig::streaming(20, 2, 0), None)),
        ("streaming DiLoCo, H = 20, 2 fragments, τ = 5", Apart(DiLoCoConfig::streaming(20, 2, 5), None)),
        ("the same, bf16", Apart(DiLoCoConfig::streaming(20, 2, 5), Some(BF16))),
        ("the same, int8", Apart(DiLoCoConfig::streaming(20, 2, 5), Some(INT8))),
    ]
}

impl Training {
    fn new(method: Method, varmap: &VarMap, group: &ProcessGroup, lr: f64) -> anyhow::Result<Self> {
        let adamw = AdamW::new(varmap, ParamsAdamW { lr, ..Default::default() })?;
        Ok(match method {
            Method::Together(hook) => {
                let ddp = DistributedDataParallel::new(varmap, group, Default::default())?;
                let hook = hook.map(|hook| hook()).transpose()?;
                let ddp = if let Some(hook) = hook { ddp.with_hook(hook) } else { ddp };
                Self::Together(Box::new(ddp), adamw)
            }
            Method::Apart(config, hook) => {
                let diloco = DiLoCo::new(adamw, varmap, group, config)?;
                let hook = hook.map(|hook| hook()).transpose()?;
                Self::Apart(Box::new(if let Some(hook) = hook { diloco.with_hook(hook) } else { diloco }))
            }
        })
    }

    fn step(&mut self, loss: &Tensor) -> phalanx_candle::Result<()> {
        match self {
            Self::Together(ddp, adamw) => adamw.step(&ddp.backward(loss)?),
            Self::Apart(diloco) => diloco.step(&loss.backward()?),
        }
    }

    fn finish(&mut self) -> phalanx_candle::Result<()> {
        match self {
            Self::Together(..) => Ok(()),
            Self::Apart(diloco) => diloco.finish(),
        }
    }

    /// Bytes that this rank has sent, if somebody has counted them.
    fn sent(&self) -> Option<u64> {
        match self {
            Self::Together(ddp, _) => Some(ddp.traffic()?.sent),
            Self::Apart(diloco) => Some(diloco.traffic().sent),
        }
    }
}

/// What a training ends with.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    sent: u64,
    loss: f64,
    accuracy: f64,
}

fn train(method: Method, group: &ProcessGroup, options: &Options, seed: u64) -> anyhow::Result<Outcome> {
    let (train, test) = data::load()?;
    let varmap = VarMap::new();
    let model = Cnn::of(&varmap, DType::F32, seed)?;
    let mut training = Training::new(method, &varmap, group, options.lr)?;
    let (rank, ranks) = (group.rank(), group.world_size());
    let sampler = DistributedSampler::new(train.len(), options.batch_size, rank, ranks)?.seed(seed);
    for epoch in 0..options.epochs {
        for batch in sampler.epoch(epoch) {
            let (images, labels) = train.batch(&batch.indices)?;
            training.step(&model.evaluate(&images, &labels)?.0)?;
        }
    }
    training.finish()?;
    verify_parameters(&varmap, group)?;

    let weights: usize = varmap.all_vars().iter().map(|var| var.elem_count()).sum();
    let steps = sampler.batches() as u64 * options.epochs;
    let of_all_reduces = steps * Traffic::of_all_reduce(4 * weights, group);
    let (images, labels) = train.all()?;
    let loss = model.evaluate(&images, &labels)?.0.to_dtype(DType::F64)?.to_scalar()?;
    let (images, labels) = test.all()?;
    let accuracy = model.evaluate(&images, &labels)?.1 as f64 / test.len() as f64;
    Ok(Outcome { sent: training.sent().unwrap_or(of_all_reduces), loss, accuracy })
}

/// Least, mean and most.
fn spread(values: impl Iterator<Item = f64> + Clone) -> [f64; 3] {
    let count = values.clone().count() as f64;
    let least = values.clone().fold(f64::INFINITY, f64::min);
    [least, values.clone().sum::<f64>() / count, values.fold(f64::NEG_INFINITY, f64::max)]
}

fn main() -> anyhow::Result<()> {
    let options = &Options::parse();
    anyhow::ensure!(
        options.ranks > 0 && options.batch_size.is_multiple_of(options.ranks) && options.seeds > 0,
        "ranks, at least one, have as many images of a batch each, and train at least once"
    );
    println!("| | MB sent by a rank | fewer | final loss | test accuracy |\n|---|---|---|---|---|");
    let mut plain = None;
    for (name, method) in methods() {
        let mut outcomes = Vec::new();
        for seed in 1..=options.seeds {
            let of_ranks: Vec<anyhow::Result<Outcome>> = std::thread::scope(|s| {
                let groups = threads(options.ranks);
                let start = |group| s.spawn(move || train(method, &group, options, seed));
                let ranks: Vec<_> = groups.into_iter().map(start).collect();
                ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
            });
            outcomes.push(of_ranks.into_iter().next().expect("there is one")?);
        }
        let sent = outcomes[0].sent as f64;
        let [lowest, loss, highest] = spread(outcomes.iter().map(|outcome| outcome.loss));
        let [worst, accuracy, best] = spread(outcomes.iter().map(|outcome| 100.0 * outcome.accuracy));
        println!(
            "| {name} | {:.3} | {:.1} | {loss:.4} ({lowest:.4}–{highest:.4}) | {accuracy:.1} % ({worst:.1}–{best:.1}) |",
            sent / 1e6,
            *plain.get_or_insert(sent) / sent,
        );
    }
    Ok(())
}
