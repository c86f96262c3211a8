//! The digits with tch on several ranks: `digits-tch --ranks 2` trains one model on two threads of this process, and a launcher
//! (`phalanx run -n 2`) on as many processes.

mod model;
mod train;

use clap::Parser;
use examples_common::digits::cli::Options;
use examples_common::show_warnings;
use phalanx::Config;
use phalanx::config::Source;

/// Trains a small convolutional network of tch on handwritten digits, on several ranks, which are threads of this process.
///
/// Started by a launcher (`phalanx run`, torchrun), it is one of the launcher's ranks instead.
#[derive(Debug, Parser)]
struct Cli {
    /// Threads to train with.
    #[arg(long, default_value_t = 2, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    ranks: usize,

    #[command(flatten)]
    options: Options,
}

fn main() -> anyhow::Result<()> {
    let Cli { ranks, options } = Cli::parse();
    show_warnings();
    if Config::from_env()?.source != Source::Alone {
        let group = phalanx::init()?;
        train::train(&group, &options)?;
        return Ok(group.finalize()?);
    }
    let options = &options;
    std::thread::scope(|scope| {
        let start = |group| scope.spawn(move || train::train(&group, options));
        let ranks: Vec<_> = phalanx::threads(ranks).into_iter().map(start).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().expect("no rank panics"))
    })
}
