//! Rank 0 has left, and the arbiter with it: the others see the end of each other's processes by themselves.

#![cfg(target_os = "linux")]

mod support;

use phalanx::{Config, ProcessGroup, ReduceOp};
use std::time::Duration;

/// The tag with which rank 1 tells rank 0 that its `split` has returned.
const HAS_THE_PAIR: u64 = 1;

/// Ranks 2 and 3 work on in a pair when ranks 0 and 1 have gone; then rank 3 ends without a word.
#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    let Some(role) = support::role() else { return };
    if role.starts_with("gather") {
        return gather(&role);
    }
    let group = phalanx::init().expect("all are there");
    let pair = group.split(Some(group.rank() as u32 / 2), 0).expect("all are there").expect("it has a color");
    match group.rank() {
        0 if role.ends_with("after an error") => {
            // An abort ends what rank 1 is in, and it may still be in `split`.
            pair.recv(&mut [0u8], 1, HAS_THE_PAIR).expect("rank 1 has the pair");
            pair.abort("enough");
        }
        // The abort may come before this returns.
        1 if role.ends_with("after an error") => drop(pair.send(&[0u8], 0, HAS_THE_PAIR)),
        0 | 1 => {}
        2 => wait_for_rank_3(&role, &pair),
        _ => {
            // Rank 0 may stay for two seconds.
            std::thread::sleep(Duration::from_secs(4));
            pair.all_reduce(&mut [1u64], ReduceOp::Sum).expect("the pair is well");
            support::say("left", 3);
            std::process::exit(0);
        }
    }
}

fn wait_for_rank_3(role: &str, pair: &ProcessGroup) {
    let mut sum = [1u64];
    pair.all_reduce(&mut sum, ReduceOp::Sum).expect("the pair is well, though there is no arbiter");
    support::say("sum", sum[0]);
    let outcome = if role.starts_with("message") {
        pair.recv(&mut sum, 1, 7)
    } else {
        pair.all_reduce(&mut sum, ReduceOp::Sum)
    };
    support::say("error", outcome.expect_err("rank 3 has ended"));
}

/// Ranks 0 and 1 give their parts to rank 2, and leave in order; then rank 3 ends without a word, and without its part.
fn gather(role: &str) {
    let mut config = Config::from_env().expect("everything is set");
    if role.ends_with("two hosts") {
        config.host_id = Some(format!("host {}", config.rank / 2));
    }
    let group = phalanx::join(&config).expect("all are there");
    if group.rank() == 3 {
        // Rank 0 may stay for two seconds.
        std::thread::sleep(Duration::from_secs(4));
        support::say("left", 3);
        std::process::exit(0);
    }
    let mut all = (group.rank() == 2).then_some([0u64; 4]);
    let outcome = group.gather(&[1u64], all.as_mut().map(|all| &mut all[..]), 2);
    if group.rank() == 2 {
        support::say("error", outcome.expect_err("rank 3 has ended"));
    } else {
        outcome.expect("rank 2 is there");
        support::say("gave", group.rank());
    }
}

/// What rank 2 hears. Its operations have ten minutes, and the job has two.
fn heard(role: &str) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (launch, output) = support::job(role, 4, folder.path());
    let backend = if role.contains("tcp") { "tcp" } else { "shm" };
    let backend = if role.ends_with("two hosts") { "auto" } else { backend };
    let outcome = launch.env("PHALANX_BACKEND", backend).run().expect("the job starts");
    assert!(outcome.is_success(), "{role}: {outcome}\n{}", output.text());
    if role.starts_with("gather") {
        assert_eq!([0, 1].map(|rank| output.said(rank, "gave").len()), [1, 1], "{role}: {}", output.text());
    } else {
        assert_eq!(output.said(2, "sum"), ["2"], "{role}: {}", output.text());
    }
    output.said(2, "error").pop().unwrap_or_else(|| panic!("{role}: {}", output.text()))
}

#[test]
fn a_process_that_ends_when_the_arbiter_has_left_is_named() {
    let check = |role: &str| {
        let error = heard(role);
        assert!(error.contains(": rank 3 (") && error.contains(" died"), "{role}: {error}");
    };
    std::thread::scope(|scope| {
        for role in ["collective", "message", "collective after an error", "message after an error"] {
            scope.spawn(move || check(role));
        }
    });
}

#[test]
fn who_ends_in_a_collective_that_the_arbiter_came_through_is_named() {
    std::thread::scope(|scope| {
        for role in ["gather over shm", "gather over tcp", "gather between two hosts"] {
            scope.spawn(move || {
                let error = heard(role);
                assert!(error.contains(": rank 3 (") && error.contains(" died"), "{role}: {error}");
            });
        }
    });
}
