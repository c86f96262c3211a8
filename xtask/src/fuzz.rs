//! The fuzz targets under libFuzzer, one after the other.

use crate::command::outcome;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// All of them.
const TARGETS: [&str; 5] = ["handshake", "frames", "store", "control", "files"];

/// What to run, and for how long.
#[derive(Debug, clap::Args)]
pub(crate) struct Fuzz {
    /// One of handshake, frames, store, control, files; all, if none is named.
    #[arg(value_parser = TARGETS)]
    target: Option<String>,
    /// Time for each target.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// Begins with the kept corpus; what is found on top goes to the folder for what is built.
pub(crate) fn run(flags: &Fuzz) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace");
    let built = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let cargo = || {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(root).arg("fuzz");
        cargo
    };
    if !cargo().arg("--version").output().is_ok_and(|said| said.status.success()) {
        #[expect(clippy::print_stderr, reason = "a command reports to its user")]
        {
            eprintln!(
                "cargo-fuzz is not installed. Get it by: cargo install cargo-fuzz (it needs a C++ compiler)"
            );
        }
        return ExitCode::FAILURE;
    }
    for target in TARGETS.into_iter().filter(|name| flags.target.as_deref().is_none_or(|one| one == *name)) {
        let found = built.join("fuzz-corpus").join(target);
        let made = std::fs::create_dir_all(&found);
        let mut fuzz = cargo();
        // Without sanitizers: there is nothing for them where no code is unsafe, and so the stable compiler does.
        fuzz.args(["run", "--sanitizer", "none", "--target-dir"]).arg(built.join("fuzz")).arg(target);
        fuzz.arg(&found).arg(root.join("fuzz/corpus").join(target));
        fuzz.args(["--", "-max_len=2048", "-timeout=60", "-rss_limit_mb=2048"]);
        fuzz.arg(format!("-max_total_time={}", flags.seconds));
        // It would take minutes more to build.
        fuzz.env("CARGO_PROFILE_RELEASE_LTO", "off");
        if made.is_err() || outcome(fuzz) != ExitCode::SUCCESS {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
