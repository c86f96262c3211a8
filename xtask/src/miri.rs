//! What touches memory by pointers, under Miri, which sees each byte that is touched beyond what may be: spans, windows, slots and pipes of
//! shared memory, and the kernels.

use crate::command::outcome;
use std::process::{Command, ExitCode, Stdio};

/// What has no mapping of a file, no futex and no process in it, and is quick. Its spans are copied and combined by the kernels; that crate's own
/// tests need the whole workspace to be built.
const TESTS: [&str; 6] = ["span::", "window::", "pipe::", "lease::", "plan::", "region::tests::every_slot"];

/// Where no Miri can be had, that is said, and nothing has failed.
pub(crate) fn run() -> ExitCode {
    let can_be_had = is_there() || (add() && is_there());
    if !can_be_had {
        #[expect(clippy::print_stderr, reason = "a command reports to its user")]
        {
            eprintln!(
                "skipped: Miri. No nightly toolchain here has it: rustup toolchain install nightly --component miri,rust-src"
            );
        }
        return ExitCode::SUCCESS;
    }
    let mut cargo = nightly();
    cargo.args(["miri", "test", "--locked", "--package", "phalanx-shm", "--lib", "--"]).args(TESTS);
    // Addresses are told to other processes. And a backtrace takes Miri seconds, where a test panics on purpose.
    cargo.env("MIRIFLAGS", "-Zmiri-permissive-provenance").env("RUST_BACKTRACE", "0");
    outcome(cargo)
}

fn nightly() -> Command {
    let mut cargo = Command::new("rustup");
    cargo.args(["run", "nightly", "cargo"]);
    cargo
}

fn is_there() -> bool {
    let mut said = nightly();
    said.args(["miri", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    outcome(said) == ExitCode::SUCCESS
}

fn add() -> bool {
    let mut rustup = Command::new("rustup");
    rustup.args(["component", "add", "--toolchain", "nightly", "miri", "rust-src"]);
    outcome(rustup) == ExitCode::SUCCESS
}
