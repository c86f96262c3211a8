//! The fuzz targets under libFuzzer, one after the other, and what is kept of their inputs.

use crate::command::outcome;
use crate::corpus;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{fs, io};

/// All of them.
const TARGETS: [&str; 7] = ["handshake", "frames", "store", "control", "files", "launchers", "hosts"];

/// What to run, and for how long.
#[derive(Debug, clap::Args)]
pub(crate) struct Fuzz {
    /// One of handshake, frames, store, control, files; all, if none is named.
    #[arg(value_parser = TARGETS)]
    target: Option<String>,
    /// Time for each target.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Add these inputs to the kept ones of the target, and run nothing.
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "target")]
    keep: Vec<PathBuf>,
    /// Keep only inputs that reach code which no other does, of the kept and the found ones, and run nothing more.
    #[arg(long, conflicts_with = "keep")]
    minimise: bool,
}

/// Where things lie.
struct Paths {
    root: PathBuf,
    built: PathBuf,
}

impl Paths {
    fn archive(&self, target: &str) -> PathBuf {
        self.root.join(format!("fuzz/corpus/{target}.tar.gz"))
    }

    /// What the archive holds, for libFuzzer.
    fn kept(&self, target: &str) -> PathBuf {
        self.built.join("fuzz-corpus/kept").join(target)
    }

    /// What is found on top.
    fn found(&self, target: &str) -> PathBuf {
        self.built.join("fuzz-corpus").join(target)
    }

    fn cargo_fuzz(&self, what: &str) -> Command {
        let mut cargo = cargo_fuzz();
        // Without sanitizers: there is nothing for them where no code is unsafe, and so the stable compiler does.
        cargo
            .current_dir(&self.root)
            .args([what, "--sanitizer", "none", "--target-dir"])
            .arg(self.built.join("fuzz"));
        // It would take minutes more to build.
        cargo.env("CARGO_PROFILE_RELEASE_LTO", "off");
        cargo
    }
}

fn cargo_fuzz() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.arg("fuzz");
    cargo
}

/// Begins with the kept inputs; what is found on top goes to the folder for what is built.
pub(crate) fn run(flags: &Fuzz) -> ExitCode {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned();
    let built = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let paths = Paths { root, built };
    if let (Some(target), false) = (&flags.target, flags.keep.is_empty()) {
        return told(corpus::add(&paths.archive(target), &flags.keep));
    }
    if !cargo_fuzz().arg("--version").output().is_ok_and(|said| said.status.success()) {
        return told(Err(io::Error::other(
            "cargo-fuzz is not installed. Get it by: cargo install cargo-fuzz (it needs a C++ compiler)",
        )));
    }
    for target in TARGETS.into_iter().filter(|name| flags.target.as_deref().is_none_or(|one| one == *name)) {
        let done =
            if flags.minimise { minimise(&paths, target) } else { search(&paths, target, flags.seconds) };
        if done.is_err() {
            return told(done);
        }
    }
    ExitCode::SUCCESS
}

/// Runs `target` on the kept inputs and on what it makes of them.
fn search(paths: &Paths, target: &str, seconds: u64) -> io::Result<()> {
    let (kept, found) = (paths.kept(target), paths.found(target));
    corpus::unpack(&paths.archive(target), &kept)?;
    fs::create_dir_all(&found)?;
    let mut fuzz = paths.cargo_fuzz("run");
    fuzz.arg(target).arg(found).arg(kept);
    fuzz.args(["--", "-max_len=2048", "-timeout=60", "-rss_limit_mb=2048"]);
    fuzz.arg(format!("-max_total_time={seconds}"));
    succeed(fuzz)
}

/// Makes the archive anew of those kept and found inputs that reach code which no other of them does.
fn minimise(paths: &Paths, target: &str) -> io::Result<()> {
    let (kept, found) = (paths.kept(target), paths.found(target));
    corpus::unpack(&paths.archive(target), &kept)?;
    fs::create_dir_all(&found)?;
    for entry in fs::read_dir(&found)? {
        let entry = entry?;
        fs::copy(entry.path(), kept.join(entry.file_name()))?;
    }
    let mut fuzz = paths.cargo_fuzz("cmin");
    fuzz.arg(target).arg(&kept);
    succeed(fuzz)?;
    corpus::pack(&kept, &paths.archive(target))
}

fn succeed(command: Command) -> io::Result<()> {
    match outcome(command) {
        code if code == ExitCode::SUCCESS => Ok(()),
        _ => Err(io::Error::other("cargo-fuzz failed")),
    }
}

#[expect(clippy::print_stderr, reason = "a command reports to its user")]
fn told(done: io::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fuzz: {error}");
            ExitCode::FAILURE
        }
    }
}
