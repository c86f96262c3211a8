//! Rank 0 has left, and the arbiter with it: the others see the end of each other's processes by themselves.

#![cfg(target_os = "linux")]

mod support;

use phalanx::{Config, ProcessGroup, ReduceOp};
use std::path::Path;
use std::time::Duration;
use support::Output;

/// The tag with which the others tell rank 0 that their collective has returned.
const CAME_THROUGH: u64 = 1;

/// Rank 0 leaves first, in every role; then another rank ends without a word.
#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    let Some(role) = support::role() else { return };
    let group = join(&role);
    let mut processes = vec![0u64; group.world_size()];
    group.all_gather(&[u64::from(std::process::id())], &mut processes).expect("all are there");
    wait_for_the_others(&group);
    match role.split(' ').next() {
        Some("gather" | "reduce") => to_rank_2(&role, &group, processes[0]),
        Some("barrier") => barrier_without_rank_0(&group),
        _ => in_pairs(&role, &group, processes[0]),
    }
}

/// Ranks are on two hosts or on three where the role says so.
fn join(role: &str) -> ProcessGroup {
    let mut config = Config::from_env().expect("everything is set");
    if role.ends_with("two hosts") {
        config.host_id = Some(format!("host {}", config.rank / 2));
    } else if role.ends_with("three hosts") {
        config.host_id = Some(format!("host {}", config.rank.div_ceil(2)));
    }
    phalanx::join(&config).expect("all are there")
}

/// Rank 0 stays until the last collective has returned on every rank: who leaves or aborts ends what others are still in.
fn wait_for_the_others(group: &ProcessGroup) {
    if group.rank() == 0 {
        (1..group.world_size()).for_each(|rank| {
            group.recv(&mut [0u8], rank, CAME_THROUGH).expect("nobody has ended");
        });
    } else {
        // Rank 0 may leave or abort before this returns, and the message has come all the same.
        drop(group.send(&[0u8], 0, CAME_THROUGH));
    }
}

/// Until the process of rank 0 has ended, and the arbiter with it.
fn wait_for_end_of(rank_0: u64) {
    while Path::new(&format!("/proc/{rank_0}")).exists() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ranks 2 and 3 work on in a pair when ranks 0 and 1 have gone; then rank 3 ends.
fn in_pairs(role: &str, group: &ProcessGroup, rank_0: u64) {
    let pair = group.split(Some(group.rank() as u32 / 2), 0).expect("all are there").expect("it has a color");
    wait_for_the_others(group);
    match group.rank() {
        0 if role.ends_with("after an error") => pair.abort("enough"),
        0 | 1 => {}
        2 => wait_for_rank_3(role, &pair),
        _ => {
            wait_for_end_of(rank_0);
            pair.all_reduce(&mut [1u64], ReduceOp::Sum).expect("the pair is well");
            std::process::exit(0);
        }
    }
}

/// All but rank 3 give rank 2 what it gathers or reduces, and leave in order; then rank 3 ends, and has given nothing.
fn to_rank_2(role: &str, group: &ProcessGroup, rank_0: u64) {
    let rank = group.rank();
    if rank == 3 {
        wait_for_end_of(rank_0);
        std::process::exit(0);
    }
    let outcome = if role.starts_with("reduce") {
        group.reduce(&mut [1u64], ReduceOp::Sum, 2)
    } else {
        let mut all = (rank == 2).then_some([0u64; 4]);
        group.gather(&[1u64], all.as_mut().map(|all| &mut all[..]), 2)
    };
    match outcome {
        Ok(()) => support::say("gave", rank),
        Err(error) => support::say("error", error),
    }
}

/// Rank 0 does not come to a barrier.
fn barrier_without_rank_0(group: &ProcessGroup) {
    if group.rank() > 0 {
        support::say("error", group.barrier().expect_err("rank 0 has left"));
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

/// What the ranks say, by rank. Their operations have ten minutes, and the job has two.
fn said(role: &str, ranks: usize) -> Output {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (launch, output) = support::job(role, ranks, folder.path());
    let backend = match role.rsplit(' ').next() {
        Some("hosts") => "auto",
        Some("tcp") => "tcp",
        _ => "shm",
    };
    let outcome = launch.env("PHALANX_BACKEND", backend).run().expect("the job starts");
    assert!(outcome.is_success(), "{role}: {outcome}\n{}", output.text());
    output
}

/// Checks that this rank says that another was lost so.
#[track_caller]
fn check(role: &str, output: &Output, rank: usize, lost: usize, how: &str) {
    let errors = output.said(rank, "error");
    let names = |error: &String| error.contains(&format!(": rank {lost} (")) && error.contains(how);
    assert!(errors.len() == 1 && errors.iter().all(names), "{role}: {}", output.text());
}

/// Runs the roles side by side.
fn each<const N: usize>(roles: [&str; N], check: impl Fn(&str) + Sync) {
    let check = &check;
    std::thread::scope(|scope| roles.into_iter().for_each(|role| drop(scope.spawn(move || check(role)))));
}

#[test]
fn a_process_that_ends_when_the_arbiter_has_left_is_named() {
    each(["collective", "message", "collective after an error", "message after an error"], |role| {
        let output = said(role, 4);
        assert_eq!(output.said(2, "sum"), ["2"], "{role}: {}", output.text());
        check(role, &output, 2, 3, " died");
    });
}

#[test]
fn who_ends_in_a_collective_that_rank_0_came_through_is_named() {
    each(["gather over shm", "gather over tcp", "gather between two hosts"], |role| {
        let output = said(role, 4);
        assert_eq!([0, 1].map(|rank| output.said(rank, "gave").len()), [1, 1], "{role}: {}", output.text());
        check(role, &output, 2, 3, " died");
    });
}

/// Rank 1, which waits for rank 3, gives up what it does with rank 2.
#[test]
fn who_gives_up_for_that_is_named_by_those_of_its_host() {
    let role = "reduce between three hosts";
    let output = said(role, 5);
    assert_eq!([0, 4].map(|rank| output.said(rank, "gave").len()), [1, 1], "{role}: {}", output.text());
    check(role, &output, 1, 3, " died");
    check(role, &output, 2, 1, "gave up");
}

#[test]
fn rank_0_is_named_in_a_collective_to_which_it_has_not_come() {
    each(["barrier over shm", "barrier over tcp", "barrier between two hosts"], |role| {
        let output = said(role, 4);
        (1..4).for_each(|rank| check(role, &output, rank, 0, " left the group"));
    });
}
