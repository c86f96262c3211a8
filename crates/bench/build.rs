//! Tells the benchmark which compiler and which commit it was made of: they stand beside its figures.

use std::process::Command;

fn main() {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let commit = output("git", &["rev-parse", "--short", "HEAD"]);
    println!("cargo:rustc-env=BENCH_COMPILER={}", output(&rustc, &["--version"]));
    println!("cargo:rustc-env=BENCH_COMMIT={commit}");
    println!("cargo:rerun-if-changed=build.rs");
    // It changes with every commit and checkout. Without a repository there is nothing to watch.
    let log = output("git", &["rev-parse", "--git-path", "logs/HEAD"]);
    if std::path::Path::new(&log).exists() {
        println!("cargo:rerun-if-changed={log}");
    }
}

/// What a command says, or `unknown`.
fn output(program: &str, args: &[&str]) -> String {
    let done = Command::new(program).args(args).output().ok().filter(|done| done.status.success());
    done.map_or_else(|| "unknown".into(), |done| String::from_utf8_lossy(&done.stdout).trim().to_owned())
}
