//! A rank in Rust, with candle, of a job whose other ranks are those of `train.py`, with PyTorch. All train one model on handwritten digits, each on its part of
//! every batch, and end with the same weights to the last bit.

#![allow(clippy::print_stdout, reason = "a program talks to its user")]

use anyhow::Context;
use candle_core::{D, DType, Device, Tensor};
use candle_nn::{Linear, Module, Optimizer, SGD, VarBuilder, VarMap, linear, loss::cross_entropy};
use phalanx_candle::{DdpConfig, DistributedDataParallel, Overlap};
use std::io::Read;

// What both programs must know alike.
const EPOCHS: usize = 20;
const BATCH: usize = 64;
const LEARNING_RATE: f64 = 0.1;
const PIXELS: usize = 64;
const HIDDEN: usize = 32;
const DIGITS: usize = 10;

struct Mlp {
    fc1: Linear,
    fc2: Linear,
}

impl Mlp {
    fn new(vb: &VarBuilder<'_>) -> candle_core::Result<Self> {
        Ok(Self { fc1: linear(PIXELS, HIDDEN, vb.pp("fc1"))?, fc2: linear(HIDDEN, DIGITS, vb.pp("fc2"))? })
    }

    fn forward(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        self.fc2.forward(&self.fc1.forward(x)?.relu()?)
    }
}

/// All images, one behind the other, and what they show.
fn digits() -> anyhow::Result<(Tensor, Tensor)> {
    let mut text = String::new();
    let packed = &include_bytes!("../../digits/data/digits.csv.gz")[..];
    flate2::read::GzDecoder::new(packed).read_to_string(&mut text)?;
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let values: Vec<u32> = line.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let (label, image) = values.split_last().context("an empty line")?;
        pixels.extend(image.iter().map(|&value| value as f32 / 16.0));
        labels.push(*label);
    }
    let images = labels.len();
    let pixels = Tensor::from_vec(pixels, (images, PIXELS), &Device::Cpu)?;
    Ok((pixels, Tensor::from_vec(labels, images, &Device::Cpu)?))
}

/// A number that tells different weights apart: of their bytes, in the order of their names.
fn checksum(varmap: &VarMap) -> anyhow::Result<u64> {
    let vars = varmap.data().lock().expect("nobody has panicked");
    let mut names: Vec<_> = vars.keys().collect();
    names.sort_unstable();
    let mut crc = flate2::Crc::new();
    for name in names {
        let values: Vec<f32> = vars[name].flatten_all()?.to_vec1()?;
        values.iter().for_each(|value| crc.update(&value.to_le_bytes()));
    }
    Ok(crc.sum().into())
}

fn main() -> anyhow::Result<()> {
    let group = phalanx::init()?;
    let (rank, ranks) = (group.rank(), group.world_size());
    let (images, labels) = digits()?;
    let varmap = VarMap::new();
    let model = Mlp::new(&VarBuilder::from_varmap(&varmap, DType::F32, &Device::Cpu))?;
    let ddp = DistributedDataParallel::new(&varmap, &group, DdpConfig::default().overlap(Overlap::Off))?;
    let mut optimizer = SGD::new(varmap.all_vars(), LEARNING_RATE)?;

    let mine = BATCH / ranks;
    for _ in 0..EPOCHS {
        for batch in 0..images.dim(0)? / BATCH {
            let at = batch * BATCH + rank * mine;
            let (x, y) = (images.narrow(0, at, mine)?, labels.narrow(0, at, mine)?);
            let loss = cross_entropy(&model.forward(&x)?, &y)?;
            optimizer.step(&ddp.backward(&loss)?)?;
        }
    }

    let right = model.forward(&images)?.argmax(D::Minus1)?.eq(&labels)?.to_dtype(DType::F32)?.mean_all()?;
    let accuracy = 100.0 * right.to_scalar::<f32>()?;
    let mut checksums = vec![0; ranks];
    group.all_gather(&[checksum(&varmap)?], &mut checksums)?;
    println!("rank {rank} of {ranks}, Rust and candle: accuracy {accuracy:.2} %, weights {checksums:08x?}");
    anyhow::ensure!(checksums.iter().all(|&sum| sum == checksums[0]), "the ranks have different weights");

    // One rank writes the weights, and every rank, in either language, loads them.
    let file = std::env::temp_dir().join(format!("mixed-{}.safetensors", std::env::var("PHALANX_JOB_ID")?));
    if rank == 0 {
        varmap.save(&file)?;
    }
    group.barrier()?;
    let mut loaded = varmap.clone();
    loaded.load(&file)?;
    anyhow::ensure!(checksum(&loaded)? == checksums[0], "the file holds other weights");
    group.barrier()?;
    if rank == 0 {
        std::fs::remove_file(&file)?;
    }
    group.finalize()?;
    Ok(())
}
