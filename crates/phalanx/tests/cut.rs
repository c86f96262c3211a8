//! The network is cut between ranks that run: nothing is closed, nothing comes. Three hosts made of network namespaces, with a cable between
//! each two of them and a rank on each.

#![cfg(target_os = "linux")]

mod support;

use phalanx::{Error, Loss, Secret};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use support::ip;

const HOSTS: usize = 3;
const HEARTBEAT: Duration = Duration::from_secs(3);
/// A cut between two ranks that both still reach the arbiter is noticed a little later.
const CUT_KNOWN: Duration = Duration::from_millis(4500);
/// On top of that, as for every failure.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);

/// A rank: everybody sends to everybody until something goes wrong.
#[test]
#[ignore = "this is what the ranks of the job run"]
fn rank() {
    if std::env::var_os("RANK").is_none() {
        return;
    }
    let group = phalanx::init().expect("the ranks come together");
    assert_eq!(group.describe(), "tcp: 3 ranks on 3 hosts");
    let error = (0..).find_map(|step| {
        if step == 10 {
            support::say("started", "");
        }
        group.all_to_all(&[step as f32; 1000 * HOSTS], &mut [0f32; 1000 * HOSTS]).err()
    });
    let error = error.expect("the loop ends only with an error");
    let Error::PeerLost { peer, how, .. } = &error else { panic!("for another reason: {error}") };
    match how {
        Loss::Silent { .. } => support::say("silent", peer.rank),
        Loss::Unreachable { from } => support::say("unreachable", format!("{} {from}", peer.rank)),
        _ => support::say("other", &error),
    }
}

/// Namespaces, gone with this.
struct Hosts([String; HOSTS]);

fn addr(host: usize) -> String {
    format!("10.78.0.{}", host + 1)
}

impl Hosts {
    /// `Err` says why this machine, or this user, can't have them.
    fn connect(name: &str) -> Result<Self, String> {
        let id = std::process::id();
        let hosts = Self([0, 1, 2].map(|host| format!("phalanx-{id}-{name}-{host}")));
        for (i, host) in hosts.0.iter().enumerate() {
            ip(&format!("netns add {host}"))?;
            ip(&format!("-n {host} link set lo up"))?;
            ip(&format!("-n {host} addr add {}/32 dev lo", addr(i)))?;
        }
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            let (here, there) = (&hosts.0[a], &hosts.0[b]);
            ip(&format!("link add to{b} netns {here} type veth peer name to{a} netns {there}"))?;
            for (from, to) in [(a, b), (b, a)] {
                let host = &hosts.0[from];
                ip(&format!("-n {host} link set to{to} up"))?;
                ip(&format!("-n {host} route add {}/32 dev to{to} src {}", addr(to), addr(from)))?;
            }
        }
        Ok(hosts)
    }

    /// From now on all packets from one to the other are lost, and nobody is told.
    fn cut(&self, from: usize, to: usize) {
        ip(&format!("-n {} route replace blackhole {}/32", self.0[from], addr(to)))
            .expect("it worked before");
        let _ = ip(&format!("-n {} route del {}/32 dev to{to}", self.0[from], addr(to)));
    }

    fn start(&self, rank: usize, secret: &Secret) -> Rank {
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.0[rank]])
            .arg(std::env::current_exe().expect("this test has a path"))
            .args(["--exact", "rank", "--ignored", "--nocapture", "--test-threads=1"])
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", HOSTS.to_string())
            .env("MASTER_ADDR", addr(0))
            .env("MASTER_PORT", "29500")
            .env("PHALANX_SECRET", secret.to_hex())
            .env("PHALANX_HEARTBEAT_TIMEOUT_S", HEARTBEAT.as_secs().to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("ip was there before");
        let (say, said) = channel();
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| say.send(line)));
        Rank { child, said }
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

/// A process, which does not outlive this, and its lines.
struct Rank {
    child: Child,
    said: Receiver<String>,
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first line that begins with one of these words.
fn wait_for(rank: &Rank, words: &[&str], limit: Duration) -> String {
    let until = Instant::now() + limit;
    loop {
        let line = rank.said.recv_timeout(until.saturating_duration_since(Instant::now()));
        let line = line.unwrap_or_else(|error| panic!("nothing of {words:?} in {limit:?}: {error}"));
        if words.iter().any(|word| line.starts_with(word)) {
            return line;
        }
    }
}

/// What each rank says when `cuts` (from, to) are made while all send to all; `None` where namespaces can't be had.
#[allow(clippy::print_stdout, reason = "a test that is skipped says so")]
fn after_cutting(name: &str, cuts: &[(usize, usize)], known: Duration) -> Option<Vec<String>> {
    let hosts = match Hosts::connect(name) {
        Ok(hosts) => hosts,
        Err(why) => {
            println!("skipped: no network namespaces here: {why}");
            return None;
        }
    };
    let secret = Secret::generate().expect("there is randomness");
    let mut ranks: Vec<Rank> = (0..HOSTS).map(|rank| hosts.start(rank, &secret)).collect();
    for rank in &ranks {
        wait_for(rank, &["started"], Duration::from_secs(60));
    }
    cuts.iter().for_each(|&(from, to)| hosts.cut(from, to));
    let begun = Instant::now();
    let left = || (known + KNOWN_WITHIN).saturating_sub(begun.elapsed());
    let words = ["silent", "unreachable", "other"];
    let said = ranks.iter().map(|rank| wait_for(rank, &words, left())).collect();
    for rank in &mut ranks {
        let status = rank.child.wait().expect("it was started here");
        assert!(status.success(), "{status}");
    }
    Some(said)
}

#[test]
fn a_host_that_is_cut_off_is_silent() {
    let cuts = [(0, 2), (2, 0), (1, 2), (2, 1)];
    let Some(said) = after_cutting("off", &cuts, HEARTBEAT) else { return };
    assert_eq!(said, ["silent 2", "silent 2", "silent 0"], "who is cut off sees only that rank 0 is");
}

#[test]
fn two_ranks_that_are_cut_apart_are_named_to_all() {
    for (name, cuts) in [("two", &[(1, 2), (2, 1)][..]), ("one", &[(1, 2)])] {
        let Some(said) = after_cutting(name, cuts, CUT_KNOWN) else { return };
        assert!(said.iter().all(|line| *line == said[0]), "{said:?}");
        assert!(["unreachable 1 2", "unreachable 2 1"].contains(&said[0].as_str()), "{said:?}");
    }
}

#[test]
fn one_direction_is_enough() {
    // What rank 0 says still goes through, but nobody can acknowledge it.
    let Some(said) = after_cutting("deaf", &[(1, 0), (2, 0)], HEARTBEAT) else { return };
    assert!(["silent 1", "silent 2"].contains(&said[0].as_str()), "{said:?}");
    assert_eq!(said[1..], ["silent 0", "silent 0"]);
}
