//! Ranks are killed at any moment while they write checkpoints: the last that was saved is always there, on any number of ranks,
//! and the training goes on as if nothing had been.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout, reason = "a long test tells what it did")]

mod support;

use phalanx::launch::{Launch, Running};
use phalanx::{ProcessGroup, ReduceOp, chunk};
use phalanx_checkpoint::{Checkpoint, Checkpoints, Result, State};
use phalanx_testkit::World;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use support::Output;

/// Where a rank is to put its checkpoints; set for ranks only.
const FOLDER: &str = "PHALANX_TEST_CHECKPOINTS";
/// So large that most of the time goes into writing: 2 MB.
const WEIGHTS: usize = 250_000;
/// Samples of each step, shared by the ranks.
const BATCH: usize = 12;

/// A training that is exact, so that any number of ranks finds the same.
#[derive(Debug, PartialEq)]
struct Training {
    step: u64,
    weights: Vec<i64>,
    losses: Vec<i64>,
}

impl Training {
    fn new() -> Self {
        Self { step: 0, weights: vec![0; WEIGHTS], losses: Vec::new() }
    }

    /// What this rank's samples say of the weights, in a few numbers, so that steps are short.
    fn gradient(&self, rank: usize, world_size: usize) -> [i64; 16] {
        let mut sum = [0i64; 16];
        for sample in chunk(rank, world_size, BATCH) {
            for (i, sum) in sum.iter_mut().enumerate() {
                let seen = self.weights[(sample * 7919 + i * 104_729) % WEIGHTS];
                *sum = sum.wrapping_add(seen.wrapping_mul(31) ^ (sample as i64 + self.step as i64));
            }
        }
        sum
    }

    fn apply(&mut self, gradient: [i64; 16]) {
        for (i, weight) in self.weights.iter_mut().enumerate() {
            *weight = weight.wrapping_mul(3).wrapping_add(gradient[i % 16]);
        }
        self.step += 1;
        self.losses.push(self.weights.iter().fold(0, |sum, weight| sum ^ weight));
    }

    /// Every second checkpoint is written while the next step is trained.
    fn save(&self, checkpoints: &mut Checkpoints) -> Result<()> {
        let mut state = State::new();
        state.slice("weights", &[WEIGHTS], &self.weights);
        state.value("losses", &self.losses)?;
        if self.step.is_multiple_of(2) {
            checkpoints.save(self.step, state)
        } else {
            checkpoints.save_async(self.step, state)
        }
    }

    fn from(found: Option<Checkpoint>) -> Result<Self> {
        let Some(found) = found else { return Ok(Self::new()) };
        Ok(Self { step: found.step(), weights: found.read("weights")?, losses: found.value("losses")? })
    }
}

/// Trains until it is killed.
#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let group = phalanx::init().unwrap();
    let mut checkpoints = Checkpoints::open(folder, &group).unwrap().keep(3);
    let mut training = Training::from(checkpoints.latest_good().unwrap()).unwrap();
    say(&group, &format!("begins {}", training.step));
    loop {
        let mut gradient = training.gradient(group.rank(), group.world_size());
        group.all_reduce(&mut gradient, ReduceOp::Sum).unwrap();
        training.apply(gradient);
        training.save(&mut checkpoints).unwrap();
        if training.step.is_multiple_of(2) {
            say(&group, &format!("saved {}", training.step));
        }
    }
}

fn say(group: &ProcessGroup, what: &str) {
    if group.rank() == 0 {
        let _ = io::stdout().write_all(format!("\n{what}\n").as_bytes());
    }
}

/// The last number that was said after `word`.
fn last(output: &Output, word: &str) -> Option<u64> {
    output.said(word).iter().rev().find_map(|number| number.parse().ok())
}

fn job(folder: &Path, ranks: usize) -> (Running, Output) {
    let output = Output::default();
    let launch = Launch::new(std::env::current_exe().unwrap())
        .args(["--exact", "rank", "--ignored", "--nocapture", "--test-threads=1"])
        .ranks(ranks)
        .env(FOLDER, folder)
        .output(output.clone(), output.clone())
        .timeout(Some(Duration::from_secs(120)));
    (launch.spawn().unwrap(), output)
}

/// Numbers that look random (SplitMix64).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Starts a job again and again in one folder, and kills it each time.
fn kill(times: usize, seed: u64) {
    let (mut state, begun) = (seed, Instant::now());
    let mut next = |below: u64| random(&mut state) % below;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut expected = Training::new();
    let (mut known, mut cut_short) = (0, 0);
    for time in 0..times {
        let ranks = 1 + next(4) as usize;
        let (running, output) = job(folder, ranks);
        // Most while they write, some while they start or load.
        if next(5) > 0 {
            let until = Instant::now() + Duration::from_secs(60);
            while last(&output, "saved").is_none() {
                assert!(Instant::now() < until, "seed {seed}, kill {time}: {}", output.text());
                sleep(Duration::from_millis(1));
            }
            sleep(Duration::from_micros(next(100_000)));
        } else {
            sleep(Duration::from_micros(next(300_000)));
        }
        let pids = running.pids();
        let victims = if next(2) == 0 { pids } else { vec![pids[next(ranks as u64) as usize]] };
        for pid in victims {
            let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
        }
        let _ = running.wait().unwrap();

        known = known.max(last(&output, "saved").unwrap_or(0));
        let left = || std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        cut_short += usize::from(left().any(|name| name.to_string_lossy().contains(".tmp-")));
        for ranks in 1..=4 {
            let path = PathBuf::from(folder);
            let found = World::thread().run(ranks, move |group| {
                let mut checkpoints = Checkpoints::open(&path, &group).unwrap();
                Training::from(checkpoints.latest_good().unwrap()).unwrap()
            });
            let step = found[0].step;
            assert!(step >= known, "seed {seed}, kill {time}: step {known} was saved, {step} is found");
            known = step;
            while expected.step < step {
                expected.apply(expected.gradient(0, 1));
            }
            assert!(found.iter().all(|found| *found == expected), "seed {seed}, kill {time}: step {step}");
        }
        // One more where the kill came between a checkpoint and the removal of an old one.
        assert!(left().count() <= 4, "seed {seed}, kill {time}: {:?}", left().collect::<Vec<_>>());
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{times} kills, {cut_short} of them during a checkpoint; {known} steps trained and saved; {seconds:.0} s"
    );
    assert!(known > 0 && cut_short > 0, "some were saved, some were cut short");
}

#[test]
fn a_few_kills() {
    kill(8, 1);
}

/// `cargo test --release -p phalanx-checkpoint --test killed -- --ignored --nocapture hundreds`; `PHALANX_TEST_SEED` is the seed.
#[test]
#[ignore = "minutes"]
fn hundreds_of_kills() {
    kill(300, std::env::var("PHALANX_TEST_SEED").map_or(1, |seed| seed.parse().unwrap()));
}
