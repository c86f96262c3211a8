//! Two ranks on each of two hosts: network namespaces with one cable between them, which share nothing but files.

#![cfg(target_os = "linux")]

mod support;

use phalanx::store::Secret;
use phalanx::{ProcessGroup, ReduceOp};
use std::process::{Child, Command, Output, Stdio};
use support::ip;

const RANKS: usize = 4;
const PER_HOST: usize = 2;
/// Rank 0's host, as the other knows it. Nobody else is on this network.
const FIRST_HOST: &str = "10.77.0.1";

/// A rank: one call of each operation that has two levels, on little and much.
#[test]
#[ignore = "this is what the ranks of the job run"]
fn rank() {
    if std::env::var_os("RANK").is_none() {
        return;
    }
    let group = phalanx::init().expect("the ranks come together");
    assert_eq!(group.backend_name(), "two-level");
    assert_eq!(group.describe(), "two-level: 2 hosts x 2 ranks: shm inside, tcp across");
    let rank = group.rank();
    for len in [1, 1000, 300_001] {
        let mut sum = vec![rank as f32 + 0.5; len];
        group.all_reduce(&mut sum, ReduceOp::Avg).expect("it is reduced");
        assert!(sum.iter().all(|&x| x == 2.0), "{len} elements averaged");

        let mut largest = vec![rank as u64; len];
        group.reduce(&mut largest, ReduceOp::Max, 3).expect("it is reduced");
        assert!(rank != 3 || largest.iter().all(|&x| x == 3), "{len} elements reduced");

        let mut copy = vec![rank as u8; len];
        group.broadcast(&mut copy, 2).expect("it is sent to all");
        assert!(copy.iter().all(|&x| x == 2), "{len} elements broadcast");

        let mut all = vec![0u16; RANKS * len];
        group.all_gather(&vec![rank as u16; len], &mut all).expect("it is gathered");
        assert!(all.chunks(len).zip(0..).all(|(block, r)| block.iter().all(|&x| x == r)), "{len} gathered");

        let mut block = vec![0i32; len];
        group.reduce_scatter(&vec![1; RANKS * len], &mut block, ReduceOp::Sum).expect("it is reduced");
        assert!(block.iter().all(|&x| x == RANKS as i32), "{len} reduced and scattered");
    }
    messages_find_their_way(&group);
    group.finalize().expect("all are here");
}

/// To the neighbour through shared memory, to the other host over the cable.
fn messages_find_their_way(group: &ProcessGroup) {
    let rank = group.rank();
    let exchange = |peer: usize| {
        let (mut got, sent) = ([0u64; 3000], [rank as u64; 3000]);
        let sending = group.send_async(sent.to_vec(), peer, 7).expect("it is on its way");
        group.recv(&mut got, peer, 7).expect("it arrives");
        sending.wait().expect("it is sent");
        assert!(got.iter().all(|&from| from == peer as u64));
    };
    group.barrier().expect("all are here");
    let before = connections();
    group.barrier().expect("all have counted");
    exchange(rank ^ 1);
    group.barrier().expect("all have exchanged");
    assert_eq!(connections(), before, "neighbours need no connection");
    group.barrier().expect("all have counted");
    exchange((rank + PER_HOST) % RANKS);
    group.barrier().expect("all have exchanged");
    assert!(connections() > before, "hosts do");
}

/// Those of this host that stand.
fn connections() -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("Linux has this");
    let established = |line: &&str| line.split_whitespace().nth(3) == Some("01");
    table.lines().filter(established).count()
}

/// Two namespaces, gone with this.
struct Hosts([String; 2]);

impl Hosts {
    /// `Err` says why this machine, or this user, can't have them.
    fn connect() -> Result<Self, String> {
        let id = std::process::id();
        let hosts = Self(["a", "b"].map(|end| format!("phalanx-{id}-{end}")));
        let [a, b] = &hosts.0;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!("link add cable netns {a} type veth peer name cable netns {b}"))?;
        for (host, addr) in [(a, FIRST_HOST), (b, "10.77.0.2")] {
            ip(&format!("-n {host} addr add {addr}/24 dev cable"))?;
            ip(&format!("-n {host} link set cable up"))?;
            ip(&format!("-n {host} link set lo up"))?;
        }
        Ok(hosts)
    }

    fn start(&self, rank: usize, secret: &Secret) -> Child {
        Command::new("ip")
            .args(["netns", "exec", &self.0[rank / PER_HOST]])
            .arg(std::env::current_exe().expect("this test has a path"))
            .args(["--exact", "rank", "--ignored", "--nocapture", "--test-threads=1"])
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", RANKS.to_string())
            .env("LOCAL_RANK", (rank % PER_HOST).to_string())
            .env("LOCAL_WORLD_SIZE", PER_HOST.to_string())
            .env("MASTER_ADDR", FIRST_HOST)
            .env("MASTER_PORT", "29500")
            .env("PHALANX_SECRET", secret.to_hex())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("ip was there before")
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &self.0 {
            // It may never have been there.
            let _ = ip(&format!("netns del {host}"));
        }
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "a test that is skipped says so")]
fn two_hosts_work_on_two_levels() {
    let hosts = match Hosts::connect() {
        Ok(hosts) => hosts,
        Err(why) => return println!("skipped: no network namespaces here: {why}"),
    };
    let secret = Secret::generate().expect("there is randomness");
    let ranks: Vec<Child> = (0..RANKS).map(|rank| hosts.start(rank, &secret)).collect();
    for (rank, child) in ranks.into_iter().enumerate() {
        let Output { status, stdout, stderr } = child.wait_with_output().expect("it was started here");
        let said = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(status.success() && said.contains("1 passed"), "rank {rank}, {status}:\n{said}");
    }
}
