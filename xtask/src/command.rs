//! Runs another command to its end.

use std::process::{Command, ExitCode};

/// What a command says of itself, as what this one says.
pub(crate) fn outcome(mut command: Command) -> ExitCode {
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
