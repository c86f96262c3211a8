//! The digits on several ranks: `digits --ranks 2` starts two copies of itself, which train one model together.
//!
//! `plain.rs` is the same program before it was distributed; `train.rs` shows what had to change.
#![allow(clippy::print_stderr, reason = "a program talks to its user")]

mod device;
mod elastic;
mod losses;
mod saving;
mod train;

use clap::Parser;
use device::Place;
use digits_common::cli::Options;
use examples_common::{progress, show_warnings};
use phalanx::Config;
use phalanx::config::Source;
use phalanx::launch::{Elastic, Launch, Outcome};
use saving::Saving;
use std::process::ExitCode;

/// Trains a small convolutional network on handwritten digits, on several ranks that this program starts itself.
///
/// Started by a launcher (`phalanx run`, torchrun), it is one of the launcher's ranks instead.
#[derive(Debug, Parser)]
struct Cli {
    /// Processes to train with.
    #[arg(long, default_value_t = 2)]
    ranks: usize,

    /// Train with MAX processes; replace those that are lost, and go on while MIN are left.
    #[arg(long, value_name = "MIN:MAX", conflicts_with = "ranks")]
    elastic: Option<Elastic>,

    /// Kill so many of them on the way, to see that the training goes on.
    #[arg(long, value_name = "N", requires = "elastic", default_value_t = 0)]
    lose: usize,

    /// Where to train: cpu, cuda for the GPU that is a rank's own, or cuda:N for a certain one.
    #[arg(long, default_value = "cpu", conflicts_with = "elastic")]
    device: Place,

    #[command(flatten)]
    saving: Saving,

    #[command(flatten)]
    options: Options,
}

fn main() -> anyhow::Result<ExitCode> {
    let Cli { ranks, elastic, lose, device, saving, options } = Cli::parse();
    show_warnings();
    let config = Config::from_env()?;
    if config.source != Source::Alone {
        match config.elastic {
            Some(_) => elastic::train(&options)?,
            None => device.train(&options, &saving)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let ranks = elastic.map_or(ranks, Elastic::max);
    anyhow::ensure!(
        ranks <= options.batch_size,
        "a batch of {} is too small for {ranks} ranks",
        options.batch_size
    );
    let mut launch = Launch::new(std::env::current_exe()?).args(std::env::args_os().skip(1)).ranks(ranks);
    if let Some(size) = elastic {
        launch = launch.elastic(size).max_restarts(lose + 3 * size.max());
    }
    let (stdout, stderr) = progress::relays();
    let seen = stdout.seen();
    if stdout.draws() || lose > 0 {
        launch = launch.env(progress::RELAY, "1").output(stdout, stderr);
    }
    let outcome = if lose == 0 {
        launch.run()?
    } else {
        let running = launch.spawn()?;
        losses::kill_some(&running, lose, &seen, options.seed);
        running.wait()?
    };
    if let Outcome::Failure(failure) = &outcome {
        eprintln!("{failure}");
    }
    Ok(ExitCode::from(u8::try_from(outcome.exit_code()).unwrap_or(1)))
}
