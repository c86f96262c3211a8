//! The digits on several ranks: `digits --ranks 2` starts two copies of itself, which train one model together.
//!
//! `plain.rs` is the same program before it was distributed; `train.rs` shows what had to change.
#![allow(clippy::print_stderr, reason = "a program talks to its user")]

mod train;

use clap::Parser;
use digits_common::cli::Options;
use digits_common::progress;
use phalanx::Config;
use phalanx::Source;
use phalanx::launch::{Launch, Outcome};
use std::process::ExitCode;

/// Trains a small convolutional network on handwritten digits, on several ranks that this program starts itself.
///
/// Started by a launcher (`phalanx run`, torchrun), it is one of the launcher's ranks instead.
#[derive(Debug, Parser)]
struct Cli {
    /// Processes to train with.
    #[arg(long, default_value_t = 2)]
    ranks: usize,

    #[command(flatten)]
    options: Options,
}

fn main() -> anyhow::Result<ExitCode> {
    let Cli { ranks, options } = Cli::parse();
    let config = Config::from_env()?;
    if config.source != Source::Alone {
        train::train(&options)?;
        return Ok(ExitCode::SUCCESS);
    }
    anyhow::ensure!(
        ranks <= options.batch_size,
        "a batch of {} is too small for {ranks} ranks",
        options.batch_size
    );
    let mut launch = Launch::new(std::env::current_exe()?).args(std::env::args_os().skip(1)).ranks(ranks);
    if let Some((stdout, stderr)) = progress::relays() {
        launch = launch.env(progress::RELAY, "1").output(stdout, stderr);
    }
    let outcome = launch.run()?;
    if let Outcome::Failure(failure) = &outcome {
        eprintln!("{failure}");
    }
    Ok(ExitCode::from(u8::try_from(outcome.exit_code()).unwrap_or(1)))
}
