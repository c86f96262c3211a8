//! What communication adds to a training step: two ranks, as processes of one thread each.
//!
//! `cargo bench -p phalanx-candle --bench step`, with `-- mlp`, `-- cnn` or `-- transformer` for one model only. Started by a launcher
//! it measures the launcher's ranks instead, over whatever is between them.
//!
//! Five kinds of steps take turns in the same processes, a few of each at a time: `alone` without communication, `barrier` with a
//! barrier in its place, so with the waiting for the slower rank alone, `after` with gradients that are sent after
//! the backward pass, `during` with gradients that are sent while it runs, and `in place`, which is `during` with our `Sgd` where the others have
//! candle's. A step is what the slower rank needs for it.

#![allow(clippy::print_stdout, reason = "a benchmark reports to its user")]

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Activation, Conv2dConfig, Module, Optimizer, SGD, Sequential, VarBuilder, VarMap};
use examples_common::steps::{self, Times, Trainer};
use phalanx::ProcessGroup;
use phalanx_candle::{DdpConfig, DistributedDataParallel, Overlap, Sgd, SgdParams};
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    steps::run(&CASES.map(|case| case.name), |group, name| {
        CASES.iter().filter(|case| case.name == name).try_for_each(|case| compare(group, case))
    })
}

struct Case {
    name: &'static str,
    model: fn(VarBuilder<'_>) -> Result<Sequential>,
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

/// Of a token.
const WIDTH: usize = 256;

/// 3.2 million weights in four blocks of attention and a wide layer; a token is a vector already.
fn transformer(vb: VarBuilder<'_>) -> Result<Sequential> {
    let mut blocks = candle_nn::seq();
    for i in 0..4 {
        let vb = vb.pp(i);
        let attention =
            ["q", "k", "v", "out"].map(|name| candle_nn::linear_no_bias(WIDTH, WIDTH, vb.pp(name)));
        let [q, k, v, out] = attention;
        let (q, k, v, out) = (q?, k?, v?, out?);
        let heads = |x: Tensor| {
            let (batch, tokens, _) = x.dims3()?;
            x.reshape((batch, tokens, 4, WIDTH / 4))?.transpose(1, 2)?.contiguous()
        };
        blocks = blocks.add_fn(move |x| {
            let [q, k, v] = [&q, &k, &v].map(|layer| heads(layer.forward(x)?));
            let scores = (q?.matmul(&k?.t()?)? * 0.125)?;
            let mixed = candle_nn::ops::softmax(&scores, 3)?.matmul(&v?)?;
            x + out.forward(&mixed.transpose(1, 2)?.reshape(x.shape())?)?
        });
        let wide = candle_nn::linear(WIDTH, 4 * WIDTH, vb.pp("wide"))?;
        let narrow = candle_nn::linear(4 * WIDTH, WIDTH, vb.pp("narrow"))?;
        blocks = blocks.add_fn(move |x| x + narrow.forward(&wide.forward(x)?.gelu()?)?);
    }
    Ok(blocks.add_fn(|x| x.mean(1)).add(candle_nn::linear(WIDTH, 10, vb.pp("classes"))?))
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

type Optimize = dyn FnMut(&GradStore) -> anyhow::Result<()>;

impl OneKind {
    fn new(group: &ProcessGroup, case: &Case, batch: &(Tensor, Tensor), name: &str) -> anyhow::Result<Self> {
        let varmap = VarMap::new();
        let plain = || (case.model)(VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu));
        let ddp = |overlap| {
            let config = DdpConfig::default().overlap(overlap);
            DistributedDataParallel::build(&varmap, DType::F32, group, config, case.model)
        };
        let kind = match name {
            "alone" => Kind::Alone(plain()?),
            "barrier" => Kind::Barrier(plain()?),
            "after" => Kind::Ddp(Box::new(ddp(Overlap::Off)?)),
            _ => Kind::Ddp(Box::new(ddp(Overlap::On)?)),
        };
        let parameters = varmap.all_vars().iter().map(|var| var.elem_count()).sum();
        let optimizer: Box<Optimize> = if name == "in place" {
            let mut sgd = Sgd::new(&varmap, SgdParams { lr: 0.001, ..Default::default() })?;
            Box::new(move |grads| Ok(sgd.step(grads)?))
        } else {
            let mut sgd = SGD::new(varmap.all_vars(), 0.001)?;
            Box::new(move |grads| Ok(sgd.step(grads)?))
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
        steps::time(forward, backward, |grads| (self.optimizer)(&grads))
    }
}

fn compare(group: &ProcessGroup, case: &Case) -> anyhow::Result<()> {
    let x = Tensor::randn(0f32, 1.0, case.shape, &Device::Cpu)?;
    let y = Tensor::from_iter((0..case.shape[0] as u32).map(|i| i % 10), &Device::Cpu)?;
    let batch = (x, y);
    let mut parameters = 0;
    let mut trainers: Vec<(&str, Box<dyn Trainer>)> = Vec::new();
    for name in ["alone", "barrier", "after", "during", "in place"] {
        let trainer = OneKind::new(group, case, &batch, name)?;
        parameters = trainer.parameters;
        trainers.push((name, Box::new(trainer)));
    }
    let title = format!("{}: {parameters} parameters, {} samples a rank", case.name, case.shape[0]);
    let medians = steps::compare(group, &title, case.steps, &mut trainers)?;
    let [alone, _, after, during, _] = medians[..] else { unreachable!("five kinds") };
    if group.rank() == 0 {
        let (hidden, most) = (after.step - during.step, alone.backward.min(after.step - alone.step));
        println!("hidden: {hidden:.2} of {most:.2} ms, {:.0} %", 100.0 * hidden / most);
    }
    Ok(())
}
