//! What communication adds to a training step: two ranks, as processes of one thread each.
//!
//! `cargo bench -p phalanx-candle --bench step`, with `-- mlp`, `-- cnn` or `-- transformer` for one model only, and with `--kinds=alone,layers` for some kinds
//! of steps, as to profile them. Started by a launcher it measures the launcher's ranks instead, over whatever is between them.
//!
//! Seven kinds of steps take turns in the same processes, a few of each at a time: `alone` without communication, `barrier` with a
//! barrier in its place, so with the waiting for the slower rank alone, `after` with gradients that are sent after
//! the backward pass, `during` with gradients that are sent while it runs, and `in place`, which is `during` with our `Sgd` where the others have
//! candle's; then with the layers of `phalanx_candle::layers` and our `Sgd`, `layers alone` without communication, and `layers` as
//! `DistributedDataParallel` is unless told otherwise. A step is what the slower rank needs for it.

#![allow(clippy::print_stdout, reason = "a benchmark reports to its user")]

use candle_core::backprop::GradStore;
use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{Conv2dConfig, Module, Optimizer, SGD, Sequential, VarBuilder, VarMap};
use examples_common::steps::{self, Times, Trainer};
use phalanx::ProcessGroup;
use phalanx_candle::{
    DdpConfig, DistributedDataParallel, Overlap, Sgd, SgdParams, clip_factor, clip_grad_norm, grad_norm,
    layers,
};
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    steps::run(&CASES.map(|case| case.name), |group, name| {
        CASES.iter().filter(|case| case.name == name).try_for_each(|case| compare(group, case))
    })
}

