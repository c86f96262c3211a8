//! The command `phalanx`.

mod algo;
mod bench;
mod cli;
mod complaint;
mod hosts;
mod link;
mod run;
mod simulate;
mod trace;
mod tune;

use clap::Parser;
use cli::{Cli, Command};
use complaint::complain;
use phalanx_launch::exit_code;
use std::io::{IsTerminal, Write};
use tracing_subscriber::EnvFilter;

fn main() {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_env("PHALANX_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        // It would say with `eprintln!` that stderr is broken, which panics. A pipe may only be full, or be read again, and who logs has
        // more to do: one thread shows what the ranks write, others answer them at the launcher's store.
        .log_internal_errors(false)
        .init();
    let done = match cli.command {
        Command::Run(flags) => run::run(flags),
        Command::Agent => run::agent(),
        Command::Bench(flags) => bench::run(&flags),
        Command::Tune => tune::run().map(|text| say(&text)),
        Command::Simulate(flags) => simulate::text(&flags).map(|text| say(&text)),
        Command::Algo(command) => algo::text(command).map(|text| say(&text)),
        Command::Trace(flags) => trace::text(&flags).map(|text| say(&text)),
    };
    std::process::exit(done.unwrap_or_else(|error| {
        complain(&error);
        exit_code(&error)
    }));
}

/// Prints to stdout. A reader that has left (`| head`) is no failure.
fn say(text: &str) -> i32 {
    let _ = std::io::stdout().write_all(text.as_bytes());
    0
}
