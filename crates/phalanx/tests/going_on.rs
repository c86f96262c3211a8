//! Going on after a loss, where something else happens meanwhile: survivors that compute for long, or are stopped while the next generation
//! forms, wait in subgroups, or make another call.

#![cfg(target_os = "linux")]

mod support;

use phalanx::launch::{Elastic, Launch, Outcome};
use phalanx::{Error, ProcessGroup, ReduceOp};
use std::process::Command;
use std::time::{Duration, Instant};
use support::Output;

/// More than it takes, and less than it took.
const SOON: Duration = Duration::from_secs(40);

/// A rank: works until somebody is lost, says so, does what its role says, and goes on.
#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    let Some(role) = support::role() else { return };
    let group = phalanx::init().expect("the ranks come together");
    let group = if group.generation() > 0 { group } else { next(&role, group) };
    let mut sum = [1u64; 100];
    group.all_reduce(&mut sum, ReduceOp::Sum).expect("nobody else is lost");
    assert_eq!(sum, [group.world_size() as u64; 100]);
    support::say("here", format!("{} {} {}", group.generation(), group.rank(), std::process::id()));
    group.finalize().expect("all are there");
}

fn next(role: &str, group: ProcessGroup) -> ProcessGroup {
    let rank = group.rank();
    let pairs = group.split(Some(rank as u32 / 2), 0).expect("all are there").expect("it is in one");
    let seconds = |s: u64| std::thread::sleep(Duration::from_secs(s));
    support::say("works", std::process::id());
    if role == "waits in a subgroup" && rank == 1 {
        // Its neighbour hears of the loss elsewhere, and goes on.
        let error = pairs.recv(&mut [0u8], 0, 0).expect_err("nobody sends this");
        support::say("heard", &error);
        return group.rejoin().expect("all come together");
    }
    let error = loop {
        if let Err(error) = group.all_reduce(&mut [1.0f32; 100], ReduceOp::Sum) {
            break error;
        }
    };
    support::say("heard", error);
    match (role, rank) {
        ("rank 0 computes", 0) | ("rank 1 computes", 1) => seconds(12),
        ("stopped before it comes", 3) => seconds(2),
        ("stopped after it came", 1) => seconds(3),
        ("one shrinks", 0) => {
            let error = group.shrink().expect_err("the others rejoin");
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            support::say("differ", error);
        }
        ("one shrinks", _) => {
            let error = group.rejoin().expect_err("rank 0 shrinks");
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            support::say("differ", error);
        }
        _ => {}
    }
    group.rejoin().expect("all come together")
}

fn job(role: &str, ranks: usize, folder: &std::path::Path) -> (Launch, Output) {
    let (launch, output) = support::job(role, ranks, folder);
    (launch.elastic(Elastic::new(1, ranks).expect("a size")), output)
}

fn signal(name: &str, pid: &str) {
    let status = Command::new("kill").args([name, pid]).status();
    assert!(status.is_ok_and(|status| status.success()));
}

fn pid(output: &Output, rank: usize) -> String {
    output.said(rank, "works").first().expect("it works").clone()
}

