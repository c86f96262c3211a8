//! Where the secret of a job is, and where it is not.

#![cfg(target_os = "linux")]

mod support;

use phalanx::launch::Outcome;
use phalanx::{Config, Error, ReduceOp};
use std::path::{Path, PathBuf};
use std::time::Duration;

const RANKS: usize = 2;

/// A rank that says all it can: every log line there is, what its things look like, and an error.
#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    if support::role().is_none() {
        return;
    }
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(std::io::stderr)
        .init();
    let folder = PathBuf::from(std::env::var_os("TMPDIR").expect("the test set it"));
    let config = Config::from_env().expect("the launcher set it");
    let group = phalanx::join(&config).expect("the ranks come together");
    let mut sum = [1u32];
    group.all_reduce(&mut sum, ReduceOp::Sum).expect("nothing is wrong");
    support::say("debug", format!("{config:?} {group:?}"));
    let vain = group.recv_timeout(&mut sum, 1 - group.rank(), 9, Duration::from_millis(1)).unwrap_err();
    assert!(matches!(vain, Error::NoMessage { .. }), "{vain}");
    support::say("error", format!("{vain} {vain:?}"));
    group
        .dump_trace(folder.join("traces").join(group.rank().to_string()))
        .expect("the folder can be written");
    support::say("up", group.describe());
    while !folder.join("stop").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    group.finalize().expect("nothing is wrong");
}

/// The secret as the environment of a process has it: for its owner and root to read.
fn secret_of(pid: u32) -> String {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("it runs and is ours");
    let mut variables = environment.split(|byte| *byte == 0);
    let secret = variables.find_map(|v| v.strip_prefix(b"PHALANX_SECRET=")).expect("the launcher set it");
    String::from_utf8(secret.to_vec()).expect("it is text")
}

fn contains(path: &Path, secret: &str) -> bool {
    std::fs::read(path).is_ok_and(|bytes| bytes.windows(secret.len()).any(|w| w == secret.as_bytes()))
}

#[test]
fn the_secret_is_in_no_argument_log_error_or_trace() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let traces = folder.path().join("traces");
    std::fs::create_dir(&traces).expect("the folder can be written");
    let (launch, output) = support::job("talk", RANKS, folder.path());
    let launch = launch.env("PHALANX_ENCRYPT", "1").env("PHALANX_BACKEND", "tcp");
    let described = format!("{launch:?}");
    let running = launch.spawn().expect("the job starts");
    output.wait_for("up", RANKS);
    let secret = secret_of(running.pids()[0]);
    assert_eq!(secret.len(), 64);
    assert!(!format!("{described} {running:?}").contains(&secret));

    let mut seen = 0;
    for process in std::fs::read_dir("/proc").expect("this is Linux").flatten() {
        let arguments = process.path().join("cmdline");
        seen += usize::from(arguments.exists());
        assert!(!contains(&arguments, &secret), "{}", arguments.display());
    }
    assert!(seen > RANKS);

    std::fs::write(folder.path().join("stop"), "").expect("the folder can be written");
    let outcome = support::finish(running);
    assert!(matches!(outcome, Outcome::Success), "{outcome}\n{}", output.text());
    let text = output.text();
    assert!(text.contains("DEBUG") && text.contains("planned"), "the ranks logged");
    assert!(text.contains("Secret(hidden)"), "the configuration was shown");
    assert!(!text.contains(&secret), "in the output of the ranks");
    let written: Vec<_> = std::fs::read_dir(&traces).expect("it is there").flatten().collect();
    assert_eq!(written.len(), RANKS);
    assert!(written.iter().all(|file| !contains(&file.path(), &secret)), "in a trace");
}
