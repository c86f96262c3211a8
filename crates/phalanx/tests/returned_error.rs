//! A rank whose `main` returns an error drops its groups and ends. The others wait for what it owes them, and say that it left before the
//! launcher ends them.

#![cfg(target_os = "linux")]

mod support;

use phalanx::launch::{ExitKind, Outcome};
use phalanx::{Config, Error, ProcessGroup, ReduceOp, Result};

const CODE: i32 = 4;

#[test]
#[ignore = "this is what the ranks of the jobs run"]
fn rank() {
    let Some(role) = support::role() else { return };
    let [there, call, victim] = role.split(',').collect::<Vec<_>>().try_into().expect("three words");
    let victim: usize = victim.parse().expect("a rank");
    if works(there, call, victim).is_err() {
        std::process::exit(CODE);
    }
}

/// As a program's `main`: the group is dropped when it returns.
fn works(there: &str, call: &str, victim: usize) -> Result<()> {
    let mut config = Config::from_env()?;
    if there == "two levels" {
        config.host_id = Some(format!("host {}", config.rank % 2));
    } else {
        config.backend = there.to_owned();
    }
    let group = phalanx::join(&config)?;
    let mut buffer = vec![1u64; 1 << 18];
    for step in 0.. {
        if step == 5 && group.rank() == victim {
            return Err(Error::config("no such file: weights"));
        }
        if let Err(error) = perform(&group, call, victim, step, &mut buffer) {
            support::say("error", &error);
            return Err(error);
        }
    }
    Ok(())
}

fn perform(group: &ProcessGroup, call: &str, victim: usize, step: usize, buffer: &mut [u64]) -> Result<()> {
    match call {
        "small" => group.all_reduce(&mut buffer[..3], ReduceOp::Max),
        "large" => group.all_reduce(buffer, ReduceOp::Max),
        "async" => group.all_reduce_async(vec![step as u64; 1000], ReduceOp::Max)?.wait().map(drop),
        "split" => group.split(Some(0), 0).map(drop),
        "recv" if group.rank() == victim => (0..group.world_size())
            .filter(|&to| to != victim)
            .try_for_each(|to| group.send(&buffer[..9], to, 0)),
        "recv" => group.recv(&mut buffer[..9], victim, 0),
        other => panic!("{other}?"),
    }
}

/// What each rank but `victim` says, and the job's report.
fn said(call: &str, ranks: usize, victim: usize, there: &str) -> (Vec<String>, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (launch, output) = support::job(&format!("{there},{call},{victim}"), ranks, folder.path());
    let outcome = launch.run().expect("the job starts");
    let Outcome::Failure(failure) = &outcome else { panic!("{call} {victim} {there}: {outcome}") };
    let found = (failure.rank, failure.exit, failure.exit_code);
    assert_eq!(found, (victim, ExitKind::Code(CODE), CODE), "{call} {victim} {there}: {outcome}");
    let others = (0..ranks).filter(|&rank| rank != victim);
    (others.flat_map(|rank| output.said(rank, "error")).collect(), format!("{outcome}\n{}", output.text()))
}

/// The launcher ends the others half a second after the first. On a machine with much else to do that may be too soon for them: not three times.
fn all_others_say_so(call: &str, ranks: usize, victim: usize, there: &str) {
    let mut heard = (Vec::new(), String::new());
    for _ in 0..3 {
        heard = said(call, ranks, victim, there);
        if heard.0.len() == ranks - 1 {
            break;
        }
    }
    let (errors, report) = heard;
    let words = [format!(": rank {victim} ("), ") left the group (finalize or drop) while".to_owned()];
    let names = |error: &&String| words.iter().all(|words| error.contains(words));
    assert_eq!(
        errors.iter().filter(names).count(),
        ranks - 1,
        "{call} {victim} of {ranks}, {there}: {report}"
    );
}

#[test]
fn over_shared_memory() {
    for (call, ranks, victim) in
        [("small", 2, 1), ("small", 4, 0), ("large", 3, 2), ("async", 3, 1), ("split", 3, 0), ("recv", 3, 1)]
    {
        all_others_say_so(call, ranks, victim, "shm");
    }
}

#[test]
fn over_two_levels() {
    for (call, ranks, victim) in [("small", 4, 3), ("large", 4, 1), ("large", 4, 0), ("recv", 4, 2)] {
        all_others_say_so(call, ranks, victim, "two levels");
    }
}

#[test]
fn over_tcp() {
    for (call, ranks, victim) in [("small", 3, 1), ("large", 4, 0), ("split", 2, 0)] {
        all_others_say_so(call, ranks, victim, "tcp");
    }
}
