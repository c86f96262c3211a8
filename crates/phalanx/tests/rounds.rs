//! Elastic jobs to which things happen at random, again and again: several ranks die at once, replacements die while they join, ranks are
//! stopped, before the others notice a loss or while they come together, wait in subgroups, or compute for long. What is trained must come out
//! as if nothing had happened, and nobody who lives is left out.

#![cfg(target_os = "linux")]

mod support;

use phalanx::launch::{Elastic, Outcome};
use phalanx::{ProcessGroup, ReduceOp};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use support::Output;

const HEARTBEAT: Duration = Duration::from_secs(3);
const INIT_TIME: Duration = Duration::from_secs(8);
/// A rank that takes so long to come takes twice the time of init.
const COMPUTES: Duration = Duration::from_secs(16);
/// Whoever waits longer hangs.
const HANGS: Duration = Duration::from_secs(120);
/// Parts of a step, dealt out among the ranks.
const PARTS: u64 = 24;
/// Steps between two looks for replacements.
const EPOCH: u64 = 20;

/// What a part of a step adds to the sum that is trained.
fn part(step: u64, part: u64) -> u64 {
    let mixed = (step * PARTS + part + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)) >> 24
}

/// A rank: trains until it has been enough, and goes on after every loss.
#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    let Some(folder) = support::role() else { return };
    let folder = Path::new(&folder);
    support::say("starts", std::process::id());
    let mut group = phalanx::init().unwrap_or_else(|error| {
        support::say("unwanted", error);
        std::process::exit(1)
    });
    let mut state = [0u64; 2];
    loop {
        match train(&group, &mut state, folder) {
            Ok(true) => break,
            Ok(false) => {}
            Err(error) => {
                assert!(!error.group_is_usable(), "{error}");
                support::say("lost", &error);
                if folder.join(format!("computes-{}", std::process::id())).exists() {
                    std::thread::sleep(COMPUTES);
                }
            }
        }
        group = group.rejoin().unwrap_or_else(|error| {
            support::say("behind", format!("{} {error}", std::process::id()));
            std::process::exit(1)
        });
    }
    support::say("trained", format!("{} {}", state[0], state[1]));
    group.finalize().expect("all are there");
}

/// Whether it has been enough; if not, somebody waits to be let in.
fn train(group: &ProcessGroup, state: &mut [u64; 2], folder: &Path) -> phalanx::Result<bool> {
    let (rank, ranks, me) = (group.rank(), group.world_size(), std::process::id());
    // The new rank 0 has the state, if anybody has.
    group.broadcast(state, 0)?;
    let pair = group.split(Some(rank as u32 / 2), 0)?.expect("each rank is in one");
    support::say("here", format!("{} {rank} {ranks} {me}", group.generation()));
    loop {
        let step = state[0];
        if pair.world_size() > 1 && std::fs::remove_file(folder.join(format!("waits-{me}"))).is_ok() {
            // For something that never comes, once.
            pair.recv(&mut [0u8], 1 - pair.rank(), 9)?;
        }
        let own: u64 = (0..PARTS).filter(|p| *p as usize % ranks == rank).map(|p| part(step, p)).sum();
        let mut sums = [own, u64::from(rank == 0 && folder.join("enough").exists())];
        group.all_reduce(&mut sums, ReduceOp::Sum)?;
        *state = [step + 1, state[1].wrapping_add(sums[0])];
        let mut both = [1u64];
        pair.all_reduce(&mut both, ReduceOp::Sum)?;
        assert_eq!(both, [pair.world_size() as u64]);
        if rank == 0 {
            support::say("step", format!("{} {} {}", group.generation(), step, support::now_ms()));
        }
        if sums[1] > 0 {
            return Ok(true);
        }
        if step.is_multiple_of(EPOCH) && group.waiting()? > 0 {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }

    fn pause(&mut self, ms: usize) {
        std::thread::sleep(Duration::from_millis(self.below(ms) as u64));
    }
}

/// What happens to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    /// Several ranks are killed at once.
    Kills,
    /// One is killed, and its replacement too, while it joins.
    KillsReplacement,
    /// One is stopped.
    Stops,
    /// One is killed, and another stopped while the others come together.
    StopsMeanwhile,
    /// One is killed, and a survivor computes for long before it comes.
    Computes,
    /// One is killed while a survivor waits for another in a subgroup.
    WaitsInPair,
}

const HARMS: [Harm; 6] = [
    Harm::Kills,
    Harm::KillsReplacement,
    Harm::Stops,
    Harm::StopsMeanwhile,
    Harm::Computes,
    Harm::WaitsInPair,
];

/// One job.
struct Round<'a> {
    context: String,
    ranks: usize,
    output: &'a Output,
    folder: &'a Path,
    random: Random,
    /// Processes that were killed, and those that are stopped or were.
    killed: BTreeSet<String>,
    stopped: BTreeSet<String>,
    were_stopped: BTreeSet<String>,
}

