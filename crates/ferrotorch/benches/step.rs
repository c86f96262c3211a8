//! What communication adds to a training step of ferrotorch's: two ranks, as processes of one thread each.
//!
//! `cargo bench -p phalanx-ferrotorch --bench step`, with `-- mlp` or `-- cnn` for one model only. Kinds: `alone`, `barrier`, and gradients that are sent
//! `after` the backward pass, or `during` it.

use examples_common::steps::{self, Times, Trainer};
use ferrotorch_core::{FerrotorchResult, Tensor, creation};
use ferrotorch_nn::{
    Conv2d, CrossEntropyLoss, Flatten, Linear, MaxPool2d, Module, ReLU, Reduction, Sequential,
};
use ferrotorch_optim::{Optimizer, Sgd, SgdConfig};
use phalanx::ProcessGroup;
use phalanx_ferrotorch::{DDP, DdpConfig, Group, Overlap};
use std::process::ExitCode;
use std::sync::Arc;

type Layers = Vec<Box<dyn Module<f32>>>;

fn main() -> anyhow::Result<ExitCode> {
    steps::run(&["mlp", "cnn"], |group, name| match name {
        "mlp" => compare(group, "mlp", &[64, 784], 5, mlp),
        _ => compare(group, "cnn", &[32, 3, 32, 32], 2, cnn),
    })
}

/// 5.15 million weights, nearly all in two matrices.
fn mlp() -> FerrotorchResult<Layers> {
    let mut layers: Layers = Vec::new();
    for (from, to) in [(784, 1536), (1536, 1536), (1536, 1024)] {
        layers.push(Box::new(Linear::new(from, to, true)?));
        layers.push(Box::new(ReLU::new()));
    }
    layers.push(Box::new(Linear::new(1024, 10, true)?));
    Ok(layers)
}

/// 1.14 million weights, and much to compute with each.
fn cnn() -> FerrotorchResult<Layers> {
    let conv = |from, to| Conv2d::new(from, to, (3, 3), (1, 1), (1, 1), true);
    let pool = || Box::new(MaxPool2d::new([2, 2], [2, 2], [0, 0]));
    Ok(vec![
        Box::new(conv(3, 32)?),
        Box::new(ReLU::new()),
        Box::new(conv(32, 64)?),
        Box::new(ReLU::new()),
        pool(),
        Box::new(conv(64, 128)?),
        Box::new(ReLU::new()),
        pool(),
        Box::new(Flatten::default()),
        Box::new(Linear::new(8 * 8 * 128, 128, true)?),
        Box::new(ReLU::new()),
        Box::new(Linear::new(128, 10, true)?),
    ])
}

/// What a step does about the other rank.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Alone,
    Barrier,
    Ddp(Overlap),
}

/// One model with its optimizer, which takes the steps of one kind.
struct OneKind {
    kind: Kind,
    group: ProcessGroup,
    ddp: DDP<Sequential<f32>, f32>,
    optimizer: Sgd<f32>,
    batch: (Tensor<f32>, Tensor<f32>),
}

impl Trainer for OneKind {
    fn step(&mut self) -> anyhow::Result<Times> {
        let (x, y) = &self.batch;
        let forward = || Ok(CrossEntropyLoss::new(Reduction::Mean, 0.0).forward(&self.ddp.forward(x)?, y)?);
        let backward = |loss: Tensor<f32>| {
            match self.kind {
                Kind::Alone => ferrotorch_core::backward(&loss)?,
                Kind::Barrier => {
                    ferrotorch_core::backward(&loss)?;
                    self.group.barrier()?;
                }
                Kind::Ddp(_) => self.ddp.backward(&loss)?,
            }
            Ok(())
        };
        steps::time(forward, backward, |()| {
            self.optimizer.step()?;
            Ok(self.optimizer.zero_grad()?)
        })
    }
}

fn compare(
    group: &ProcessGroup,
    name: &str,
    shape: &[usize],
    steps: usize,
    layers: fn() -> FerrotorchResult<Layers>,
) -> anyhow::Result<()> {
    let x = creation::randn(shape)?;
    let labels: Vec<f32> = (0..shape[0]).map(|i| (i % 10) as f32).collect();
    let batch = (x, creation::from_slice(&labels, &[shape[0]])?);
    let kinds = [
        ("alone", Kind::Alone),
        ("barrier", Kind::Barrier),
        ("after", Kind::Ddp(Overlap::Off)),
        ("during", Kind::Ddp(Overlap::On)),
    ];
    let mut trainers: Vec<(&str, Box<dyn Trainer>)> = Vec::new();
    for (kind_name, kind) in kinds {
        let overlap = if let Kind::Ddp(overlap) = kind { overlap } else { Overlap::Off };
        let backend = Arc::new(Group::from(group.clone()));
        let config = DdpConfig::default().overlap(overlap);
        let ddp = DDP::with_config(Sequential::new(layers()?), backend, config);
        let parameters = ddp.parameters().into_iter().cloned().collect();
        let optimizer = Sgd::new(parameters, SgdConfig::new(0.001));
        let (group, batch) = (group.clone(), batch.clone());
        trainers.push((kind_name, Box::new(OneKind { kind, group, ddp, optimizer, batch })));
    }
    let title = format!("ferrotorch {name}: {} samples a rank", shape[0]);
    steps::compare(group, &title, steps, &mut trainers).map(drop)
}
