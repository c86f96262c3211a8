//! Jobs that go on after a loss: survivors shrink, replacements rejoin, whole jobs restart. Real processes are killed.

#![cfg(target_os = "linux")]

mod support;

use phalanx::launch::{Elastic, Outcome, Running};
use phalanx::{ProcessGroup, ReduceOp};
use std::process::Command;
use std::time::{Duration, Instant};
use support::Output;

/// A rank: adds up ones with the others until it is as far as its role says, and tells of each group it is in.
#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    let Some(role) = support::role() else { return };
    let mut group = phalanx::init().expect("the ranks come together");
    match role.as_str() {
        "shrink" => {
            while works_until_only(&group, 2).is_err() {
                group = group.shrink().expect("the survivors come together");
            }
        }
        "rejoin" => {
            while works_until_generation(&group, 4).is_err() {
                group = group.rejoin().expect("survivors and replacements come together");
            }
        }
        "dies while it rejoins" => {
            while let Err(error) = works_until_generation(&group, 2) {
                // The first replacement's predecessor is gone; one survivor more ends before it has come to the others.
                if group.generation() == 0 && group.rank() == 2 {
                    support::say("dies", error);
                    std::process::exit(3);
                }
                group = group.rejoin().expect("survivors and replacements come together");
            }
        }
        "waits for the one that was left behind" => {
            // Rank 2 is stopped, so the others go on without it. When it comes to, it ends, and its replacement waits.
            group = works_into_generation_1(group);
            if group.generation() == 1 {
                tell(&group).expect("nobody is lost");
                while group.waiting().expect("nobody is lost") == 0 {
                    std::thread::sleep(Duration::from_millis(20));
                }
                group = group.rejoin().expect("the replacement comes");
                tell(&group).expect("nobody is lost");
            }
        }
        "finishes without the one that was left behind" => {
            group = works_into_generation_1(group);
            tell(&group).expect("nobody is lost");
            while group.waiting().expect("nobody is lost") == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        "fails twice" => {
            group.barrier().expect("all are there");
            let attempt = std::env::var("PHALANX_RESTART_COUNT").expect("the launcher says so");
            support::say("attempt", &attempt);
            if attempt != "2" && group.rank() == 1 {
                std::process::exit(7);
            }
            let _ = group.barrier();
        }
        other => panic!("no role {other:?}"),
    }
    group.finalize().expect("all are there");
}

/// Says who this rank is in which group, and that the group computes right sums.
fn tell(group: &ProcessGroup) -> phalanx::Result<()> {
    let mut sum = vec![1u64; 5000];
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    assert!(sum.iter().all(|s| *s == group.world_size() as u64));
    support::say(
        "here",
        format!("{} {} {} {}", group.generation(), group.rank(), group.world_size(), std::process::id()),
    );
    Ok(())
}

/// Works until somebody is lost, or there are only `few` ranks.
fn works_until_only(group: &ProcessGroup, few: usize) -> phalanx::Result<()> {
    tell(group)?;
    while group.world_size() > few {
        group.all_reduce(&mut [1.0f32; 100], ReduceOp::Sum)?;
    }
    Ok(())
}

/// Works until somebody is lost, or this is the `last` generation.
fn works_until_generation(group: &ProcessGroup, last: u64) -> phalanx::Result<()> {
    tell(group)?;
    while group.generation() < last {
        group.all_reduce(&mut [1.0f32; 100], ReduceOp::Sum)?;
    }
    Ok(())
}

/// The group that goes on once somebody was lost. Who was left behind ends here.
fn works_into_generation_1(group: ProcessGroup) -> ProcessGroup {
    let Err(error) = works_until_generation(&group, 1) else { return group };
    support::say("lost", error);
    group.rejoin().unwrap_or_else(|error| {
        support::say("behind", error);
        std::process::exit(1)
    })
}

/// Generation, rank, world size and process, as some rank told.
fn told(output: &Output, ranks: usize) -> Vec<[u64; 4]> {
    let numbers = |line: String| {
        let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().expect("a number")).collect();
        <[u64; 4]>::try_from(numbers).expect("four numbers")
    };
    (0..ranks).flat_map(|slot| output.said(slot, "here")).map(numbers).collect()
}

/// Waits until this generation, of so many ranks, is at work, or a later one where it did not come about: who is killed may be seen dead
/// before or after the others count on it. Its processes in rank order.
fn processes(output: &Output, slots: usize, generation: u64, ranks: usize) -> Vec<u64> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let mut here: Vec<_> = told(output, slots).into_iter().filter(|t| t[0] >= generation).collect();
        here.sort_unstable();
        let first = here.first().map_or(generation, |t| t[0]);
        here.retain(|t| t[0] == first);
        if here.len() == ranks {
            assert!(
                here.iter().enumerate().all(|(i, t)| (t[1], t[2]) == (i as u64, ranks as u64)),
                "{here:?}"
            );
            return here.iter().map(|t| t[3]).collect();
        }
        assert!(Instant::now() < until, "no generation {generation} of {ranks} ranks:\n{}", output.text());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn kill(pid: u64) {
    signal("-KILL", pid);
}

fn signal(name: &str, pid: u64) {
    assert!(
        Command::new("kill").args([name, &pid.to_string()]).status().is_ok_and(|status| status.success())
    );
}

fn succeeds(running: Running, output: &Output) {
    let outcome = support::finish(running);
    assert_eq!(outcome, Outcome::Success, "{outcome}\n{}", output.text());
}

