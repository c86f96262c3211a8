//! A thousand stray connections while a job starts and runs: it neither notices nor ends differently.

#![cfg(target_os = "linux")]

mod support;

use phalanx::ReduceOp;
use phalanx::backend::{Deadline, WORLD};
use phalanx::launch::Outcome;
use phalanx::store::{Secret, Store, TcpStore};
use phalanx_transport::handshake::{Hello, Purpose, VERSION};
use phalanx_transport::open_session;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const RANKS: usize = 4;
const STRANGERS: usize = 1_000;
/// Held open at a time: below what a process may have open on a plain system.
const HELD: usize = 300;

/// A rank: all-reduces known values until a file says stop; every result is checked.
#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    if support::role().is_none() {
        return;
    }
    support::say("secret", std::env::var("PHALANX_SECRET").expect("the launcher made one"));
    let stop = PathBuf::from(std::env::var_os("TMPDIR").expect("the test set it")).join("stop");
    let group = phalanx::init().expect("the ranks come together");
    support::say("together", "");
    let mut steps = 0u64;
    let mut go_on = [1u8];
    while go_on[0] == 1 {
        let len = 1 << (steps % 16);
        let mut buffer: Vec<f32> = (0..len).map(|i| (i % 13) as f32 + group.rank() as f32).collect();
        group.all_reduce(&mut buffer, ReduceOp::Sum).expect("strangers change nothing");
        let expected = |i: usize| (i % 13) as f32 * RANKS as f32 + 6.0;
        assert!(buffer.iter().enumerate().all(|(i, &x)| x == expected(i)), "step {steps}");
        steps += 1;
        go_on = [u8::from(!stop.exists())];
        group.broadcast(&mut go_on, 0).expect("strangers change nothing");
    }
    support::say("done", steps);
    group.finalize().expect("strangers change nothing");
}

/// What strangers do; the last three know how to speak, and those with the right secret get an
/// answer. Who lets the last one in is noted.
fn intrude(
    kind: usize,
    addr: SocketAddr,
    secret: &Secret,
    let_in: &mut Vec<SocketAddr>,
) -> Option<TcpStream> {
    let within = |time| Deadline::after(Instant::now(), Duration::from_millis(time));
    let as_rank_1 = |purpose| Hello { purpose, rank: 1, called: 0, world_size: RANKS as u32, group: WORLD };
    let mut stream = match kind {
        0..=3 => TcpStream::connect(addr).ok()?,
        4 => {
            let wrong = Secret::generate().expect("there is randomness");
            let refused = open_session(&addr.to_string(), &wrong, &as_rank_1(Purpose::Control), &within(1));
            assert!(refused.is_err(), "a wrong secret was let in");
            return None;
        }
        _ => {
            let is_let_in = |purpose, called| {
                let hello = Hello { called, ..as_rank_1(purpose) };
                open_session(&addr.to_string(), secret, &hello, &within(2_000)).is_ok()
            };
            match kind {
                5 => assert!(!is_let_in(Purpose::Control, 0), "a second rank 1 was let in"),
                // It does not know who answers there.
                _ => let_in
                    .extend((0..RANKS as u32).any(|called| is_let_in(Purpose::Data, called)).then_some(addr)),
            }
            return None;
        }
    };
    let _ = match kind {
        0 => stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        1 => stream.write_all(&std::array::from_fn::<u8, 256, _>(|i| (i * 37 + 11) as u8)),
        2 => Ok(()), // silence
        _ => {
            // half a handshake: a good opening, then nothing after the challenge
            let mut opening = *b"PHLX\x00\x00\x02\x00................................";
            opening[4..6].copy_from_slice(&VERSION.to_le_bytes());
            stream.write_all(&opening).and_then(|()| stream.read_exact(&mut opening))
        }
    };
    Some(stream)
}

/// Which start of the job this is, as rank 0 has written into its store. The launcher listens for lifelines as well.
fn start(launcher: &[SocketAddr], secret: &Secret, job_id: &str) -> u64 {
    let within = |time| Deadline::after(Instant::now(), Duration::from_secs(time));
    let stores =
        launcher.iter().filter_map(|addr| TcpStore::connect(&addr.to_string(), secret, &within(5)).ok());
    let key = format!("{job_id}/start");
    let start = stores.filter_map(|store| store.get(&key, &within(60)).ok()).next().expect("rank 0 comes");
    u64::from_le_bytes(start.try_into().expect("a number of 64 bits"))
}

#[test]
fn strangers_change_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (launch, output) = support::job("work", RANKS, folder.path());
    let running = launch.spawn().expect("the job starts");
    let pids = running.pids().to_vec();
    output.wait_for("secret", RANKS);
    let secret = Secret::from_hex(&output.said(0, "secret")[0]).expect("a rank said it");
    // The launcher in this process hosts it.
    let store = support::listeners([std::process::id()].into_iter());
    let of_ranks = secret.of_start(start(&store, &secret, running.job_id())).of_generation(0);

    let mut held = VecDeque::new();
    let mut met = std::collections::BTreeSet::new();
    let mut ports = Vec::new();
    let mut let_in = Vec::new();
    for i in 0..STRANGERS {
        // Ranks open their ports meanwhile. To find them takes longer than a stranger.
        if i % 10 == 0 {
            ports = support::listeners(pids.iter().copied().chain([std::process::id()]));
            assert!(!ports.is_empty(), "the job is over: {}", output.text());
        }
        assert!(
            ports.iter().all(|addr| addr.ip().is_loopback()),
            "more than the advertised address: {ports:?}"
        );
        let (addr, round) = (ports[i % ports.len()], i / ports.len());
        met.insert(addr);
        if i == STRANGERS / 2 {
            output.wait_for("together", RANKS);
        }
        // Before all are together, rank 1 is not taken yet: whoever knows the secret could be it.
        let kinds = if output.said(1, "together").is_empty() { 5 } else { 7 };
        let secret = if store.contains(&addr) { &secret } else { &of_ranks };
        if let Some(stream) = intrude(round % kinds, addr, secret, &mut let_in) {
            held.push_back(stream);
        }
        if held.len() > HELD {
            held.pop_front();
        }
    }
    assert!(met.len() > RANKS, "the store and all ranks were visited: {met:?}");
    // The ranks share memory, so nobody has linked with rank 1: who knows the secret can, with each of the others, and once. Neither with
    // rank 1 nor with the store.
    let never = support::listeners([pids[1], std::process::id()].into_iter());
    let each: std::collections::BTreeSet<_> = let_in.iter().collect();
    assert!((each.len(), let_in.len()) == (RANKS - 1, RANKS - 1), "{let_in:?}");
    assert!(let_in.iter().all(|addr| !never.contains(addr)), "{let_in:?} and {never:?}");
    std::fs::write(folder.path().join("stop"), "").expect("the folder can be written");
    let outcome = support::finish(running);
    assert!(matches!(outcome, Outcome::Success), "{outcome}\n{}", output.text());
    let steps: Vec<_> = (0..RANKS).flat_map(|rank| output.said(rank, "done")).collect();
    assert!(steps.len() == RANKS && steps.iter().all(|s| *s == steps[0]), "{steps:?}");
    std::fs::remove_file(folder.path().join("stop")).expect("it was written");
    support::assert_nothing_left(&pids, folder.path());
}
