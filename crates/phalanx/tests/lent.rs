//! Long messages in shared memory are lent: the other end copies them from where they lie. A rank that dies, or gives up, in the middle of that leads to no wrong byte.

#![cfg(target_os = "linux")]

mod support;

use phalanx::Error;
use phalanx::launch::Outcome;
use std::process::Command;
use std::time::Duration;

/// More than a frame, and many times as much as a ring holds.
const LEN: usize = 9 << 20;

/// A rank.
#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    let Some(role) = support::role() else { return };
    let group = phalanx::init().expect("the ranks come together");
    let (me, other) = (group.rank(), 1 - group.rank());
    let mut message = vec![0u8; LEN];
    // Both hear that the other takes what is lent.
    for step in 0..4 {
        exchange(&group, &mut message, step).expect("both are here");
    }
    if role == "gives_up" {
        if me == 0 {
            message.fill(7);
            let error = group.with_timeout(Duration::from_millis(300)).send(&message, other, 0).unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
            // Its memory is its own again.
            message.fill(9);
            support::say("gave", "up");
        } else {
            std::thread::sleep(Duration::from_millis(700));
        }
        if me == 1 {
            // It may have been told already, or come upon what was lent.
            let error = group.recv(&mut message, other, 0).unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
        }
        return support::say("ended", "");
    }
    if role == "goes_on" {
        support::say("started", "");
        let mut last = [0u8];
        while last == [0] {
            // Nothing but messages, so that nearly every moment is in the middle of one.
            for _ in 0..16 {
                match me {
                    0 => group.send(&message, other, 0).expect("the other waits"),
                    _ => group.recv(&mut message, other, 0).expect("the other goes on"),
                }
            }
            last = [u8::from(
                std::path::Path::new(&std::env::var("TMPDIR").expect("set")).join("last").exists(),
            )];
            group.all_reduce(&mut last, phalanx::ReduceOp::Max).expect("both are here");
        }
        return support::say("ended", "");
    }
    let error = (4..).find_map(|step| {
        if step == 10 {
            support::say("started", "");
        }
        exchange(&group, &mut message, step).err()
    });
    let error = error.expect("the loop ends only with an error");
    let Error::PeerLost { peer, .. } = &error else { panic!("for another reason: {error}") };
    support::say("failed", peer.rank);
    std::process::exit(1);
}

/// A message there and another back, all bytes of which are looked at.
fn exchange(group: &phalanx::ProcessGroup, message: &mut [u8], step: u64) -> phalanx::Result<()> {
    let other = 1 - group.rank();
    for sender in [0, 1] {
        let byte = (2 * step + sender as u64) as u8;
        if group.rank() == sender {
            message.fill(byte);
            group.send(message, other, 0)?;
        } else {
            group.recv(message, other, 0)?;
            assert!(message.iter().all(|&found| found == byte), "step {step}");
        }
    }
    Ok(())
}

fn job(role: &str, folder: &std::path::Path) -> (phalanx::launch::Launch, support::Output) {
    let (launch, output) = support::job(role, 2, folder);
    let shared =
        [("PHALANX_BACKEND", "shm"), ("PHALANX_HEARTBEAT_TIMEOUT_S", "3"), ("PHALANX_KERNEL_COPY", "1")];
    (shared.into_iter().fold(launch, |launch, (name, value)| launch.env(name, value)), output)
}

/// `signal` comes at another moment of a message each time.
fn the_other_is_named(signal: &str, rounds: u64) {
    for round in 0..rounds {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (launch, output) = job("exchange", folder.path());
        let running = launch.spawn().expect("the job starts");
        let pids = running.pids().to_vec();
        output.wait_for("started", 2);
        std::thread::sleep(Duration::from_micros(5000 + 137 * round));
        let victim = round as usize % 2;
        let killed = Command::new("kill").args([signal, &pids[victim].to_string()]).status();
        assert!(killed.is_ok_and(|status| status.success()));
        let outcome = support::finish(running);
        assert!(matches!(&outcome, Outcome::Failure(_)), "{outcome}");
        assert_eq!(output.said(1 - victim, "failed"), [victim.to_string()], "{outcome}\n{}", output.text());
        support::assert_nothing_left(&pids, folder.path());
    }
}

#[test]
fn a_rank_that_is_killed_in_a_long_message_is_named() {
    the_other_is_named("-KILL", 10);
}

#[test]
fn a_rank_that_is_stopped_in_a_long_message_is_named() {
    the_other_is_named("-STOP", 2);
}

/// Long enough to be taken for dead by who is impatient, and not for the heartbeat.
const STOPPED_FOR: Duration = Duration::from_millis(1500);

#[test]
fn a_rank_that_is_stopped_in_a_long_message_and_goes_on_in_time_loses_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (launch, output) = job("goes_on", folder.path());
    let running = launch.spawn().expect("the job starts");
    let sender = running.pids()[0].to_string();
    output.wait_for("started", 2);
    let signal = |name: &str| {
        let killed = Command::new("kill").args([name, &sender]).status();
        assert!(killed.is_ok_and(|status| status.success()), "{}", output.text());
    };
    for n in 0..6 {
        std::thread::sleep(Duration::from_micros(50_000 + 137 * n));
        signal("-STOP");
        std::thread::sleep(STOPPED_FOR);
        signal("-CONT");
    }
    std::fs::write(folder.path().join("last"), []).expect("the folder is there");
    let outcome = support::finish(running);
    assert_eq!(outcome.exit_code(), 0, "{outcome}\n{}", output.text());
}

#[test]
fn what_a_rank_gave_up_to_send_is_not_received() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (launch, output) = job("gives_up", folder.path());
    let outcome = support::finish(launch.spawn().expect("the job starts"));
    assert_eq!(outcome.exit_code(), 0, "{outcome}\n{}", output.text());
    assert_eq!(output.said(0, "gave").len(), 1, "{}", output.text());
    assert_eq!(output.said(1, "ended").len(), 1, "{}", output.text());
}
