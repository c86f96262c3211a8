//! A rank is killed at a random moment: the others name it, the launcher reports it, nothing is left.

#![cfg(target_os = "linux")]

mod support;

use phalanx::launch::Outcome;
use phalanx::{Error, ReduceOp};
use std::process::Command;
use std::time::Duration;

const RANKS: usize = 4;
const ROUNDS: u64 = 50;
/// The one bound on time in the contract: a death is known everywhere this soon.
const KNOWN_WITHIN_MS: u128 = 5_000;

/// A rank: all-reduces buffers of 4 bytes to 4 MiB until something goes wrong, and says what.
#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    if support::role().is_none() {
        return;
    }
    let group = phalanx::init().expect("the ranks come together");
    let mut buffer = vec![1.0f32; 1 << 20];
    let mut started = false;
    let error = (0..).find_map(|i| {
        let len = 1usize << (i * 7 % 21);
        let outcome = group.all_reduce(&mut buffer[..len], ReduceOp::Avg);
        if !std::mem::replace(&mut started, true) {
            support::say("started", "");
        }
        outcome.err()
    });
    let error = error.expect("the loop ends only with an error");
    let named = match &error {
        Error::PeerLost { peer, .. } => peer.rank.to_string(),
        Error::Poisoned { cause, .. } => {
            cause.culprit().map_or("nobody".into(), |peer| peer.rank.to_string())
        }
        _ => "nobody".into(),
    };
    support::say("failed", format!("{} {named} {error}", support::now_ms()));
    std::process::exit(1);
}

/// SplitMix64, so that a seed says everything.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[test]
fn survivors_name_the_killed_rank_and_nothing_is_left() {
    let seed = std::env::var("PHALANX_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let mut state: u64 = seed;
    for round in 0..ROUNDS {
        let victim = (random(&mut state) % RANKS as u64) as usize;
        let delay = Duration::from_micros(random(&mut state) % 40_000);
        let context =
            format!("PHALANX_TEST_SEED={seed}, round {round}: rank {victim} killed after {delay:?}");

        let folder = tempfile::tempdir().expect("a temporary folder");
        let (launch, output) = support::job("loop", RANKS, folder.path());
        let running = launch.spawn().expect("the job starts");
        let pids = running.pids().to_vec();
        output.wait_for("started", RANKS);
        std::thread::sleep(delay);
        let killed_at = support::now_ms();
        let kill = Command::new("kill").args(["-KILL", &pids[victim].to_string()]).status();
        assert!(kill.is_ok_and(|status| status.success()), "{context}");

        let outcome = support::finish(running);
        let Outcome::Failure(failure) = &outcome else { panic!("{context}: {outcome}") };
        assert_eq!((failure.rank, outcome.exit_code()), (victim, 137), "{context}: {outcome}");
        for survivor in (0..RANKS).filter(|&r| r != victim) {
            let said = output.said(survivor, "failed");
            let [line] = said.as_slice() else {
                panic!("{context}: rank {survivor} said {said:?}\n{}", output.text())
            };
            let mut words = line.split(' ');
            let (at, named) = (words.next().expect("a time"), words.next().expect("a rank"));
            assert_eq!(named, victim.to_string(), "{context}: rank {survivor}: {line}");
            let at: u128 = at.parse().expect("a time");
            assert!(at.saturating_sub(killed_at) < KNOWN_WITHIN_MS, "{context}: rank {survivor}: {line}");
        }
        support::assert_nothing_left(&pids, folder.path());
    }
}