/// Rank and process of those in the latest generation but the first, once so many are there.
fn who_goes_on(output: &Output, slots: usize, ranks: usize, limit: Duration) -> Vec<(usize, String)> {
    let until = Instant::now() + limit;
    loop {
        let here = (0..slots).flat_map(|slot| output.said(slot, "here"));
        let mut here: Vec<(u64, usize, String)> = here
            .map(|line| {
                let [generation, rank, pid] = line.split(' ').collect::<Vec<_>>().try_into().expect("three");
                (generation.parse().expect("a number"), rank.parse().expect("a rank"), pid.to_owned())
            })
            .collect();
        here.sort();
        let latest = here.iter().map(|(generation, ..)| *generation).max();
        here.retain(|(generation, ..)| Some(*generation) == latest);
        if here.len() == ranks {
            return here.into_iter().map(|(_, rank, pid)| (rank, pid)).collect();
        }
        assert!(Instant::now() < until, "{here:?} of {ranks} in {limit:?}:\n{}", output.text());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_survivor_that_computes_for_twice_the_time_of_init_is_waited_for() {
    // With the arbiter alive, and with it gone.
    for (role, victim, slow) in [("rank 0 computes", 2, 0), ("rank 1 computes", 0, 1)] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (launch, output) = job(role, 3, folder.path());
        let launch = launch.env("PHALANX_INIT_TIMEOUT_S", "6").env("PHALANX_HEARTBEAT_TIMEOUT_S", "3");
        // So a warning comes after 10 s.
        let launch = launch.env("PHALANX_TIMEOUT_S", "20");
        let running = launch.spawn().expect("the job starts");
        output.wait_for("works", 3);
        signal("-KILL", &pid(&output, victim));
        let here = who_goes_on(&output, 3, 3, SOON);
        let survivors: Vec<String> = (0..3).filter(|r| *r != victim).map(|r| pid(&output, r)).collect();
        assert_eq!(
            here.iter().map(|(_, pid)| pid).take(2).collect::<Vec<_>>(),
            survivors.iter().collect::<Vec<_>>()
        );
        assert!(survivors.contains(&pid(&output, slow)));
        let outcome = support::finish(running);
        assert_eq!(outcome, Outcome::Success, "{outcome}\n{}", output.text());
        let who = output.text().matches("still waiting for rank ").count();
        assert!(who > 0, "nobody said whom it waits for:\n{}", output.text());
    }
}

#[test]
fn a_rank_that_is_stopped_while_the_next_generation_forms_holds_up_nobody_for_long() {
    // Rank 0 is killed, so no arbiter is left. Rank 3 is stopped when it has heard of that: before it calls rejoin, or after.
    for role in ["stopped before it comes", "stopped after it came"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (launch, output) = job(role, 4, folder.path());
        let launch = launch.max_restarts(0).env("PHALANX_HEARTBEAT_TIMEOUT_S", "3");
        let running = launch.spawn().expect("the job starts");
        output.wait_for("works", 4);
        let pids: Vec<String> = (0..4).map(|rank| pid(&output, rank)).collect();
        signal("-KILL", &pids[0]);
        let until = Instant::now() + SOON;
        while output.said(3, "heard").is_empty() {
            assert!(Instant::now() < until, "{}", output.text());
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(1000));
        signal("-STOP", &pids[3]);
        let here = who_goes_on(&output, 4, 2, SOON);
        assert_eq!(here, [(0, pids[1].clone()), (1, pids[2].clone())]);
        drop(running);
    }
}

#[test]
fn who_waits_in_a_subgroup_hears_that_its_peer_has_gone_on() {
    for backend in ["shm", "tcp"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (launch, output) = job("waits in a subgroup", 4, folder.path());
        let running = launch.env("PHALANX_BACKEND", backend).spawn().expect("the job starts");
        output.wait_for("works", 4);
        signal("-KILL", &pid(&output, 3));
        who_goes_on(&output, 4, 4, SOON);
        let heard = output.said(1, "heard").concat();
        assert!(heard.contains("rank 3 ("), "the first cause of all: {heard}");
        let outcome = support::finish(running);
        assert_eq!(outcome, Outcome::Success, "{outcome}\n{}", output.text());
    }
}

#[test]
fn a_shrink_beside_a_rejoin_is_an_error_that_names_both() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (launch, output) = job("one shrinks", 3, folder.path());
    let running = launch.spawn().expect("the job starts");
    output.wait_for("works", 3);
    signal("-KILL", &pid(&output, 2));
    // Both may try again, and do the same then.
    who_goes_on(&output, 3, 3, SOON);
    for rank in 0..2 {
        let words = output.said(rank, "differ").concat();
        for part in ["rank 0 (", "called shrink", "rank 1 (", "called rejoin", "going_on.rs:", "how to go on"]
        {
            assert!(words.contains(part), "no {part:?} in {words:?}");
        }
    }
    let outcome = support::finish(running);
    assert_eq!(outcome, Outcome::Success, "{outcome}\n{}", output.text());
}
