//! The flags that both programs understand.

use std::path::PathBuf;

/// How to train, and where to put the results.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Times to go through the training images.
    #[arg(long, default_value_t = 15)]
    pub epochs: u64,

    /// Images per step, all ranks together.
    #[arg(long, default_value_t = 32, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1437))]
    pub batch_size: usize,

    /// Decides the initial weights and the order of the images.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Learning rate.
    #[arg(long, default_value_t = 0.05)]
    pub lr: f64,

    /// Where to draw the loss curve.
    #[arg(long, value_name = "FILE", default_value = "digits-loss.svg")]
    pub plot: PathBuf,

    /// Where to write the results for other programs to read.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}
