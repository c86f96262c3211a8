//! The network is cut between ranks that run: nothing is closed, nothing comes. Hosts made of network namespaces, with a cable between
//! each two of them and a rank on each.

#![cfg(target_os = "linux")]

mod support;

use phalanx::error::Loss;
use phalanx::store::Secret;
use phalanx::{Error, ProcessGroup};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use support::ip;

const HEARTBEAT: Duration = Duration::from_secs(3);
/// On top of the time in which it is noticed, as for every failure.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);
/// Where a rank looks whether it has been enough.
const ENOUGH: &str = "CUT_ENOUGH";

/// A rank: everybody sends to everybody until something goes wrong, or it has been enough.
#[test]
#[ignore = "this is what the ranks of the job run"]
fn rank() {
    if std::env::var_os("RANK").is_none() {
        return;
    }
    let group = phalanx::init().expect("the ranks come together");
    let hosts = group.world_size();
    assert_eq!(group.describe(), format!("tcp: {hosts} ranks on {hosts} hosts"));
    let enough = std::env::var(ENOUGH).expect("the test says where");
    let error = match work(&group, Path::new(&enough)) {
        Ok(()) => return support::say("done", ""),
        Err(error) => error,
    };
    let Error::PeerLost { peer, how, .. } = &error else { panic!("for another reason: {error}") };
    match how {
        Loss::Silent { .. } => support::say("silent", peer.rank),
        Loss::Unreachable { from } => support::say("unreachable", format!("{} {from}", peer.rank)),
        Loss::Apart { from, .. } => {
            support::say("apart", format!("{} {}", peer.rank.min(*from), peer.rank.max(*from)));
        }
        _ => support::say("other", &error),
    }
}

fn work(group: &ProcessGroup, enough: &Path) -> phalanx::Result<()> {
    let hosts = group.world_size();
    for step in 0u32.. {
        if step == 10 {
            support::say("started", "");
        }
        if step.is_multiple_of(50) {
            let mut is_enough = [u8::from(enough.exists())];
            group.broadcast(&mut is_enough, 0)?;
            if is_enough == [1] {
                break;
            }
        }
        let (sent, mut got) = (vec![step as f32; 1000 * hosts], vec![0f32; 1000 * hosts]);
        group.all_to_all(&sent, &mut got)?;
        assert_eq!(got, sent);
    }
    group.barrier()
}

/// Namespaces, gone with this.
struct Hosts(Vec<String>);

fn addr(host: usize) -> String {
    format!("10.78.0.{}", host + 1)
}

impl Hosts {
    /// `Err` says why this machine, or this user, can't have them.
    fn connect(name: &str, count: usize) -> Result<Self, String> {
        let id = std::process::id();
        let hosts = Self((0..count).map(|host| format!("phalanx-{id}-{name}-{host}")).collect());
        for (i, host) in hosts.0.iter().enumerate() {
            ip(&format!("netns add {host}"))?;
            ip(&format!("-n {host} link set lo up"))?;
            ip(&format!("-n {host} addr add {}/32 dev lo", addr(i)))?;
        }
        for (a, b) in (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b))) {
            let (here, there) = (&hosts.0[a], &hosts.0[b]);
            ip(&format!("link add to{b} netns {here} type veth peer name to{a} netns {there}"))?;
            for (from, to) in [(a, b), (b, a)] {
                ip(&format!("-n {} link set to{to} up", hosts.0[from]))?;
                hosts.route("add", from, to)?;
            }
        }
        Ok(hosts)
    }

    fn route(&self, how: &str, from: usize, to: usize) -> Result<(), String> {
        ip(&format!("-n {} route {how} {}/32 dev to{to} src {}", self.0[from], addr(to), addr(from)))
    }

    /// From now on all packets from one to the other are lost, and nobody is told.
    fn cut(&self, from: usize, to: usize) {
        ip(&format!("-n {} route replace blackhole {}/32", self.0[from], addr(to)))
            .expect("it worked before");
        let _ = ip(&format!("-n {} route del {}/32 dev to{to}", self.0[from], addr(to)));
    }

    /// From now on they arrive again.
    fn heal(&self, from: usize, to: usize) {
        ip(&format!("-n {} route del blackhole {}/32", self.0[from], addr(to))).expect("it was cut");
        self.route("add", from, to).expect("it worked before");
    }

    /// All packets from and to one host.
    fn all_of(&self, host: usize) -> Vec<(usize, usize)> {
        (0..self.0.len())
            .filter(|&other| other != host)
            .flat_map(|other| [(host, other), (other, host)])
            .collect()
    }

    fn start(&self, rank: usize, secret: &Secret, heartbeat: Duration, enough: &Path) -> Rank {
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.0[rank]])
            .arg(std::env::current_exe().expect("this test has a path"))
            .args(["--exact", "rank", "--ignored", "--nocapture", "--test-threads=1"])
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", self.0.len().to_string())
            .env("MASTER_ADDR", addr(0))
            .env("MASTER_PORT", "29500")
            .env("PHALANX_SECRET", secret.to_hex())
            .env("PHALANX_HEARTBEAT_TIMEOUT_S", heartbeat.as_secs().to_string())
            .env(ENOUGH, enough)
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
            return line.trim().to_owned();
        }
    }
}

/// What is cut, and for how long.
struct Cut {
    hosts: usize,
    heartbeat: Duration,
    /// (from, to); whoever is cut off altogether is named by its number.
    packets: Vec<(usize, usize)>,
    off: Option<usize>,
    /// `None`: for ever.
    heals: Option<Duration>,
    /// When all are to know of it.
    known: Duration,
}

