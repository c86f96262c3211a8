//! A small transformer learns to write like Shakespeare, on several ranks: `shakespeare --ranks 2` starts two copies of itself,
//! which train one model together, in the way that the flags say.
#![allow(clippy::print_stderr, reason = "a program talks to its user")]

mod flags;
mod model;
mod rate;
mod report;
mod text;
mod train;
mod trainer;
mod write;

use clap::Parser;
use examples_common::{progress, show_warnings};
use flags::Flags;
use phalanx::Config;
use phalanx::config::Source;
use phalanx::launch::{Launch, Outcome};
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let flags = Flags::parse();
    show_warnings();
    flags.check()?;
    if Config::from_env()?.source != Source::Alone {
        train::train(&flags)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (ranks, batch_size) = (flags.ranks, flags.batch_size);
    anyhow::ensure!(ranks <= batch_size, "a batch of {batch_size} is too small for {ranks} ranks");
    let mut launch = Launch::new(std::env::current_exe()?).args(std::env::args_os().skip(1)).ranks(ranks);
    let (stdout, stderr) = progress::relays();
    if stdout.draws() {
        launch = launch.env(progress::RELAY, "1").output(stdout, stderr);
    }
    let outcome = launch.run()?;
    if let Outcome::Failure(failure) = &outcome {
        eprintln!("{failure}");
    }
    Ok(ExitCode::from(u8::try_from(outcome.exit_code()).unwrap_or(1)))
}
