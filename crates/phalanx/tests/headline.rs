//! However a rank fails its job, the launcher's report and exit code are that rank's, and not those of the first that failed of it.

#![cfg(target_os = "linux")]

mod support;

use phalanx::ReduceOp;
use phalanx::launch::{ExitKind, Failure, NamedBy, Outcome};
use rustix::process::{Signal, getpid, kill_process};
use std::time::Duration;

const WORDS: &str = "out of ideas, at last";

#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    let Some(role) = support::role() else { return };
    let (harm, victim) = role.rsplit_once(" ").expect("what is done, and by whom");
    let victim: usize = victim.parse().expect("a rank");
    if harm == "absent" && std::env::var("PHALANX_RANK").expect("a launcher started it") == victim.to_string()
    {
        std::process::exit(0);
    }
    let group = match phalanx::init() {
        Ok(group) => group,
        Err(error) => end(&error),
    };
    let mut buffer = vec![1.0f32; 1 << 12];
    for step in 0.. {
        if step == 20 && group.rank() == victim {
            match harm {
                "panic" => panic!("{WORDS}"),
                "exit 0" => std::process::exit(0),
                "exit 3" => std::process::exit(3),
                "kill" => drop(kill_process(getpid(), Signal::KILL)),
                "hang" => std::thread::sleep(Duration::from_secs(120)),
                "stop" => drop(kill_process(getpid(), Signal::STOP)),
                "mismatch" => match group.barrier() {
                    Ok(()) => panic!("it matches nothing"),
                    Err(error) => end(&error),
                },
                other => panic!("{other}?"),
            }
        }
        if let Err(error) = group.all_reduce(&mut buffer, ReduceOp::Avg) {
            end(&error);
        }
    }
}

#[allow(clippy::print_stderr, reason = "the launcher quotes it")]
fn end(error: &phalanx::Error) -> ! {
    eprintln!("{error}");
    std::process::exit(1)
}

/// How a job ends of what `victim` does.
fn fail(harm: &str, victim: usize, ranks: usize, backend: &str) -> Failure {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (launch, output) = support::job(&format!("{harm} {victim}"), ranks, folder.path());
    let launch = launch
        .env("PHALANX_BACKEND", backend)
        .env("RUST_BACKTRACE", "1")
        .env("PHALANX_TIMEOUT_S", if harm == "hang" { "3" } else { "60" })
        .env("PHALANX_INIT_TIMEOUT_S", if harm == "absent" { "4" } else { "60" })
        .env("PHALANX_HEARTBEAT_TIMEOUT_S", if harm == "stop" { "3" } else { "30" })
        .grace(Duration::from_secs(2));
    match launch.run().expect("the job starts") {
        Outcome::Failure(failure) => *failure,
        other => panic!("{harm} {victim} of {ranks}, {backend}: {other}\n{}", output.text()),
    }
}

/// Rounds with other sizes, victims and backends: what each victim does makes it the one who is named.
fn named(harm: &str, exit: ExitKind, code: i32, headline: &str) {
    for (ranks, victim, backend) in [(2, 1, "tcp"), (3, 0, "shm"), (4, 2, "tcp"), (5, 3, "shm")] {
        let failure = fail(harm, victim, ranks, backend);
        let report = failure.to_string();
        let found = (failure.rank, failure.exit, failure.exit_code, failure.named_by);
        assert_eq!(found, (victim, exit, code, NamedBy::Ranks), "{report}");
        let first = report.lines().next().expect("a report is not empty");
        assert!(first.starts_with(&format!("rank {victim} of {ranks} (pid {})", failure.pid)), "{report}");
        assert!(first.contains(headline), "{report}");
        let cause = report.lines().nth(1).expect("a second line");
        assert!(
            cause.starts_with("  first cause: ") && cause.contains(&format!("rank {victim} (")),
            "{report}"
        );
        if harm == "panic" {
            let words = report.lines().filter(|line| line.contains(WORDS)).count();
            assert_eq!(words, 1, "{report}");
        }
    }
}

#[test]
fn a_rank_that_panics() {
    named("panic", ExitKind::Code(101), 101, ") exited with code 101 after ");
}

#[test]
fn a_rank_that_exits_with_0() {
    named("exit 0", ExitKind::Code(0), 1, " s, while the others still needed it");
}

#[test]
fn a_rank_that_exits_with_3() {
    named("exit 3", ExitKind::Code(3), 3, ") exited with code 3 after ");
}

#[test]
fn a_rank_that_is_killed() {
    named("kill", ExitKind::Signal(9), 137, ") was killed by SIGKILL after ");
}

#[test]
fn a_rank_that_hangs() {
    named("hang", ExitKind::StillRunning, 1, " s, when the others gave it up");
}

#[test]
fn a_rank_that_is_stopped() {
    named("stop", ExitKind::StillRunning, 1, " s, when the others gave it up");
}

#[test]
fn nobody_where_ranks_disagree() {
    for (ranks, victim, backend) in [(2, 1, "tcp"), (4, 2, "shm")] {
        let failure = fail("mismatch", victim, ranks, backend);
        let report = failure.to_string();
        assert_eq!((failure.named_by, failure.exit_code), (NamedBy::Nobody, 1), "{report}");
        let first = report.lines().next().expect("a report is not empty");
        assert!(first.starts_with("no single rank is at fault: "), "{report}");
        assert_eq!(first.matches("headline.rs:").count(), 2, "both call sites: {report}");
    }
}

#[test]
fn a_rank_that_leaves_before_init() {
    let failure = fail("absent", 2, 3, "tcp");
    let found = (failure.rank, failure.exit, failure.exit_code, failure.named_by);
    assert_eq!(found, (2, ExitKind::Code(0), 1, NamedBy::Ranks), "{failure}");
}
