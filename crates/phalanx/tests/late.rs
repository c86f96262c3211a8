//! A rank that is late although it lives: the others wait, and say for whom. Real processes, without a subscriber for their warnings.

#![cfg(target_os = "linux")]

mod support;

use phalanx::launch::Outcome;
use phalanx::{Config, ProcessGroup, ReduceOp, threads_with};
use std::collections::BTreeSet;
use std::time::Duration;

const LATE: usize = 2;

/// A rank: the late one sleeps before it does what the others wait for.
#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    let Some(role) = support::role() else { return };
    let (kind, seconds) = role.rsplit_once(' ').expect("what is done, and how late");
    let late = Duration::from_secs_f64(seconds.parse().expect("a time"));
    if kind == "threads" {
        let ranks = threads_with(4, late * 2, "").expect("nothing is forced");
        return std::thread::scope(|scope| {
            ranks.into_iter().for_each(|group| drop(scope.spawn(move || sums(&group, late * 3 / 2))));
        });
    }
    let mut config = Config::from_env().expect("the launcher says who this is");
    if kind == "two levels" {
        config.host_id = Some(format!("host {}", config.rank / 2));
    }
    let group = phalanx::join(&config).expect("the ranks come together");
    match kind {
        "message" if group.rank() == LATE => {
            std::thread::sleep(late);
            group.send(&[1u8], 0, 5).expect("rank 0 waits for it");
        }
        "message" if group.rank() == 0 => group.recv(&mut [0u8], LATE, 5).expect("it comes late"),
        "message" => {}
        // The progress thread waits.
        "async" => {
            if group.rank() == LATE {
                std::thread::sleep(late);
            }
            let work = group.all_reduce_async(vec![1u64; 1000], ReduceOp::Sum).expect("it begins");
            assert_eq!(work.wait().expect("all come"), [4; 1000]);
        }
        _ => sums(&group, late),
    }
    group.finalize().expect("all are there");
}

fn sums(group: &ProcessGroup, late: Duration) {
    if group.rank() == LATE {
        std::thread::sleep(late);
    }
    let mut sum = vec![1u64; 100_000];
    group.all_reduce(&mut sum, ReduceOp::Sum).expect("all come");
    assert!(sum.iter().all(|s| *s == 4));
}

/// The ranks that waited aloud in a job of which one is late, with the call in which they did.
fn waits(kind: &str, backend: &str, late: f64, limit: Option<f64>) -> (BTreeSet<usize>, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ranks = if kind == "threads" { 1 } else { 4 };
    let (mut launch, output) = support::job(&format!("{kind} {late}"), ranks, folder.path());
    launch = launch.env("PHALANX_BACKEND", backend);
    if let Some(limit) = limit {
        launch = launch.env("PHALANX_TIMEOUT_S", limit.to_string());
    }
    let outcome = support::finish(launch.spawn().expect("the job starts"));
    let text = output.text();
    assert_eq!(outcome, Outcome::Success, "{outcome}\n{text}");
    let mut who = BTreeSet::new();
    let lines = text.lines().filter_map(|line| line.split_once("phalanx: rank "));
    for (_, line) in lines {
        let (rank, rest) = line.split_once(": still waiting for ").expect("no other warning");
        // At the end, others wait for the one that waits for the late one, too.
        let alone = rest.starts_with(&format!("rank {LATE} (")) && !rest.contains(", rank");
        assert!(alone || rest.contains(" in finalize #"), "{rest}");
        assert!(rest.contains("late.rs:"), "{rest}");
        who.insert(rank.parse().expect("a rank"));
    }
    (who, text)
}

/// All who wait for the late rank name it and no other. It sleeps seven of the ten seconds that an operation may take. The tests hardly compute, so they run side
/// by side.
fn all_name_the_late_rank(kind: &str, backends: &[&str]) {
    for backend in backends {
        let (who, text) = waits(kind, backend, 7.0, Some(10.0));
        assert_eq!(who, BTreeSet::from([0, 1, 3]), "{kind} over {backend}:\n{text}");
        assert!(text.contains(" in all_reduce #"), "{text}");
    }
}

#[test]
fn who_waits_in_a_collective_names_the_late_rank_and_no_other() {
    all_name_the_late_rank("sum", &["shm", "tcp"]);
}

#[test]
fn who_waits_on_its_own_thread_names_the_late_rank_and_no_other() {
    all_name_the_late_rank("async", &["shm", "tcp"]);
}

#[test]
fn who_waits_on_two_levels_or_threads_names_the_late_rank_and_no_other() {
    for kind in ["two levels", "threads"] {
        all_name_the_late_rank(kind, &["auto"]);
    }
}

#[test]
fn who_waits_for_a_message_names_the_late_rank_and_no_other() {
    for backend in ["shm", "tcp"] {
        let (who, text) = waits("message", backend, 7.0, Some(10.0));
        assert!(who.contains(&0) && text.contains(" in recv of world"), "{backend}:\n{text}");
    }
}

/// As it is where nothing is set. `cargo test -p phalanx --test late -- --ignored soak`
#[test]
#[ignore = "it takes 70 s for each backend"]
fn soak_of_a_rank_that_is_70_s_late_with_default_settings() {
    for (kind, backend) in [("sum", "shm"), ("sum", "tcp"), ("two levels", "auto")] {
        let (who, text) = waits(kind, backend, 70.0, None);
        assert_eq!(who, BTreeSet::from([0, 1, 3]), "{text}");
        for seconds in ["for 30 s", "for 60 s"] {
            assert_eq!(text.matches(seconds).count(), 3, "{text}");
        }
    }
}
