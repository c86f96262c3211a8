//! What communication adds to a training step of burn's, with the backend Flex: two ranks, as processes of one thread each.
//!
//! `cargo bench -p phalanx-burn --bench step`, with `-- mlp` or `-- cnn` for one model only. Kinds: `alone`, `barrier`, and `ddp`, whose gradients are sent
//! after the backward pass.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData, activation};
use examples_common::steps::{self, Times, Trainer};
use phalanx::ProcessGroup;
use phalanx_burn::DistributedDataParallel;
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    steps::run(&["mlp", "cnn"], |group, name| match name {
        "mlp" => compare(group, "mlp", [64, 1, 1, 784], 5, Mlp::new),
        _ => compare(group, "cnn", [32, 3, 32, 32], 2, Cnn::new),
    })
}

/// A model that is measured. Inputs have four dimensions.
trait Model: Module + 'static {
    fn forward(&self, x: Tensor<4>) -> Tensor<2>;
}

/// 5.15 million weights, nearly all in two matrices.
#[derive(Module, Debug)]
struct Mlp {
    hidden: Vec<Linear>,
    classes: Linear,
}

impl Mlp {
    fn new(device: &Device) -> Self {
        let linear = |(from, to)| LinearConfig::new(from, to).init(device);
        let hidden = [(784, 1536), (1536, 1536), (1536, 1024)].map(linear);
        Self { hidden: hidden.into(), classes: linear((1024, 10)) }
    }
}

impl Model for Mlp {
    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let relu = |x: Tensor<2>, layer: &Linear| activation::relu(layer.forward(x));
        self.classes.forward(self.hidden.iter().fold(x.flatten(1, 3), relu))
    }
}

/// 1.14 million weights, and much to compute with each.
#[derive(Module, Debug)]
struct Cnn {
    convs: Vec<Conv2d>,
    pool: MaxPool2d,
    hidden: Linear,
    classes: Linear,
}

impl Cnn {
    fn new(device: &Device) -> Self {
        let conv = |channels| {
            Conv2dConfig::new(channels, [3, 3])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(device)
        };
        Self {
            convs: [[3, 32], [32, 64], [64, 128]].map(conv).into(),
            pool: MaxPool2dConfig::new([2, 2]).init(),
            hidden: LinearConfig::new(8 * 8 * 128, 128).init(device),
            classes: LinearConfig::new(128, 10).init(device),
        }
    }
}

impl Model for Cnn {
    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let [one, two, three] = &self.convs[..] else { unreachable!("it has three") };
        let x = activation::relu(one.forward(x));
        let x = self.pool.forward(activation::relu(two.forward(x)));
        let x = self.pool.forward(activation::relu(three.forward(x)));
        self.classes.forward(activation::relu(self.hidden.forward(x.flatten(1, 3))))
    }
}

/// What a step does about the other rank.
enum Kind {
    Alone,
    Barrier(ProcessGroup),
    Ddp(Box<DistributedDataParallel>),
}

/// One model with its optimizer, which takes the steps of one kind.
struct OneKind<M> {
    kind: Kind,
    /// It is away while it is changed.
    model: Option<M>,
    optimizer: ModuleOptimizer,
    batch: (Tensor<4>, Tensor<1, Int>),
}

impl<M: Model> Trainer for OneKind<M> {
    fn step(&mut self) -> anyhow::Result<Times> {
        let Self { kind, model, optimizer, batch } = self;
        let taken = model.take().expect("each step gives it back");
        let forward = || {
            let (x, y) = batch.clone();
            Ok(CrossEntropyLossConfig::new().init(&y.device()).forward(taken.forward(x), y))
        };
        let backward = |loss: Tensor<1>| match kind {
            Kind::Ddp(ddp) => Ok(ddp.backward(&taken, loss)?),
            Kind::Alone => Ok(GradientsParams::from_grads(loss.backward(), &taken)),
            Kind::Barrier(group) => {
                let grads = GradientsParams::from_grads(loss.backward(), &taken);
                group.barrier()?;
                Ok(grads)
            }
        };
        steps::time(forward, backward, |grads| {
            *model = Some(optimizer.step(0.001, taken.clone(), grads));
            Ok(())
        })
    }
}

fn compare<M: Model>(
    group: &ProcessGroup,
    name: &str,
    shape: [usize; 4],
    steps: usize,
    new: fn(&Device) -> M,
) -> anyhow::Result<()> {
    let device = Device::default().autodiff();
    let x = Tensor::random(shape, Distribution::Normal(0.0, 1.0), &device);
    let labels: Vec<i64> = (0..shape[0] as i64).map(|i| i % 10).collect();
    let batch = (x, Tensor::from_data(TensorData::new(labels, [shape[0]]), &device));
    let mut trainers: Vec<(&str, Box<dyn Trainer>)> = Vec::new();
    for kind in ["alone", "barrier", "ddp"] {
        let mut model = new(&device);
        let of_kind = match kind {
            "alone" => Kind::Alone,
            "barrier" => Kind::Barrier(group.clone()),
            _ => Kind::Ddp(Box::new(DistributedDataParallel::new(&mut model, group, Default::default())?)),
        };
        let optimizer = SgdConfig::new().init();
        trainers.push((
            kind,
            Box::new(OneKind { kind: of_kind, model: Some(model), optimizer, batch: batch.clone() }),
        ));
    }
    let title = format!("burn {name}: {} samples a rank", shape[0]);
    steps::compare(group, &title, steps, &mut trainers).map(drop)
}