struct Case {
    name: &'static str,
    model: fn(&Layers, VarBuilder<'_>) -> Result<Sequential>,
    /// Of what a rank gets in each step.
    shape: &'static [usize],
    /// In a turn.
    steps: usize,
}

const CASES: [Case; 3] = [
    Case { name: "mlp", model: mlp, shape: &[64, 784], steps: 5 },
    Case { name: "cnn", model: cnn, shape: &[32, 3, 32, 32], steps: 2 },
    Case { name: "transformer", model: transformer, shape: &[8, 64, WIDTH], steps: 3 },
];

const KINDS: [&str; 7] = ["alone", "barrier", "after", "during", "in place", "layers alone", "layers"];

/// Only where they are asked for: as `layers`, with gradients that are clipped before the optimizer's pass, and in it.
const MORE_KINDS: [&str; 2] = ["layers clip", "layers scale"];

/// Whose layers a model has.
struct Layers {
    linear: fn(usize, usize, VarBuilder<'_>) -> Result<Layer>,
    linear_no_bias: fn(usize, usize, VarBuilder<'_>) -> Result<Layer>,
    conv: fn(usize, usize, VarBuilder<'_>) -> Result<Layer>,
    relu: fn(&Tensor) -> Result<Tensor>,
    gelu: fn(&Tensor) -> Result<Tensor>,
    softmax: fn(&Tensor) -> Result<Tensor>,
    max_pool: fn(&Tensor) -> Result<Tensor>,
}

type Layer = Box<dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync>;

fn boxed(layer: impl Module + Send + Sync + 'static) -> Layer {
    Box::new(move |x| layer.forward(x))
}

const SAME_SIZE: Conv2dConfig =
    Conv2dConfig { padding: 1, stride: 1, dilation: 1, groups: 1, cudnn_fwd_algo: None };

const CANDLES: Layers = Layers {
    linear: |from, to, vb| Ok(boxed(candle_nn::linear(from, to, vb)?)),
    linear_no_bias: |from, to, vb| Ok(boxed(candle_nn::linear_no_bias(from, to, vb)?)),
    conv: |from, to, vb| Ok(boxed(candle_nn::conv2d(from, to, 3, SAME_SIZE, vb)?)),
    relu: Tensor::relu,
    gelu: Tensor::gelu,
    softmax: |x| candle_nn::ops::softmax(x, D::Minus1),
    max_pool: |x| x.max_pool2d(2),
};

const OURS: Layers = Layers {
    linear: |from, to, vb| Ok(boxed(layers::linear(from, to, vb)?)),
    linear_no_bias: |from, to, vb| Ok(boxed(layers::linear_no_bias(from, to, vb)?)),
    conv: |from, to, vb| Ok(boxed(layers::conv2d(from, to, 3, SAME_SIZE, vb)?)),
    relu: layers::relu,
    gelu: layers::gelu,
    softmax: layers::softmax_last_dim,
    max_pool: |x| layers::max_pool2d(x, 2),
};

/// 5.15 million weights, nearly all in two matrices.
fn mlp(by: &Layers, vb: VarBuilder<'_>) -> Result<Sequential> {
    let mut layers = candle_nn::seq();
    for (i, (from, to)) in [(784, 1536), (1536, 1536), (1536, 1024)].into_iter().enumerate() {
        layers = layers.add((by.linear)(from, to, vb.pp(i))?).add_fn(by.relu);
    }
    Ok(layers.add((by.linear)(1024, 10, vb.pp("classes"))?))
}

/// 1.14 million weights, and much to compute with each.
fn cnn(by: &Layers, vb: VarBuilder<'_>) -> Result<Sequential> {
    let conv = |from, to: usize| (by.conv)(from, to, vb.pp(to));
    Ok(candle_nn::seq()
        .add(conv(3, 32)?)
        .add_fn(by.relu)
        .add(conv(32, 64)?)
        .add_fn(by.relu)
        .add_fn(by.max_pool)
        .add(conv(64, 128)?)
        .add_fn(by.relu)
        .add_fn(by.max_pool)
        .add_fn(|x| x.flatten_from(1))
        .add((by.linear)(8 * 8 * 128, 128, vb.pp("hidden"))?)
        .add_fn(by.relu)
        .add((by.linear)(128, 10, vb.pp("classes"))?))
}

/// Of a token.
const WIDTH: usize = 256;

/// 3.2 million weights in four blocks of attention and a wide layer; a token is a vector already.
fn transformer(by: &Layers, vb: VarBuilder<'_>) -> Result<Sequential> {
    let mut blocks = candle_nn::seq();
    for i in 0..4 {
        let vb = vb.pp(i);
        let attention = ["q", "k", "v", "out"].map(|name| (by.linear_no_bias)(WIDTH, WIDTH, vb.pp(name)));
        let [q, k, v, out] = attention;
        let (q, k, v, out) = (q?, k?, v?, out?);
        let heads = |x: Tensor| {
            let (batch, tokens, _) = x.dims3()?;
            x.reshape((batch, tokens, 4, WIDTH / 4))?.transpose(1, 2)?.contiguous()
        };
        let softmax = by.softmax;
        blocks = blocks.add_fn(move |x| {
            let [q, k, v] = [&q, &k, &v].map(|layer| heads(layer.forward(x)?));
            let scores = (q?.matmul(&k?.t()?)? * 0.125)?;
            let mixed = softmax(&scores)?.matmul(&v?)?;
            x + out.forward(&mixed.transpose(1, 2)?.reshape(x.shape())?)?
        });
        let wide = (by.linear)(WIDTH, 4 * WIDTH, vb.pp("wide"))?;
        let narrow = (by.linear)(4 * WIDTH, WIDTH, vb.pp("narrow"))?;
        let gelu = by.gelu;
        blocks = blocks.add_fn(move |x| x + narrow.forward(&gelu(&wide.forward(x)?)?)?);
    }
    Ok(blocks.add_fn(|x| x.mean(1)).add((by.linear)(WIDTH, 10, vb.pp("classes"))?))
}

/// What a step does about the other rank.
enum Kind {
    Alone(Sequential),
    Barrier(Sequential),
    Ddp(Box<DistributedDataParallel<Sequential>>),
}

/// One model with its optimizer, which takes the steps of one kind.
struct OneKind {
    kind: Kind,
    group: ProcessGroup,
    batch: (Tensor, Tensor),
    optimizer: Box<Optimize>,
    parameters: usize,
}

type Optimize = dyn FnMut(GradStore) -> anyhow::Result<()>;

/// So small that all gradients are clipped.
const MAX_NORM: f64 = 1e-3;

impl OneKind {
    fn new(group: &ProcessGroup, case: &Case, batch: &(Tensor, Tensor), name: &str) -> anyhow::Result<Self> {
        let varmap = VarMap::new();
        let by = if name.starts_with("layers") { &OURS } else { &CANDLES };
        let plain = || (case.model)(by, VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu));
        let ddp = |overlap| {
            let config = DdpConfig::default().overlap(overlap);
            DistributedDataParallel::build(&varmap, DType::F32, group, config, |vb| (case.model)(by, vb))
        };
        let kind = match name {
            "alone" | "layers alone" => Kind::Alone(plain()?),
            "barrier" => Kind::Barrier(plain()?),
            "after" => Kind::Ddp(Box::new(ddp(Overlap::Off)?)),
            "layers" | "layers clip" | "layers scale" => Kind::Ddp(Box::new(ddp(Overlap::Auto)?)),
            _ => Kind::Ddp(Box::new(ddp(Overlap::On)?)),
        };
        let parameters = varmap.all_vars().iter().map(|var| var.elem_count()).sum();
        let sgd = || Sgd::new(&varmap, SgdParams { lr: 0.001, ..Default::default() });
        let optimizer: Box<Optimize> = match name {
            "layers clip" => {
                let mut sgd = sgd()?;
                Box::new(move |mut grads| {
                    clip_grad_norm(&varmap, &mut grads, MAX_NORM)?;
                    Ok(sgd.step(&grads)?)
                })
            }
            "layers scale" => {
                let mut sgd = sgd()?;
                Box::new(move |grads| {
                    let factor = clip_factor(grad_norm(&varmap, &grads)?, MAX_NORM)?;
                    Ok(sgd.step_scaled(&grads, factor)?)
                })
            }
            "in place" | "layers alone" | "layers" => {
                let mut sgd = sgd()?;
                Box::new(move |grads| Ok(sgd.step(&grads)?))
            }
            _ => {
                let mut sgd = SGD::new(varmap.all_vars(), 0.001)?;
                Box::new(move |grads| Ok(sgd.step(&grads)?))
            }
        };
        Ok(Self { kind, group: group.clone(), batch: batch.clone(), optimizer, parameters })
    }
}

impl Trainer for OneKind {
    fn step(&mut self) -> anyhow::Result<Times> {
        let (x, y) = &self.batch;
        let loss = |model: &Sequential| candle_nn::loss::cross_entropy(&model.forward(x)?, y);
        let forward = || match &self.kind {
            Kind::Alone(model) | Kind::Barrier(model) => Ok(loss(model)?),
            Kind::Ddp(ddp) => Ok(ddp.forward(loss)?),
        };
        let backward = |loss: Tensor| -> anyhow::Result<GradStore> {
            match &self.kind {
                Kind::Alone(_) => Ok(loss.backward()?),
                Kind::Barrier(_) => {
                    let grads = loss.backward()?;
                    self.group.barrier()?;
                    Ok(grads)
                }
                Kind::Ddp(ddp) => Ok(ddp.backward(&loss)?),
            }
        };
        steps::time(forward, backward, &mut self.optimizer)
    }
}

fn compare(group: &ProcessGroup, case: &Case) -> anyhow::Result<()> {
    let x = Tensor::randn(0f32, 1.0, case.shape, &Device::Cpu)?;
    let y = Tensor::from_iter((0..case.shape[0] as u32).map(|i| i % 10), &Device::Cpu)?;
    let batch = (x, y);
    let mut parameters = 0;
    let mut trainers: Vec<(&str, Box<dyn Trainer>)> = Vec::new();
    let wanted = std::env::args().find_map(|arg| arg.strip_prefix("--kinds=").map(str::to_owned));
    let more = MORE_KINDS.into_iter().filter(|_| wanted.is_some());
    let is_wanted =
        |name: &str| wanted.as_ref().is_none_or(|wanted| wanted.split(',').any(|kind| kind == name));
    for name in KINDS.into_iter().chain(more).filter(|name| is_wanted(name)) {
        let trainer = OneKind::new(group, case, &batch, name)?;
        parameters = trainer.parameters;
        trainers.push((name, Box::new(trainer)));
    }
    let title = format!("{}: {parameters} parameters, {} samples a rank", case.name, case.shape[0]);
    let medians = steps::compare(group, &title, case.steps, &mut trainers)?;
    if let [alone, _, after, during, _, _, _] = medians[..]
        && group.rank() == 0
    {
        let (hidden, most) = (after.step - during.step, alone.backward.min(after.step - alone.step));
        println!("hidden: {hidden:.2} of {most:.2} ms, {:.0} %", 100.0 * hidden / most);
    }
    Ok(())
}
