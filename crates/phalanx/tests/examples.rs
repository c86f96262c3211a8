//! The examples run as real jobs of two and three processes.

use phalanx::launch::{Launch, Outcome};
use std::path::PathBuf;
use std::time::Duration;

/// The built example `name`: cargo builds them with the tests, beside the tests' own folder.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    let profile = test.parent().and_then(|deps| deps.parent()).expect("target/<profile>/deps/<test>");
    profile.join("examples").join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
}

/// Runs the example as `ranks` processes; returns the lines they wrote, sorted.
fn lines(name: &str, ranks: usize) -> Vec<String> {
    lines_of(Launch::new(example(name)), ranks)
}

fn lines_of(launch: Launch, ranks: usize) -> Vec<String> {
    let logs = tempfile::tempdir().expect("a temporary folder");
    let outcome = launch
        .ranks(ranks)
        .log_dir(logs.path())
        .job_id("test")
        .timeout(Some(Duration::from_secs(120)))
        .run()
        .expect("the job starts");
    assert!(matches!(outcome, Outcome::Success), "{outcome}");
    let log = |rank: usize| logs.path().join(format!("test/attempt_0/{rank}/stdout.log"));
    let mut lines: Vec<String> = (0..ranks)
        .flat_map(|rank| {
            std::fs::read_to_string(log(rank))
                .expect("each rank has a log")
                .lines()
                .map(String::from)
                .collect::<Vec<_>>()
        })
        .collect();
    lines.sort();
    lines
}

#[test]
fn hello() {
    assert_eq!(
        lines("hello", 3),
        [0, 1, 2].map(|rank| format!("hello from rank {rank} of 3; the ranks add up to 3"))
    );
    assert_eq!(lines("hello", 2).len(), 2);
}

#[test]
fn split_groups() {
    assert_eq!(lines("split_groups", 3), ["products by rank: [3, 2, 3]"]);
    assert_eq!(lines("split_groups", 2), ["products by rank: [1, 2]"]);
}

#[test]
fn pipeline() {
    assert_eq!(lines("pipeline", 2), ["after one round: [3, 3, 3, 3]"]);
    assert_eq!(lines("pipeline", 3), ["after one round: [6, 6, 6, 6]"]);
}

/// The waits end at once, and not when their ten minutes are over.
#[test]
#[cfg(target_os = "linux")]
fn ranks_that_wait_for_each_other_are_told_at_once() {
    let circle = |way: &str, ranks: usize, backend: &str| {
        lines_of(Launch::new(example("circle")).args([way]).env("PHALANX_BACKEND", backend), ranks)
    };
    for backend in ["shm", "tcp"] {
        for (way, ranks, words) in [
            ("send", 2, "rank 0 waits in send to rank 1 with tag 3 (crates/phalanx/examples/circle.rs:"),
            ("send", 3, "), which waits in send to rank 2 with tag 3 (crates/phalanx/examples/circle.rs:"),
            ("recv", 2, "), which waits in recv from rank 0 with tag 3 (crates/phalanx/examples/circle.rs:"),
            ("mixed", 2, "rank 0 waits in barrier #2 for rank 1 (crates/phalanx/examples/circle.rs:"),
        ] {
            let said = circle(way, ranks, backend);
            assert!(said.iter().all(|line| line.contains(words)), "{way} over {backend}: {said:?}");
        }
        assert_eq!(circle("patient", 2, backend), ["rank 0 is done", "rank 1 is done"]);
    }
}

/// Ten million of these are run by hand: see `docs/design/stress.md`.
#[test]
fn stress() {
    for (ranks, operations) in [(2, "12000"), (3, "5000"), (5, "3000")] {
        let mut launch = Launch::new(example("stress")).args([operations, "7"]);
        if cfg!(target_os = "linux") {
            launch = launch.env("PHALANX_BACKEND", "shm");
        }
        let said = lines_of(launch, ranks).join("\n");
        assert!(said.ends_with(", 0 wrong") && said.contains(&format!("{operations} operations")), "{said}");
        assert!(!cfg!(target_os = "linux") || said.contains("over shm"), "{said}");
    }
}