impl Round<'_> {
    /// What was said, by whomever, word by word.
    fn said(&self, word: &str) -> Vec<Vec<String>> {
        let lines = (0..self.ranks).flat_map(|slot| self.output.said(slot, word));
        lines.map(|line| line.split(' ').map(String::from).collect()).collect()
    }

    fn signal(&self, name: &str, pid: &str) {
        // Of a process that has ended meanwhile nothing is wanted any more.
        let _ = Command::new("kill").args([name, pid]).output();
    }

    fn wait<T>(&self, what: &str, look: impl Fn() -> Option<T>) -> T {
        let until = Instant::now() + HANGS;
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(Instant::now() < until, "{}: {what}:\n{}", self.context, self.tail());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// What the ranks said, without the steps.
    fn tail(&self) -> String {
        self.output
            .text()
            .lines()
            .filter(|line| !line.contains("] step ") && line.len() > 4)
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// The processes of the latest generation in rank order, once it has so many ranks, none of which was killed, and comes after `generation`.
    fn generation(&self, after: Option<u64>, ranks: usize) -> (u64, Vec<String>) {
        self.wait(&format!("no generation of {ranks} ranks after {after:?}"), || {
            let number = |word: &String| word.parse::<u64>().expect("a number");
            let said = self.said("here");
            let mut here: Vec<(u64, u64, u64, String)> =
                said.iter().map(|w| (number(&w[0]), number(&w[1]), number(&w[2]), w[3].clone())).collect();
            here.sort();
            let latest = here.last()?.0;
            here.retain(|(generation, ..)| *generation == latest);
            let fits = |(.., size, pid): &(u64, u64, u64, String)| {
                *size == ranks as u64 && !self.killed.contains(pid)
            };
            let is_it =
                here.len() == ranks && here.iter().all(fits) && after.is_none_or(|after| latest > after);
            is_it.then(|| (latest, here.into_iter().map(|(.., pid)| pid).collect()))
        })
    }

    /// For how long nothing was trained after `since`, in a generation after `generation`.
    fn stall(&self, since: u128, generation: u64) -> Duration {
        let at = self.wait("nothing is trained", || {
            let steps = self
                .said("step")
                .into_iter()
                .map(|w| (w[0].parse::<u64>().expect("a number"), w[2].parse::<u128>().expect("a time")));
            steps.filter(|(of, at)| *of > generation && *at > since).map(|(_, at)| at).min()
        });
        Duration::from_millis((at - since) as u64)
    }

    fn take(&mut self, from: &mut Vec<String>) -> String {
        let at = self.random.below(from.len());
        from.remove(at)
    }

    fn kill(&mut self, pid: String) {
        self.signal("-KILL", &pid);
        self.killed.insert(pid);
    }

    fn stop(&mut self, pid: String) {
        self.signal("-STOP", &pid);
        self.were_stopped.insert(pid.clone());
        self.stopped.insert(pid);
    }

    fn mark(&self, what: &str, pid: &str) {
        std::fs::write(self.folder.join(format!("{what}-{pid}")), "").expect("the folder is there");
    }

    /// Does it to a job that is at work, and waits until it is again; how long that took, of harm that is not to be waited for.
    fn harm(&mut self, harm: Harm) -> Option<Duration> {
        let (generation, mut pids) = self.generation(None, self.ranks);
        self.random.pause(300);
        let mut since = support::now_ms();
        match harm {
            Harm::Kills => {
                for _ in 0..=self.random.below(pids.len() - 1) {
                    let pid = self.take(&mut pids);
                    self.kill(pid);
                }
            }
            Harm::KillsReplacement => {
                let known: BTreeSet<String> = self.said("starts").into_iter().map(|w| w[0].clone()).collect();
                let pid = self.take(&mut pids);
                self.kill(pid);
                let new = self.wait("no replacement", || {
                    self.said("starts").into_iter().map(|w| w[0].clone()).find(|pid| !known.contains(pid))
                });
                self.random.pause(300);
                since = support::now_ms();
                self.kill(new);
            }
            Harm::Stops => {
                let pid = self.take(&mut pids);
                self.stop(pid);
            }
            Harm::StopsMeanwhile => {
                let [first, second] = [(); 2].map(|()| self.take(&mut pids));
                self.kill(first);
                self.random.pause(200);
                since = support::now_ms();
                self.stop(second);
            }
            Harm::Computes => {
                let pid = self.take(&mut pids);
                let slow = self.take(&mut pids);
                self.mark("computes", &slow);
                self.kill(pid);
            }
            Harm::WaitsInPair => {
                // The first two are a pair, and somebody else dies.
                let waits = self.random.below(2);
                self.mark("waits", &pids[waits]);
                self.random.pause(100);
                let last = pids.pop().expect("there are three at least");
                since = support::now_ms();
                self.kill(last);
            }
        }
        let after = self.ranks - self.stopped.len();
        // One that is killed while it is counted on is counted on once more.
        let (_, here) = self.generation(Some(generation), after);
        for pid in &pids {
            assert!(
                here.contains(pid),
                "{}: {pid} lives and is left out of {here:?}:\n{}",
                self.context,
                self.tail()
            );
        }
        let stall = self.stall(since, generation);
        for entry in std::fs::read_dir(self.folder).expect("it is there").flatten() {
            let _ = std::fs::remove_file(entry.path());
        }
        if let Some(pid) = self.stopped.pop_first() {
            let (generation, _) = self.generation(None, after);
            self.signal("-CONT", &pid);
            self.generation(Some(generation), self.ranks);
        }
        (harm != Harm::Computes).then_some(stall)
    }
}

/// A job of its own, to which some of that happens; the longest time in which nothing was trained.
fn round(seed: u64) -> Duration {
    let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
    (0..8).for_each(|_| random.pause(1));
    let (folder, marks) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let ranks = 3 + random.below(4);
    let backend = ["shm", "tcp"][random.below(2)];
    let harms: Vec<Harm> = (0..1 + random.below(2)).map(|_| HARMS[random.below(HARMS.len())]).collect();
    let (launch, output) = support::job(&marks.path().display().to_string(), ranks, folder.path());
    let running = launch
        .elastic(Elastic::new(1, ranks).expect("a size"))
        .max_restarts(50)
        .timeout(Some(HANGS * 4))
        .env("PHALANX_BACKEND", backend)
        .env("PHALANX_HEARTBEAT_TIMEOUT_S", HEARTBEAT.as_secs().to_string())
        .env("PHALANX_INIT_TIMEOUT_S", INIT_TIME.as_secs().to_string())
        .spawn()
        .expect("the job starts");
    let mut round = Round {
        context: format!("seed {seed}: {harms:?} of {ranks} ranks over {backend}"),
        ranks,
        output: &output,
        folder: marks.path(),
        random,
        killed: BTreeSet::new(),
        stopped: BTreeSet::new(),
        were_stopped: BTreeSet::new(),
    };
    let stalls: Vec<Duration> = harms.iter().filter_map(|&harm| round.harm(harm)).collect();
    std::fs::write(marks.path().join("enough"), "").expect("the folder is there");
    let outcome = support::finish(running);
    assert_eq!(outcome, Outcome::Success, "{}: {outcome}\n{}", round.context, round.tail());
    for words in round.said("behind") {
        assert!(round.were_stopped.contains(&words[0]), "{}: {words:?}\n{}", round.context, round.tail());
    }
    for words in round.said("unwanted") {
        assert!(words.join(" ").contains("the job has been done"), "{}: {words:?}", round.context);
    }
    let trained = round.said("trained");
    assert_eq!(trained.len(), ranks, "{}: {trained:?}", round.context);
    let steps: u64 = trained[0][0].parse().expect("a number");
    let sum =
        (0..steps).flat_map(|step| (0..PARTS).map(move |p| part(step, p))).fold(0u64, u64::wrapping_add);
    for words in &trained {
        assert_eq!(*words, [steps.to_string(), sum.to_string()], "{}", round.context);
    }
    stalls.into_iter().max().unwrap_or_default()
}

#[test]
fn what_is_trained_survives_whatever_happens_and_nobody_who_lives_is_left_out() {
    for seed in [1, 2, 5] {
        round(seed);
    }
}

/// `cargo xtask elastic --rounds 200`
#[test]
#[ignore = "as many as ELASTIC_ROUNDS says, from ELASTIC_SEED on: cargo xtask elastic"]
#[allow(clippy::print_stdout, reason = "a soak says how far it is")]
fn soak() {
    let number = |name: &str, or: u64| std::env::var(name).map_or(or, |n| n.parse().expect("a number"));
    let (rounds, first) = (number("ELASTIC_ROUNDS", 10), number("ELASTIC_SEED", 1));
    let bound = HEARTBEAT + Duration::from_secs(2);
    let mut stalls = Vec::new();
    for seed in first..first + rounds {
        let stall = round(seed);
        println!("seed {seed}: nothing was trained for {stall:.2?} at most");
        stalls.push(stall);
    }
    stalls.sort();
    let over = stalls.iter().filter(|stall| **stall > bound).count();
    println!(
        "{rounds} rounds: the longest stall was {:.2?}, the median of each round's longest {:.2?}; {over} over {bound:?}",
        stalls[stalls.len() - 1],
        stalls[stalls.len() / 2]
    );
}