impl Cut {
    fn of(hosts: usize, packets: &[(usize, usize)]) -> Self {
        let packets = packets.to_vec();
        Self { hosts, heartbeat: HEARTBEAT, packets, off: None, heals: None, known: HEARTBEAT * 3 / 2 }
    }

    fn off(hosts: usize, host: usize) -> Self {
        Self { off: Some(host), ..Self::of(hosts, &[]) }
    }

    /// What each rank says when that happens while all send to all; `None` where namespaces can't be had.
    #[allow(clippy::print_stdout, reason = "a test that is skipped says so")]
    fn happens(&self, name: &str) -> Option<Vec<String>> {
        let hosts = match Hosts::connect(name, self.hosts) {
            Ok(hosts) => hosts,
            Err(why) => {
                println!("skipped: no network namespaces here: {why}");
                return None;
            }
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let enough = folder.path().join("enough");
        let secret = Secret::generate().expect("there is randomness");
        let start = |rank| hosts.start(rank, &secret, self.heartbeat, &enough);
        let mut ranks: Vec<Rank> = (0..self.hosts).map(start).collect();
        for rank in &ranks {
            wait_for(rank, &["started"], Duration::from_secs(60));
        }
        let packets = self.off.map_or_else(|| self.packets.clone(), |host| hosts.all_of(host));
        packets.iter().for_each(|&(from, to)| hosts.cut(from, to));
        let begun = Instant::now();
        if let Some(heals) = self.heals {
            std::thread::sleep(heals);
            packets.iter().for_each(|&(from, to)| hosts.heal(from, to));
            if heals < self.heartbeat {
                // Everything that a cut can lead to has happened by then.
                std::thread::sleep(self.heartbeat * 2);
                std::fs::write(&enough, "").expect("the folder is there");
            }
        }
        let left = || (self.known + KNOWN_WITHIN + self.heartbeat * 4).saturating_sub(begun.elapsed());
        let words = ["silent", "unreachable", "apart", "other", "done"];
        let said = ranks.iter().map(|rank| wait_for(rank, &words, left())).collect();
        for rank in &mut ranks {
            let status = rank.child.wait().expect("it was started here");
            assert!(status.success(), "{status}");
        }
        Some(said)
    }
}

#[test]
fn a_host_that_is_cut_off_is_named_everywhere_and_by_itself() {
    for host in [2, 0] {
        let Some(said) = Cut::off(3, host).happens(&format!("off{host}")) else { return };
        assert_eq!(said, vec![format!("silent {host}"); 3]);
    }
}

#[test]
fn of_two_hosts_neither_is_blamed_for_the_network_between_them() {
    let Some(said) = Cut::off(2, 1).happens("pair") else { return };
    assert_eq!(said, ["apart 0 1"; 2]);
}

#[test]
fn two_ranks_that_are_cut_apart_are_named_to_all() {
    for (name, cuts) in [("two", &[(1, 2), (2, 1)][..]), ("one", &[(1, 2)])] {
        let Some(said) = Cut::of(3, cuts).happens(name) else { return };
        assert!(said.iter().all(|line| *line == said[0]), "{said:?}");
        assert!(["unreachable 1 2", "unreachable 2 1"].contains(&said[0].as_str()), "{said:?}");
    }
}

#[test]
fn one_direction_is_enough() {
    // What rank 0 says still goes through, but nobody can acknowledge it, and it hears nobody.
    let Some(said) = Cut::of(3, &[(1, 0), (2, 0)]).happens("deaf") else { return };
    assert_eq!(said, ["silent 0"; 3]);
}

#[test]
fn an_outage_that_is_shorter_than_the_heartbeat_ends_nothing() {
    let heals = Some(HEARTBEAT * 5 / 6);
    let pair = || Cut::of(3, &[(1, 2), (2, 1)]);
    for (name, cut) in
        [("heal2", Cut::off(3, 2)), ("heal0", Cut::off(3, 0)), ("heal", Cut::off(2, 1)), ("heal12", pair())]
    {
        let Some(said) = (Cut { heals, ..cut }).happens(name) else { return };
        assert!(said.iter().all(|line| line == "done"), "{name}: {said:?}");
    }
}

/// `cargo xtask elastic --cuts`
#[test]
#[ignore = "it takes many minutes: cargo xtask elastic --cuts"]
#[allow(clippy::print_stdout, reason = "a soak says how far it is")]
fn soak_of_cuts_of_1_to_9_s_and_of_12_s_under_a_heartbeat_of_10_s() {
    let seconds = Duration::from_secs;
    let mut rounds = 0;
    for (hosts, host) in [(3, 2), (3, 0), (2, 1)] {
        for length in (1..=9).chain([12]) {
            let cut = Cut {
                heartbeat: seconds(10),
                heals: Some(seconds(length)),
                known: seconds(15),
                ..Cut::off(hosts, host)
            };
            let Some(said) = cut.happens(&format!("s{hosts}{host}{length}")) else { return };
            let expected = match (length, hosts) {
                (..10, _) => "done".to_owned(),
                (_, 2) => "apart 0 1".to_owned(),
                _ => format!("silent {host}"),
            };
            assert_eq!(said, vec![expected; hosts], "host {host} of {hosts}, cut off for {length} s");
            rounds += 1;
            println!("host {host} of {hosts}, cut off for {length} s: {}", said[0]);
        }
    }
    println!("{rounds} cuts");
}
