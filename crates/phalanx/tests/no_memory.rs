//! Processes that may make no shared memory, or little: a sandbox refuses `memfd_create`, or files may have so many bytes
//! (`ulimit -f`) and no more. All ranks come to the same opinion, go over TCP and say why.

#![cfg(target_os = "linux")]

mod support;

use phalanx::launch::Outcome;
use phalanx::{Config, ProcessGroup, ReduceOp};
use rustix::process::{Resource, Rlimit, setrlimit};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use std::collections::BTreeMap;
use support::{job, role, say};

/// Makes the kernel refuse `memfd_create` with EPERM, for the rest of this thread and those that it starts.
fn refuse_memory() {
    let rules = BTreeMap::from([(libc::SYS_memfd_create, Vec::new())]);
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    let arch = std::env::consts::ARCH.try_into().expect("an architecture with seccomp");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).unwrap();
    seccompiler::apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

fn limit_files(bytes: u64) {
    setrlimit(Resource::Fsize, Rlimit { current: Some(bytes), maximum: Some(bytes) }).unwrap();
}

fn use_it(group: &ProcessGroup) {
    let mut memory = group.alloc::<u64>(1 << 20).unwrap();
    memory.fill(1);
    group.all_reduce(&mut memory, ReduceOp::Sum).unwrap();
    assert!(memory.iter().all(|&sum| sum == group.world_size() as u64));
    let sums = group.all_reduce_async(vec![1u32; 10], ReduceOp::Sum).unwrap().wait().unwrap();
    assert_eq!(sums, [group.world_size() as u32; 10]);
    let (rank, next) = (group.rank(), (group.rank() + 1) % group.world_size());
    if group.world_size() > 1 {
        let sent = group.send_async(vec![rank as u64], next, 0).unwrap();
        let previous = (rank + group.world_size() - 1) % group.world_size();
        assert_eq!(group.recv_async(vec![0u64], previous, 0).unwrap().wait().unwrap(), [previous as u64]);
        sent.wait().unwrap();
    }
}

#[test]
#[ignore = "this is what the processes of the jobs run"]
fn rank() {
    let Some(role) = role() else { return };
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::WARN).init();
    let mut config = Config::from_env().unwrap();
    match (role.as_str(), config.rank) {
        ("refused everywhere" | "demanded", _)
        | ("refused to rank 0", 0)
        | ("refused to rank 1" | "refused on host 1", 1) => refuse_memory(),
        // As `ulimit -f 512`: fewer bytes than any group takes.
        ("small files", _) => limit_files(512 << 10),
        // Enough for the group, and not for what `use_it` asks for.
        ("larger files", _) => limit_files(16 << 20),
        _ => {}
    }
    if role == "refused on host 1" {
        config.host_id = Some(format!("host {}", config.rank % 2));
    }
    let group = match phalanx::join(&config) {
        Ok(group) => group,
        Err(error) => return say("failed", error),
    };
    say("group", group.describe());
    use_it(&group);
    // Of this one the last rank is the first.
    let turned = group.split(Some(0), -(group.rank() as i64)).unwrap().unwrap();
    say("turned", turned.describe());
    use_it(&turned);
    let pairs = group.split(Some(group.rank() as u32 / 2), 0).unwrap().unwrap();
    use_it(&pairs);
    group.finalize().unwrap();
}

/// What each rank says of the group of all, and of the one in which the last rank is the first; and all that was written.
fn said(role: &str, ranks: usize, backend: &str) -> (Vec<String>, Vec<String>, String) {
    let folder = tempfile::tempdir().unwrap();
    let (launch, output) = job(role, ranks, folder.path());
    let outcome = launch.env("PHALANX_BACKEND", backend).run().unwrap();
    assert!(matches!(outcome, Outcome::Success), "{role}: {outcome}\n{}", output.text());
    let of = |word: &str| (0..ranks).flat_map(|rank| output.said(rank, word)).collect::<Vec<_>>();
    let word = if role == "demanded" { "failed" } else { "group" };
    (of(word), of("turned"), output.text())
}

#[track_caller]
fn all_say(said: &[String], ranks: usize, words: &[&str]) {
    assert_eq!(said.len(), ranks, "{said:?}");
    assert!(said.iter().all(|said| words.iter().all(|word| said.contains(word))), "{said:?}, not {words:?}");
}

#[test]
fn where_a_sandbox_refuses_memory_ranks_go_over_tcp() {
    let (group, turned, text) = said("refused everywhere", 3, "auto");
    all_say(
        &group,
        3,
        &["tcp: 3 ranks on 1 host; rank 0", "can make no shared memory: its system refuses it"],
    );
    all_say(&turned, 3, &["tcp: 3 ranks", "; rank 2", "its system refuses it"]);
    assert!(text.contains("WARN") && text.contains("Operation not permitted"), "{text}");
}

/// The first rank of a group on its host makes the memory, so only its refusal counts, and counts for all.
#[test]
fn what_one_rank_is_refused_the_others_know() {
    let (group, turned, _) = said("refused to rank 0", 3, "auto");
    all_say(&group, 3, &["tcp: 3 ranks", "; rank 0", "its system refuses it"]);
    all_say(&turned, 3, &["shm: 3 ranks"]);
    let (group, _, _) = said("refused to rank 1", 3, "auto");
    all_say(&group, 3, &["shm: 3 ranks"]);
}

#[test]
fn only_the_hosts_that_can_share_memory_do() {
    let (group, _, _) = said("refused on host 1", 4, "auto");
    all_say(&group, 4, &["two-level", "; rank 1", "its system refuses it"]);
}

#[test]
fn who_demands_memory_hears_why_there_is_none() {
    let (failed, _, _) = said("demanded", 2, "shm");
    all_say(&failed, 2, &["PHALANX_BACKEND=shm", "rank 0", "its system refuses it"]);
}

#[test]
fn a_limit_of_file_sizes_kills_nobody() {
    let (group, _, _) = said("small files", 2, "auto");
    all_say(&group, 2, &["tcp: 2 ranks", "its limit is 524288 (`ulimit -f`)"]);
    let (group, _, _) = said("larger files", 2, "auto");
    all_say(&group, 2, &["shm: 2 ranks"]);
}
