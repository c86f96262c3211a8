//! The command `phalanx`.

mod advice;
mod algo;
mod bench;
mod cli;
mod complaint;
mod hosts;
mod json_report;
mod link;
mod rank_count;
mod run;
mod shell;
mod simulate;
mod trace;
mod tune;
mod words;

use clap::{CommandFactory, Parser};
use cli::{Cli, Command};
use complaint::{complain, shows_colours};
use phalanx_launch::exit_code;
use std::io::Write;
use tracing_subscriber::EnvFilter;

/// The exit code that clap has for it, too.
const WRONG_USAGE: i32 = 2;

fn main() {
    let words = words::spelled(&Cli::command(), std::env::args_os()).unwrap_or_else(|advice| {
        complain(&advice);
        std::process::exit(WRONG_USAGE);
    });
    let cli =
        Cli::try_parse_from(words).unwrap_or_else(|error| words::suggesting(&Cli::command(), error).exit());
    let filter = EnvFilter::try_from_env("PHALANX_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_target(false)
        .with_ansi(shows_colours())
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
        Command::Completions { shell } => Ok(say(&shell::completions(shell))),
        Command::Man { command } => shell::man(command.as_deref()).map(|text| say(&text)),
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
