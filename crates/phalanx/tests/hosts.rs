//! Jobs over several hosts, each with a launcher of its own: processes of one machine, and network namespaces with a cable between them.

#![cfg(target_os = "linux")]

mod support;

use phalanx::launch::{Elastic, Launch, Node};
use phalanx::store::Secret;
use phalanx::{ProcessGroup, ReduceOp};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use support::ip;

/// What a host's launcher is told: its number, how many there are, where the first listens, how many ranks it has room for, what they do, and the
/// size of an elastic job.
const HOST: &str = "PHALANX_TEST_HOST";
/// Whether a shell is between the launcher and its ranks.
const WRAPPED: &str = "PHALANX_TEST_WRAPPED";
const SECRET: &str = "PHALANX_TEST_SECRET";
/// Far more than anything here takes.
const HANG: Duration = Duration::from_secs(60);

/// What launchers and ranks are.
#[test]
#[ignore = "this is what launchers and their ranks run"]
fn rank() {
    match support::role().as_deref() {
        Some("host") => launch(),
        Some("adds") => adds(phalanx::init().expect("the ranks come together")),
        Some("goes on") => goes_on(phalanx::init().expect("the ranks come together")),
        Some(other) => panic!("no role {other:?}"),
        None => {}
    }
}

fn launch() {
    let told = std::env::var(HOST).expect("it comes with the role");
    let told: Vec<&str> = told.split(' ').collect();
    let number = |text: &str| text.parse().expect("a number");
    let [node, nodes, rendezvous, ranks, role, size] = told[..].try_into().expect("six words");
    let secret =
        Secret::from_hex(&std::env::var(SECRET).expect("it comes with the role")).expect("it is one");
    let node = Node::new(number(node), number(nodes), rendezvous, secret).expect("it makes sense");
    let myself = std::env::current_exe().expect("this test has a path").into_os_string();
    let (program, before) = match std::env::var_os(WRAPPED) {
        Some(_) => ("sh".into(), vec!["-c".into(), "\"$@\"; true".into(), "sh".into(), myself]),
        None => (myself, Vec::new()),
    };
    let mut launch = Launch::new(program)
        .args(before)
        .args(["--exact", "rank", "--ignored", "--nocapture", "--test-threads=1"])
        .env("PHALANX_TEST_ROLE", role.replace('_', " "))
        .ranks(number(ranks))
        .grace(Duration::from_secs(1))
        .node(node);
    if let Ok(size) = size.parse::<Elastic>() {
        launch = launch.elastic(size);
    }
    match launch.run() {
        Ok(outcome) => {
            support::say("outcome", &outcome);
            std::process::exit(outcome.exit_code());
        }
        Err(error) => {
            support::say("error", &error);
            std::process::exit(1);
        }
    }
}

/// Says which rank of how many this is on which host, and adds up with the others.
fn tell(group: &ProcessGroup) -> phalanx::Result<()> {
    let mut sum = [group.rank() as u64 + 1; 1000];
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    let node = std::env::var("PHALANX_NODE_RANK").expect("the launcher says so");
    let (generation, rank, size) = (group.generation(), group.rank(), group.world_size());
    support::say(
        "here",
        format!("{generation} {rank}/{size} node {node} sum {} pid {}", sum[0], std::process::id()),
    );
    Ok(())
}

fn adds(group: ProcessGroup) {
    tell(&group).expect("all are there");
    support::say("described", group.describe());
    group.finalize().expect("all are there");
}

/// Adds up until somebody is lost, and then with those who are left, until the second loss.
fn goes_on(mut group: ProcessGroup) {
    loop {
        let error = match tell(&group).and_then(|()| works(&group)) {
            Ok(()) => break,
            Err(error) => error,
        };
        support::say("lost", &error);
        group = group.rejoin().expect("those who are left come together");
    }
    group.finalize().expect("all are there");
}

