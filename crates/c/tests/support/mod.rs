//! C programs, compiled against the header and the library as users do, and run as jobs.

use phalanx::launch::{Launch, Outcome};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A file of this package.
pub(crate) fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Where cargo has put the libraries, which it builds before the tests of their package.
pub(crate) fn libraries() -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    test.parent().expect("it lies in a folder").to_owned()
}

/// A compiler for C, or what `name` says instead.
pub(crate) fn compiler(name: &str, usual: &str) -> Command {
    Command::new(std::env::var(name).unwrap_or_else(|_| usual.into()))
}

/// The program of `source`, linked with the shared library.
pub(crate) fn compiled(source: &str, folder: &Path) -> PathBuf {
    let program = folder.join("program");
    let libraries = libraries();
    let mut cc = compiler("CC", "cc");
    // `__FILE__` is the name that the compiler is given.
    cc.current_dir(file(""));
    cc.args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", "-I"]).arg(file("include"));
    cc.arg(source).arg("-L").arg(&libraries).arg("-lphalanx_c").arg("-lm");
    cc.arg("-o").arg(&program);
    done(cc);
    program
}

/// Runs a compiler, which must say nothing.
#[track_caller]
pub(crate) fn done(mut compiler: Command) {
    let output = compiler.output().expect("there is a C compiler, as Rust needs one to link");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{compiler:?}: {}\n{}", output.status, String::from_utf8_lossy(&said));
}

/// Runs `program` as so many ranks. Returns what each wrote to standard output.
#[track_caller]
pub(crate) fn job(program: &Path, arguments: &[&str], ranks: usize, backend: &str) -> Vec<String> {
    let logs = tempfile::tempdir().expect("a temporary folder");
    let launch = Launch::new(program).args(arguments).ranks(ranks).log_dir(logs.path()).job_id("test");
    let launch = launch.output(std::io::sink(), std::io::sink());
    // Cargo's own search path has the folder of `cargo build` too, where an older library may lie.
    let launch = launch.env("LD_LIBRARY_PATH", libraries());
    let launch = launch.env("PHALANX_BACKEND", backend).timeout(Some(Duration::from_secs(120)));
    let outcome = launch.run().expect("the job starts");
    let said = |rank: usize, stream: &str| {
        let log = logs.path().join(format!("test/attempt_0/{rank}/{stream}.log"));
        std::fs::read_to_string(log).unwrap_or_default()
    };
    let complaints: Vec<String> = (0..ranks).map(|rank| said(rank, "stderr")).collect();
    assert!(matches!(outcome, Outcome::Success), "{outcome}: {complaints:?}");
    (0..ranks).map(|rank| said(rank, "stdout")).collect()
}
