//! A rank is stopped (SIGSTOP), so that all its connections stand but nothing comes: the others name it when its heartbeat has
//! been missing for the stated time. When it goes on, it learns that it was left behind.

#![cfg(target_os = "linux")]

mod support;

use phalanx::error::Loss;
use phalanx::launch::Outcome;
use phalanx::{Error, ReduceOp};
use std::process::Command;
use std::time::{Duration, Instant};

const RANKS: usize = 4;
const HEARTBEAT: Duration = Duration::from_secs(3);
/// On top of that: the bound on the time in which a death that was noticed is known everywhere.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);

/// A rank, which reduces until something goes wrong, or does without the others for a while.
#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    let Some(role) = support::role() else { return };
    let group = phalanx::init().expect("the ranks come together");
    let mut buffer = vec![1.0f32; 1 << 16];
    if role == "compute" {
        // Much more than a link takes while nobody reads.
        let mut message = vec![group.rank() as u8; 64 << 20];
        for _ in 0..2 {
            group.all_reduce(&mut buffer, ReduceOp::Avg).expect("nobody is stopped");
            let begun = Instant::now();
            while group.rank() == 1 && begun.elapsed() < HEARTBEAT * 2 {
                std::hint::spin_loop();
            }
            match group.rank() {
                0 => group.send(&message, 1, 0).expect("it is waited for"),
                _ => group.recv(&mut message, 0, 0).expect("it has waited"),
            }
        }
        assert!(message.iter().all(|&byte| byte == 0));
        return group.finalize().expect("all are here");
    }
    if role == "pause" {
        let begun = Instant::now();
        for step in 0.. {
            if step == 10 {
                support::say("started", "");
            }
            let mut over = [u8::from(group.rank() == 0 && begun.elapsed() > HEARTBEAT * 3)];
            group.all_reduce(&mut over, ReduceOp::Max).expect("nobody is to blame");
            if over == [1] {
                return group.finalize().expect("all are here");
            }
        }
    }
    let error = (0..).find_map(|step| {
        if step == 10 {
            support::say("started", "");
        }
        group.all_reduce(&mut buffer[..1 << (step * 5 % 17)], ReduceOp::Avg).err()
    });
    let error = error.expect("the loop ends only with an error");
    let Error::PeerLost { peer, how: Loss::Silent { after }, .. } = &error else {
        panic!("for another reason: {error}")
    };
    support::say("failed", format!("{} {} {} {error}", support::now_ms(), peer.rank, after.as_millis()));
    if role == "stay" && peer.rank != group.rank() {
        // Until the launcher ends this rank because the stopped one has failed.
        std::thread::sleep(Duration::from_secs(60));
    }
    std::process::exit(1);
}

fn signal(name: &str, pid: u32) {
    let kill = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(kill.is_ok_and(|status| status.success()), "kill {name} {pid}");
}

/// Says how long it took. With `role` "stay" the others wait for the stopped rank to come back; with "go" they end at once.
#[allow(clippy::print_stdout, reason = "figures for whoever asks for them with --nocapture")]
fn stop(backend: &str, role: &str, victim: usize) {
    let context = format!("{backend}, {role}, rank {victim} stopped");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (launch, output) = support::job(role, RANKS, folder.path());
    let heartbeat = HEARTBEAT.as_secs().to_string();
    let launch = launch.env("PHALANX_BACKEND", backend).env("PHALANX_HEARTBEAT_TIMEOUT_S", heartbeat);
    let running = launch.spawn().expect("the job starts");
    let pids = running.pids().to_vec();
    output.wait_for("started", RANKS);

    let stopped_at = support::now_ms();
    signal("-STOP", pids[victim]);
    if role == "stay" {
        let failed = |rank: &usize| *rank == victim || !output.said(*rank, "failed").is_empty();
        let until = Instant::now() + HEARTBEAT + KNOWN_WITHIN;
        while !(0..RANKS).all(|rank| failed(&rank)) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        signal("-CONT", pids[victim]);
    }
    let outcome = support::finish(running);
    let Outcome::Failure(failure) = &outcome else { panic!("{context}: {outcome}") };
    let came_back = role == "stay";
    assert!(!came_back || failure.rank == victim, "{context}: {outcome}\n{}", output.text());
    for rank in (0..RANKS).filter(|&rank| came_back || rank != victim) {
        let said = output.said(rank, "failed");
        let [line] = said.as_slice() else {
            panic!("{context}: rank {rank} said {said:?}\n{}", output.text())
        };
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        assert_eq!(words[1], victim.to_string(), "{context}: rank {rank}: {line}");
        assert_eq!(words[2], HEARTBEAT.as_millis().to_string(), "{context}: rank {rank}: {line}");
        let after = Duration::from_millis((words[0].parse::<u128>().expect("a time") - stopped_at) as u64);
        println!("{context}: rank {rank} knew after {after:?}");
        // It beats ten times in that time, the last time right before it was stopped or some beats earlier.
        assert!(after >= HEARTBEAT * 3 / 5, "{context}: rank {rank}, after {after:?}: {line}");
        if rank != victim {
            assert!(after < HEARTBEAT + KNOWN_WITHIN, "{context}: rank {rank}, after {after:?}: {line}");
        }
    }
    support::assert_nothing_left(&pids, folder.path());
}

#[test]
fn a_stopped_rank_is_named_over_tcp_and_hears_of_it() {
    [2, 0].into_iter().for_each(|victim| stop("tcp", "stay", victim));
}

#[test]
fn a_stopped_rank_is_named_over_shm_and_hears_of_it() {
    [2, 0].into_iter().for_each(|victim| stop("shm", "stay", victim));
}

#[test]
fn nothing_is_left_of_a_job_with_a_stopped_rank() {
    stop("tcp", "go", 0);
    stop("shm", "go", 3);
}

#[test]
fn a_job_that_is_stopped_and_continued_as_a_whole_goes_on() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (launch, output) = support::job("pause", 2, folder.path());
    let heartbeat = HEARTBEAT.as_secs().to_string();
    let running = launch.env("PHALANX_HEARTBEAT_TIMEOUT_S", heartbeat).spawn().expect("the job starts");
    let pids = running.pids().to_vec();
    output.wait_for("started", 2);
    pids.iter().for_each(|&pid| signal("-STOP", pid));
    std::thread::sleep(HEARTBEAT * 3 / 2);
    pids.iter().for_each(|&pid| signal("-CONT", pid));
    let outcome = support::finish(running);
    assert_eq!(outcome.exit_code(), 0, "{outcome}\n{}", output.text());
}

#[test]
fn a_rank_that_computes_for_long_is_not_lost() {
    for backend in ["tcp", "shm"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (launch, output) = support::job("compute", 2, folder.path());
        let heartbeat = HEARTBEAT.as_secs().to_string();
        let launch = launch.env("PHALANX_BACKEND", backend).env("PHALANX_HEARTBEAT_TIMEOUT_S", heartbeat);
        let outcome = support::finish(launch.spawn().expect("the job starts"));
        assert_eq!(outcome.exit_code(), 0, "{backend}: {outcome}\n{}", output.text());
    }
}