/// Until all find the file that says that it was enough.
fn works(group: &ProcessGroup) -> phalanx::Result<()> {
    let enough = std::env::temp_dir().join("enough");
    loop {
        let mut is_enough = [u8::from(enough.exists())];
        group.broadcast(&mut is_enough, 0)?;
        if is_enough == [1] {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Hosts with launchers.
struct Job {
    nodes: usize,
    rendezvous: String,
    role: &'static str,
    size: &'static str,
    folder: tempfile::TempDir,
    secret: Secret,
}

/// A launcher, which does not outlive this, and all that it has said.
struct Host {
    launcher: Child,
    said: Arc<Mutex<Vec<String>>>,
}

impl Job {
    fn of(nodes: usize, role: &'static str, size: &'static str) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port").port();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let secret = Secret::generate().expect("there is randomness");
        Self { nodes, rendezvous: format!("127.0.0.1:{port}"), role, size, folder, secret }
    }

    fn host(&self, node: usize, ranks: usize) -> Host {
        self.start(support::again("host"), node, ranks)
    }

    fn start(&self, mut command: Command, node: usize, ranks: usize) -> Host {
        let Self { nodes, rendezvous, role, size, folder, secret } = self;
        let mut launcher = command
            .env(HOST, format!("{node} {nodes} {rendezvous} {ranks} {role} {size}"))
            .env(SECRET, secret.to_hex())
            .env("PHALANX_HOST_ID", format!("host-{node}"))
            .env("TMPDIR", folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("it starts");
        let said = Arc::<Mutex<Vec<String>>>::default();
        let (lines, keep) =
            (BufReader::new(launcher.stdout.take().expect("it is piped")).lines(), said.clone());
        std::thread::spawn(move || {
            lines.map_while(Result::ok).for_each(|line| keep.lock().expect("no reader panics").push(line));
        });
        Host { launcher, said }
    }

    fn enough(&self) {
        std::fs::write(self.folder.path().join("enough"), "").expect("the folder is ours");
    }
}

impl Host {
    /// Waits until it has said so many lines with all of these words; returns them, sorted.
    #[track_caller]
    fn lines(&self, words: &[&str], count: usize) -> Vec<String> {
        let until = Instant::now() + HANG;
        loop {
            let said = self.said.lock().expect("no reader panics").clone();
            let has = |line: &&String| words.iter().all(|word| line.contains(word));
            let mut lines: Vec<String> = said.iter().filter(has).cloned().collect();
            if lines.len() >= count {
                lines.sort_unstable();
                return lines;
            }
            assert!(Instant::now() < until, "not {count} times {words:?}:\n{}", said.join("\n"));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[track_caller]
    fn ends(&mut self) -> Option<i32> {
        let until = Instant::now() + HANG;
        loop {
            if let Some(status) = self.launcher.try_wait().expect("it is ours") {
                return status.code();
            }
            assert!(
                Instant::now() < until,
                "it does not end: {:?}",
                self.said.lock().expect("no reader panics")
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn kill(&mut self) {
        self.launcher.kill().expect("it is ours");
        self.launcher.wait().expect("it is ours");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

fn pids(lines: &[String]) -> Vec<u32> {
    lines.iter().filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect()
}

/// Waits until none of them runs, no longer than is promised.
#[track_caller]
fn all_gone(pids: &[u32], limit: Duration) {
    assert!(!pids.is_empty());
    let until = Instant::now() + limit;
    while let Some(pid) = pids.iter().find(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
        assert!(Instant::now() < until, "process {pid} of {pids:?} is still there");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn hosts_with_unlike_numbers_of_ranks_add_up_right() {
    let job = Job::of(2, "adds", "-");
    let [mut leader, mut agent] = [(0, 3), (1, 1)].map(|(node, ranks)| job.host(node, ranks));
    let here = leader.lines(&["here 0 "], 4);
    for (rank, line) in here.iter().enumerate() {
        let node = usize::from(rank == 3);
        assert!(
            line.contains(&format!("[{rank} host-{node}] here 0 {rank}/4 node {node} sum 10 pid")),
            "{line}"
        );
    }
    leader.lines(&["described two-level: 4 ranks on 2 hosts"], 4);
    assert_eq!((leader.ends(), agent.ends()), (Some(0), Some(0)));
}

#[test]
fn a_lost_hosts_ranks_are_replaced_where_there_is_room_and_a_host_that_comes_back_has_room() {
    // Four ranks, and five places: the fifth is on the third host.
    let job = Job::of(3, "goes_on", "3:4");
    let mut hosts = [(0, 2), (1, 2), (2, 1)].map(|(node, ranks)| job.host(node, ranks));
    let lost = pids(&hosts[0].lines(&["here 0 ", "node 1"], 2));
    hosts[1].kill();
    all_gone(&lost, Duration::from_secs(10));
    // One of the two is replaced on the third host, and the job goes on without the other.
    let [leader, _, third] = &hosts;
    let again = leader.lines(&["/3 node ", "sum 6 "], 3);
    assert_eq!(again.iter().filter(|line| line.contains("node 2")).count(), 1, "{again:?}");
    let new = pids(&leader.lines(&["/3 node 2", "sum 6 "], 1));
    // A host comes back, and the third is lost: what was there goes on on the second.
    let mut back = job.host(1, 2);
    std::thread::sleep(Duration::from_millis(500));
    let _ = third;
    hosts[2].kill();
    all_gone(&new, Duration::from_secs(10));
    hosts[0].lines(&["/3 node 1", "sum 6 "], 1);
    job.enough();
    assert_eq!((hosts[0].ends(), back.ends()), (Some(0), Some(0)));
}

#[test]
fn no_rank_behind_a_shell_outlives_an_agent_that_is_killed() {
    let job = Job::of(2, "goes_on", "-");
    let wrapped = |node| {
        let mut command = support::again("host");
        command.env(WRAPPED, "yes");
        job.start(command, node, 1)
    };
    let (mut leader, mut agent) = (wrapped(0), wrapped(1));
    let ranks = pids(&leader.lines(&["here 0 "], 2));
    agent.kill();
    all_gone(&ranks, Duration::from_secs(10));
    assert_eq!(leader.ends(), Some(1));
}

#[test]
fn an_elastic_job_shrinks_by_a_lost_host_and_ends_when_too_few_are_left() {
    let job = Job::of(3, "goes_on", "2:4");
    let mut hosts = [(0, 1), (1, 2), (2, 1)].map(|(node, ranks)| job.host(node, ranks));
    hosts[0].lines(&["here 0 ", "/4 "], 4);
    hosts[1].kill();
    hosts[0].lines(&["/2 node ", "sum 3 "], 2);
    hosts[2].kill();
    assert_eq!(hosts[0].ends(), Some(1));
    let report = hosts[0].lines(&["outcome rank "], 1);
    assert!(report[0].contains(" on host-") && report[0].contains("was lost with its host"), "{report:?}");
}

/// Two network namespaces with a cable between them, gone with this.
struct Cable([String; 2]);

impl Cable {
    /// `Err` says why this machine, or this user, can't have them.
    fn lay() -> Result<Self, String> {
        let id = std::process::id();
        let cable = Self(["x", "y"].map(|end| format!("phalanx-{id}-{end}")));
        let [a, b] = &cable.0;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        ip(&format!("link add cable netns {a} type veth peer name cable netns {b}"))?;
        for (host, addr) in [(a, "10.79.0.1"), (b, "10.79.0.2")] {
            ip(&format!("-n {host} addr add {addr}/24 dev cable"))?;
            ip(&format!("-n {host} link set cable up"))?;
            ip(&format!("-n {host} link set lo up"))?;
        }
        Ok(cable)
    }

    /// From now on all packets are lost, and nobody is told.
    fn cut(&self) {
        for (host, there) in [(0, "10.79.0.2"), (1, "10.79.0.1")] {
            ip(&format!("-n {} route add blackhole {there}/32", self.0[host])).expect("it worked before");
        }
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for host in &self.0 {
            // It may never have been there.
            let _ = ip(&format!("netns del {host}"));
        }
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "a test that is skipped says so")]
fn a_host_whose_link_is_cut_is_named_and_its_ranks_are_gone_within_ten_seconds() {
    let cable = match Cable::lay() {
        Ok(cable) => cable,
        Err(why) => return println!("skipped: no network namespaces here: {why}"),
    };
    let job = Job { rendezvous: "10.79.0.1:29500".into(), ..Job::of(2, "goes_on", "-") };
    let [mut leader, mut agent] =
        [0, 1].map(|node| job.start(support::again_in(&cable.0[node], "host"), node, 1 + node));
    let ranks = leader.lines(&["here 0 ", "/3 "], 3);
    let there = pids(&leader.lines(&["here 0 ", "node 1"], 2));
    cable.cut();
    all_gone(&there, Duration::from_secs(10));
    assert_eq!((leader.ends(), agent.ends()), (Some(1), Some(1)));
    all_gone(&pids(&ranks), Duration::from_secs(1));
    let report = leader.lines(&["outcome rank "], 1);
    let words = " on host-1) was lost with its host after ";
    assert!(
        report[0].contains(words) && report[0].contains("nothing was heard of its agent for 6.0 s"),
        "{report:?}"
    );
    let own = agent.lines(&["error node 1 has lost the launcher that leads the job"], 1);
    assert!(own[0].contains("10.79.0.1:29500"), "{own:?}");
}
