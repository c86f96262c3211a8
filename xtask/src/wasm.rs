//! The crates that know no clock, thread, socket or file are checked for a machine that has none: `wasm32-unknown-unknown`. What needs a system
//! does not compile there, or not what depends on it.

use crate::command::outcome;
use crate::tidy::PURE;
use std::process::{Command, ExitCode, Stdio};

const TARGET: &str = "wasm32-unknown-unknown";

/// Where the target can't be had, that is said, and nothing has failed.
pub(crate) fn run() -> ExitCode {
    let can_be_had = is_there() || (add() && is_there());
    if !can_be_had {
        #[expect(clippy::print_stderr, reason = "a command reports to its user")]
        {
            eprintln!("skipped: the check for {TARGET}. It is not here: rustup target add {TARGET}");
        }
        return ExitCode::SUCCESS;
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["check", "--locked", "--target", TARGET]);
    cargo.args(PURE.iter().flat_map(|name| ["--package".to_owned(), format!("phalanx-{name}")]));
    outcome(cargo)
}

/// Whether the standard library for it is installed.
fn is_there() -> bool {
    let said = Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output();
    let folder = said.ok().and_then(|said| String::from_utf8(said.stdout).ok());
    folder.is_some_and(|folder| std::path::Path::new(folder.trim()).is_dir())
}

fn add() -> bool {
    let mut rustup = Command::new("rustup");
    rustup.args(["target", "add", TARGET]).stdout(Stdio::null()).stderr(Stdio::null());
    outcome(rustup) == ExitCode::SUCCESS
}
