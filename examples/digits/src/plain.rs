//! The digits in one process with nothing but candle: what `main.rs` was before it was distributed.
//!
//! With the same seed and batch size it ends at the same loss, which is how we know that the other one is right.
#![allow(clippy::print_stdout, reason = "a program talks to its user")]

use clap::Parser;
use digits_common::cli::Options;
use digits_common::model::Cnn;
use digits_common::optimizer::Sgd;
use digits_common::progress::Progress;
use digits_common::report::Report;
use digits_common::{data, plot};
use examples_common::checksum;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Trains a small convolutional network on handwritten digits in one process, without phalanx.
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
}

fn main() -> anyhow::Result<()> {
    let Options { epochs, batch_size, seed, lr, plot, json } = Cli::parse().options;
    let (train, test) = data::load()?;

    let varmap = candle_nn::VarMap::new();
    let model = Cnn::new(&varmap, seed)?;
    let mut optimizer = Sgd::new(&varmap, lr)?;

    let mut epoch_losses = Vec::new();
    let mut progress = Progress::new(epochs, train.len() / batch_size);
    for epoch in 0..epochs {
        let mut sum = 0.0;
        for (step, batch) in shuffled(train.len(), seed, epoch).chunks_exact(batch_size).enumerate() {
            let (images, labels) = train.batch(batch)?;
            let (loss, _) = model.evaluate(&images, &labels)?;
            let grads = loss.backward()?;
            optimizer.step(&grads)?;

            let loss = loss.to_scalar::<f64>()?;
            sum += loss * batch.len() as f64;
            progress.step(epoch, step, loss, batch.len());
        }
        epoch_losses.push(sum / (train.len() / batch_size * batch_size) as f64);
        progress.epoch(epoch, epoch_losses[epoch as usize]);
    }
    let seconds = progress.elapsed().as_secs_f64();

    let (images, labels) = train.all()?;
    let final_loss = model.evaluate(&images, &labels)?.0.to_scalar()?;
    let (images, labels) = test.all()?;
    let test_accuracy = model.evaluate(&images, &labels)?.1 as f64 / test.len() as f64;
    let weights = vec![checksum(&varmap)?];
    let report = Report { epoch_losses, final_loss, test_accuracy, weights, seconds };
    println!("{report}");
    plot::loss_curve(&report.epoch_losses, "digits, plain candle", &plot)?;
    println!("loss curve: {}", plot.display());
    json.map_or(Ok(()), |path| report.save(&path))
}

/// The order of an epoch, as `phalanx_candle::DistributedSampler` defines it; written a second time, because
/// this program is to owe nothing to the one it is compared with.
fn shuffled(samples: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let key = [seed, epoch, 0, 0].map(u64::to_le_bytes).concat();
    let mut random = ChaCha8Rng::from_seed(key.try_into().expect("four words are 32 bytes"));
    let mut order: Vec<usize> = (0..samples).collect();
    for i in (1..samples).rev() {
        let partner = (u128::from(random.next_u64()) * (i as u128 + 1)) >> 64;
        order.swap(i, partner as usize);
    }
    order
}
