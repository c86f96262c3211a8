//! The front door for developers: `cargo xtask check`, `test`, `tidy`, `ci`.

mod tidy;

use clap::Parser;
use std::process::{Command, ExitCode};

/// Everything a developer does here often.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
enum Task {
    /// Format, lints, docs, tidiness: cheapest first, without running tests.
    Check,
    /// All tests.
    Test,
    /// What compilers don't check: which crate may use which, where unsafe code may stand, what the README must name.
    Tidy,
    /// Licences and advisories of dependencies (needs cargo-deny).
    Deny,
    /// The documentation, opened in a browser.
    Doc,
    /// What CI runs.
    Ci,
}

fn main() -> ExitCode {
    let steps: &[&[&str]] = match Task::parse() {
        Task::Check => &[
            &["fmt", "--all", "--check"],
            &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
            &["doc", "--workspace", "--no-deps"],
            &["xtask", "tidy"],
        ],
        Task::Test => &[&["test", "--workspace"]],
        Task::Tidy => return tidy::run(),
        Task::Deny => &[&["deny", "check"]],
        Task::Doc => &[&["doc", "--workspace", "--no-deps", "--open"]],
        Task::Ci => return outcome(Command::new(".ci/run")),
    };
    for step in steps {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(*step).env("RUSTDOCFLAGS", "-D warnings");
        if outcome(cargo) != ExitCode::SUCCESS {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn outcome(mut command: Command) -> ExitCode {
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
