//! A square of ranks that work in rows and columns only. When one is lost, others fail and end, and so their other groups fail too:
//! all survivors name the rank that was lost first.

#![cfg(target_os = "linux")]

mod support;

use phalanx::error::Cause;
use phalanx::{Error, ProcessGroup, ReduceOp};
use std::time::Duration;

const SIDE: usize = 3;
const RANKS: usize = SIDE * SIDE;
/// In the middle: four others share a group with it, four don't.
const VICTIM: usize = 4;
/// When the victim strikes.
const STEP: usize = 20;

#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    let Some(role) = support::role() else { return };
    let (how, end) = role.split_once(' ').expect("how one is lost, and how the others end");
    // Whoever is asked to end says first what it knows.
    signal_hook::flag::register(signal_hook::consts::SIGTERM, std::sync::Arc::default())
        .expect("there is such a signal");
    let group = phalanx::init().expect("the ranks come together");
    let (rank, divide) = (group.rank(), |color: usize| group.split(Some(color as u32), 0));
    let row = divide(rank / SIDE).expect("all are there").expect("it gave a color");
    let column = divide(rank % SIDE).expect("all are there").expect("it gave a color");
    let error = (0..).find_map(|step| {
        if rank == VICTIM && step == STEP {
            strike(how);
        }
        work(&row).and_then(|()| work(&column)).err()
    });
    let error = error.expect("the loop ends only with an error");
    let named = culprit(&error).map_or("nobody".into(), |rank| rank.to_string());
    support::say("failed", format!("{named} {error}"));
    match end {
        "unwrap" => panic!("{error}"),
        "return" => {}
        _ => std::process::exit(1),
    }
}

fn work(group: &ProcessGroup) -> phalanx::Result<()> {
    let mut sum = vec![1.0f32; 1000];
    group.all_reduce(&mut sum, ReduceOp::Sum)
}

fn strike(how: &str) {
    match how {
        "kill" => {
            use rustix::process::{Signal, getpid, kill_process};
            kill_process(getpid(), Signal::KILL).expect("it is our own process");
        }
        "panic" => panic!("on purpose"),
        _ => std::process::exit(0),
    }
}

fn culprit(error: &Error) -> Option<usize> {
    match error {
        Error::PeerLost { peer, .. } => Some(peer.rank),
        Error::Poisoned { cause, .. } => Cause::culprit(cause).map(|peer| peer.rank),
        _ => None,
    }
}

fn all_name_the_victim(backend: &str, how: &str) {
    for end in ["exit", "return", "unwrap"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (launch, output) = support::job(&format!("{how} {end}"), RANKS, folder.path());
        let running = launch
            .env("PHALANX_BACKEND", backend)
            .env("PHALANX_TIMEOUT_S", "60")
            // Nobody else ends survivors before they know.
            .grace(Duration::from_secs(20))
            .spawn()
            .expect("the job starts");
        let context = format!("{backend}, {how}, the others {end}");
        let outcome = support::finish(running);
        for rank in (0..RANKS).filter(|&rank| rank != VICTIM) {
            let said = output.said(rank, "failed");
            let words = match how {
                "kill" => "was killed by SIGKILL",
                "exit" => "exited with code 0 without leaving its groups",
                _ => "panicked",
            };
            let right =
                said.len() == 1 && said[0].starts_with(&format!("{VICTIM} ")) && said[0].contains(words);
            assert!(right, "{context}: rank {rank} said {said:?}\n{outcome}\n{}", output.text());
        }
    }
}

#[test]
fn survivors_of_a_killed_rank_name_it_whether_they_shared_a_group_or_not() {
    ["tcp", "shm"].into_iter().for_each(|backend| all_name_the_victim(backend, "kill"));
}

#[test]
fn survivors_of_a_panic_name_that_rank() {
    ["tcp", "shm"].into_iter().for_each(|backend| all_name_the_victim(backend, "panic"));
}

#[test]
fn survivors_of_a_rank_that_just_exits_name_it() {
    ["tcp", "shm"].into_iter().for_each(|backend| all_name_the_victim(backend, "exit"));
}