#[test]
fn survivors_of_two_kills_go_on_with_right_sums() {
    // The rank that is killed in the group of four, then the one in the group of three: with and without rank 0, on each backend.
    for (backend, first, second) in [("shm", 1, 2), ("shm", 0, 0), ("tcp", 3, 0), ("tcp", 0, 1)] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (launch, output) = support::job("shrink", 4, folder.path());
        let size = Elastic::new(1, 4).expect("a size");
        let launch = launch.elastic(size).max_restarts(0).env("PHALANX_BACKEND", backend);
        let running = launch.spawn().expect("the job starts");
        let mut pids = processes(&output, 4, 0, 4);
        for (generation, victim) in [(1, first), (2, second)] {
            kill(pids.remove(victim));
            let survivors = processes(&output, 4, generation, pids.len());
            assert_eq!(survivors, pids, "they keep their order");
        }
        let all = running.pids();
        succeeds(running, &output);
        support::assert_nothing_left(&all, folder.path());
    }
}

#[test]
fn killed_ranks_are_replaced_and_come_after_the_survivors() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (launch, output) = support::job("rejoin", 4, folder.path());
    let running = launch.elastic(Elastic::new(2, 4).expect("a size")).spawn().expect("the job starts");
    let mut pids = processes(&output, 4, 0, 4);
    // Two at once come last: one of them may be counted on once more.
    for (generation, victims) in [(1, vec![2]), (2, vec![0]), (3, vec![3]), (4, vec![0, 0])] {
        victims.into_iter().for_each(|victim| kill(pids.remove(victim)));
        let here = processes(&output, 4, generation, 4);
        assert_eq!(here[..pids.len()], pids, "survivors keep their order");
        pids = here;
    }
    let all = running.pids();
    succeeds(running, &output);
    support::assert_nothing_left(&all, folder.path());
}

#[test]
fn a_rank_that_dies_during_a_rejoin_holds_up_nobody() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (launch, output) = support::job("dies while it rejoins", 4, folder.path());
    let running = launch.elastic(Elastic::new(2, 4).expect("a size")).spawn().expect("the job starts");
    let pids = processes(&output, 4, 0, 4);
    kill(pids[1]);
    // It may be seen dead before the roster of generation 1 is closed, or only when the others wait for it.
    let until = Instant::now() + Duration::from_secs(60);
    while told(&output, 4).iter().filter(|t| t[0] >= 1 && t[2] == 4).count() < 4 {
        assert!(Instant::now() < until, "they did not come together:\n{}", output.text());
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(running);
}

#[test]
fn the_replacement_of_a_rank_that_was_left_behind_is_let_in() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (launch, output) = support::job("waits for the one that was left behind", 3, folder.path());
    let launch = launch.elastic(Elastic::new(1, 3).expect("a size")).env("PHALANX_HEARTBEAT_TIMEOUT_S", "1");
    let running = launch.spawn().expect("the job starts");
    let pids = processes(&output, 3, 0, 3);
    signal("-STOP", pids[2]);
    assert_eq!(processes(&output, 3, 1, 2), pids[..2]);
    signal("-CONT", pids[2]);
    assert_eq!(processes(&output, 3, 2, 3)[..2], pids[..2]);
    assert_eq!(output.said(2, "behind").len(), 1, "{}", output.text());
    succeeds(running, &output);
}

#[test]
fn the_replacement_of_a_rank_that_was_left_behind_does_not_do_again_what_is_done() {
    for min in [1, 2] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (launch, output) =
            support::job("finishes without the one that was left behind", 3, folder.path());
        let size = Elastic::new(min, 3).expect("a size");
        let running =
            launch.elastic(size).env("PHALANX_HEARTBEAT_TIMEOUT_S", "1").spawn().expect("the job starts");
        let pids = processes(&output, 3, 0, 3);
        signal("-STOP", pids[2]);
        assert_eq!(processes(&output, 3, 1, 2), pids[..2]);
        signal("-CONT", pids[2]);
        let begun = Instant::now();
        succeeds(running, &output);
        assert!(begun.elapsed() < Duration::from_secs(30), "it was waited for in vain");
        assert_eq!(told(&output, 3).iter().map(|t| t[0]).max(), Some(1), "{}", output.text());
        assert!(output.text().contains("the job has been done"), "{}", output.text());
    }
}

#[test]
fn an_elastic_job_ends_when_too_few_are_left() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (launch, output) = support::job("rejoin", 4, folder.path());
    let launch = launch.elastic(Elastic::new(2, 3).expect("a size")).max_restarts(0);
    let running = launch.spawn().expect("the job starts");
    let pids = processes(&output, 3, 0, 3);
    kill(pids[1]);
    assert_eq!(processes(&output, 3, 1, 2), [pids[0], pids[2]]);
    kill(pids[2]);
    let outcome = support::finish(running);
    assert_eq!(outcome.exit_code(), 137, "{outcome}");
}

#[test]
fn a_job_that_fails_twice_is_restarted_twice() {
    let (folder, logs) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    for (restarts, code) in [(1, 7), (2, 0)] {
        let (launch, output) = support::job("fails twice", 2, folder.path());
        let id = format!("job{restarts}");
        let launch = launch.max_restarts(restarts).log_dir(logs.path()).job_id(&id);
        let outcome = support::finish(launch.spawn().expect("the job starts"));
        assert_eq!(outcome.exit_code(), code, "{outcome}\n{}", output.text());
        for attempt in 0..=restarts {
            let log = logs.path().join(format!("{id}/attempt_{attempt}/0/stdout.log"));
            let text = std::fs::read_to_string(&log).expect("each attempt has its logs");
            assert!(text.contains(&format!("attempt {attempt}\n")), "{text}");
        }
        assert!(!logs.path().join(format!("{id}/attempt_{}", restarts + 1)).exists());
    }
}
