//! Jobs of real processes that have one folder: one saves, any loads, and nobody's checkpoints are harmed.

#![cfg(target_os = "linux")]

mod support;

use phalanx::ProcessGroup;
use phalanx::launch::{Launch, Running};
use phalanx_checkpoint::{Checkpoints, Error, State};
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use support::Output;

/// Where a rank is to put its checkpoints, and what it is to do; set for ranks only.
const FOLDER: &str = "PHALANX_TEST_CHECKPOINTS";
const ROLE: &str = "PHALANX_TEST_ROLE";

#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    let (Some(folder), Ok(role)) = (std::env::var_os(FOLDER), std::env::var(ROLE)) else { return };
    let group = phalanx::init().unwrap();
    let mut checkpoints = Checkpoints::open(&folder, &group).unwrap();
    match role.as_str() {
        // Until it is killed.
        "save on" => {
            for step in 1.. {
                save(&mut checkpoints, step).unwrap();
                say(&group, "saved", step);
            }
        }
        "save" => match save(&mut checkpoints, 1_000_000) {
            Ok(()) => say(&group, "saved", 1_000_000),
            Err(error) => {
                assert!(matches!(error, Error::FolderTaken { step: 1_000_000, .. }), "{error}");
                say(&group, "refused", error);
                // It may load, and the group is fine.
                let found = checkpoints.latest_good().unwrap().expect("the other job has saved");
                assert_eq!(found.value::<u64>("step").unwrap(), found.step());
            }
        },
        "lose rank 0" => {
            save(&mut checkpoints, 1).unwrap();
            say(&group, "pid", std::process::id());
            if group.rank() == 0 {
                // With its lock. The signal may take a moment to stop all threads.
                let _ = Command::new("kill").args(["-STOP", &std::process::id().to_string()]).status();
                loop {
                    sleep(Duration::from_secs(1));
                }
            }
            group.barrier().unwrap_err();
            let group = group.shrink().unwrap();
            let mut checkpoints = Checkpoints::open(&folder, &group).unwrap();
            save(&mut checkpoints, 2).unwrap();
            say(&group, "went on", checkpoints.latest_good().unwrap().unwrap().step());
        }
        other => panic!("{other}"),
    }
    group.finalize().unwrap();
}

fn save(checkpoints: &mut Checkpoints, step: u64) -> phalanx_checkpoint::Result<()> {
    let weights = vec![step; 50_000];
    let mut state = State::new();
    state.slice("weights", &[weights.len()], &weights);
    state.value("step", &step)?;
    checkpoints.save(step, state)
}

fn say(group: &ProcessGroup, what: &str, more: impl std::fmt::Display) {
    let _ = io::stdout().write_all(format!("\n{what} {} {more}\n", group.rank()).as_bytes());
}

/// What was said after `word`, once that is as often as `times`.
#[track_caller]
fn wait(output: &Output, word: &str, times: usize) -> Vec<String> {
    let until = Instant::now() + Duration::from_secs(120);
    while output.said(word).len() < times {
        assert!(Instant::now() < until, "`{word}` was not said: {}", output.text());
        sleep(Duration::from_millis(5));
    }
    output.said(word)
}

fn job(folder: &Path, role: &str, ranks: usize, id: &str) -> (Running, Output) {
    let output = Output::default();
    let launch = Launch::new(std::env::current_exe().unwrap())
        .args(["--exact", "rank", "--ignored", "--nocapture", "--test-threads=1"])
        .ranks(ranks)
        .job_id(id)
        .env(FOLDER, folder)
        .env(ROLE, role)
        .env("PHALANX_HEARTBEAT_TIMEOUT_S", "3")
        .output(output.clone(), output.clone())
        .timeout(Some(Duration::from_secs(240)));
    (launch.spawn().unwrap(), output)
}

#[test]
fn a_folder_belongs_to_the_job_that_saves_until_that_ends() {
    let folder = tempfile::tempdir().unwrap();
    let (first, saving) = job(folder.path(), "save on", 2, "first");
    wait(&saving, "saved", 4);
    // Two others, as a script that was started twice.
    for _ in 0..2 {
        let (second, output) = job(folder.path(), "save", 3, "second");
        assert!(second.wait().unwrap().is_success(), "{}", output.text());
        let refused = output.said("refused");
        assert_eq!(refused.len(), 3, "{}", output.text());
        for line in refused {
            assert!(line.contains("step 1000000 was not saved: folder "), "{line}");
            let pid = first.pids()[0];
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            let holder = format!("is in use by job `first`, pid {pid} on host {host}, since 2");
            assert!(line.contains(&holder) && line.contains("give each job a folder of its own"), "{line}");
        }
        // The one that saves is not disturbed.
        let so_far = saving.said("saved").len();
        wait(&saving, "saved", so_far + 4);
    }
    // Killed, it leaves a file behind, and no lock.
    for pid in first.pids() {
        let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
    }
    let _ = first.wait().unwrap();
    assert!(!saving.text().contains("panicked"), "{}", saving.text());
    let (third, output) = job(folder.path(), "save", 2, "third");
    assert!(third.wait().unwrap().is_success(), "{}", output.text());
    assert_eq!(output.said("saved").len(), 2, "{}", output.text());
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains('.')), "{left:?}");
}

/// It is not dead, so the system keeps its lock.
#[test]
fn those_who_go_on_save_where_a_rank_that_they_gave_up_has_saved() {
    let folder = tempfile::tempdir().unwrap();
    let (running, output) = job(folder.path(), "lose rank 0", 3, "elastic");
    let said = wait(&output, "went on", 2);
    assert!(said.iter().all(|line| line.ends_with(" 2")), "{said:?}");
    let stopped = output.said("pid 0").pop().unwrap();
    let _ = Command::new("kill").args(["-KILL", &stopped]).status();
    let _ = running.wait().unwrap();
}
