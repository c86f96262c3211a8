//! What communication adds to a training step of libtorch's: two ranks, as processes of one thread each.
//!
//! `cargo bench --bench step`, with `-- mlp`, `-- cnn` or `-- transformer` for one model only. Kinds: `alone`, `barrier`, and `ddp`, whose gradients are sent
//! after the backward pass. The models are those of `scripts/beside_pytorch.py`.

use examples_common::steps::{self, Times, Trainer};
use phalanx::ProcessGroup;
use phalanx_tch::DistributedDataParallel;
use std::process::ExitCode;
use tch::nn::{self, ConvConfig, LinearConfig, Module, OptimizerConfig, VarStore};
use tch::{Device, Kind, Tensor};

fn main() -> anyhow::Result<ExitCode> {
    tch::set_num_threads(1);
    steps::run(&["mlp", "cnn", "transformer"], |group, name| match name {
        "mlp" => compare(group, "mlp", &[64, 784], 5, mlp),
        "cnn" => compare(group, "cnn", &[32, 3, 32, 32], 2, cnn),
        _ => compare(group, "transformer", &[8, 64, WIDTH], 3, transformer),
    })
}

type Model = Box<dyn Module>;

/// 5.15 million weights, nearly all in two matrices.
fn mlp(root: &nn::Path<'_>) -> Model {
    let mut layers = nn::seq();
    for (from, to) in [(784, 1536), (1536, 1536), (1536, 1024)] {
        layers = layers.add(nn::linear(root, from, to, Default::default())).add_fn(Tensor::relu);
    }
    Box::new(layers.add(nn::linear(root, 1024, 10, Default::default())))
}

/// 1.14 million weights, and much to compute with each.
fn cnn(root: &nn::Path<'_>) -> Model {
    let conv = |from, to| nn::conv2d(root, from, to, 3, ConvConfig { padding: 1, ..Default::default() });
    let layers = nn::seq()
        .add(conv(3, 32))
        .add_fn(Tensor::relu)
        .add(conv(32, 64))
        .add_fn(|x| x.relu().max_pool2d_default(2))
        .add(conv(64, 128))
        .add_fn(|x| x.relu().max_pool2d_default(2).flatten(1, -1))
        .add(nn::linear(root, 8 * 8 * 128, 128, Default::default()))
        .add_fn(Tensor::relu)
        .add(nn::linear(root, 128, 10, Default::default()));
    Box::new(layers)
}

/// Of a token.
const WIDTH: i64 = 256;

/// 3.2 million weights in four blocks of attention and a wide layer; a token is a vector already.
fn transformer(root: &nn::Path<'_>) -> Model {
    let mut blocks = nn::seq();
    for _ in 0..4 {
        let plain = LinearConfig { bias: false, ..Default::default() };
        let [q, k, v, out] = [(); 4].map(|()| nn::linear(root, WIDTH, WIDTH, plain));
        blocks = blocks.add_fn(move |x| {
            let (batch, tokens, _) = x.size3().expect("three dimensions");
            let [q, k, v] = [&q, &k, &v]
                .map(|layer| layer.forward(x).view([batch, tokens, 4, WIDTH / 4]).transpose(1, 2));
            let mixed = (q.matmul(&k.transpose(2, 3)) * 0.125).softmax(3, None).matmul(&v);
            x + out.forward(&mixed.transpose(1, 2).reshape_as(x))
        });
        let wide = nn::linear(root, WIDTH, 4 * WIDTH, Default::default());
        let narrow = nn::linear(root, 4 * WIDTH, WIDTH, Default::default());
        blocks = blocks.add_fn(move |x| x + narrow.forward(&wide.forward(x).gelu("tanh")));
    }
    let classes = nn::linear(root, WIDTH, 10, Default::default());
    Box::new(blocks.add_fn(|x| x.mean_dim(1, false, None)).add(classes))
}

/// What a step does about the other rank.
enum Other {
    Alone,
    Barrier(ProcessGroup),
    Ddp(Box<DistributedDataParallel>),
}

/// One model with its optimizer, which takes the steps of one kind.
struct OneKind {
    other: Other,
    model: Model,
    optimizer: nn::Optimizer,
    batch: (Tensor, Tensor),
    _store: VarStore,
}

impl Trainer for OneKind {
    fn step(&mut self) -> anyhow::Result<Times> {
        let Self { other, model, optimizer, batch: (x, y), .. } = self;
        let forward = || Ok(model.forward(x).cross_entropy_for_logits(y));
        let backward = |loss: Tensor| match other {
            Other::Alone => {
                loss.backward();
                Ok(())
            }
            Other::Barrier(group) => {
                loss.backward();
                Ok(group.barrier()?)
            }
            Other::Ddp(ddp) => Ok(ddp.backward(&loss)?),
        };
        steps::time(forward, backward, |()| {
            optimizer.step();
            optimizer.zero_grad();
            Ok(())
        })
    }
}

fn compare(
    group: &ProcessGroup,
    name: &str,
    shape: &[i64],
    steps: usize,
    model: fn(&nn::Path<'_>) -> Model,
) -> anyhow::Result<()> {
    let x = Tensor::randn(shape, (Kind::Float, Device::Cpu));
    let y = Tensor::from_slice(&(0..shape[0]).map(|i| i % 10).collect::<Vec<_>>());
    let mut trainers: Vec<(&str, Box<dyn Trainer>)> = Vec::new();
    for kind in ["alone", "barrier", "ddp"] {
        let store = VarStore::new(Device::Cpu);
        let model = model(&store.root());
        let optimizer = nn::Sgd::default().build(&store, 0.001)?;
        let other = match kind {
            "alone" => Other::Alone,
            "barrier" => Other::Barrier(group.clone()),
            _ => Other::Ddp(Box::new(DistributedDataParallel::new(&store, group, Default::default())?)),
        };
        let batch = (x.shallow_clone(), y.shallow_clone());
        trainers.push((kind, Box::new(OneKind { other, model, optimizer, batch, _store: store })));
    }
    let title = format!("libtorch {name}: {} samples a rank", shape[0]);
    steps::compare(group, &title, steps, &mut trainers).map(drop)
}
