//! Device memory over the host, in processes without NCCL: that it works and is said, and what happens when something fails.

#![cfg(target_os = "linux")]

mod common;
#[path = "../examples/hybrid.rs"]
#[allow(dead_code, reason = "its main is for people")]
mod example;

use common::{LONG, done_well, done_well_but_one, job_with, nothing_is_left};
use phalanx_core::{Error, Loss, ReduceOp, Result};
use phalanx_group::ProcessGroup;
use phalanx_nccl::{DeviceBuffer, ENABLE_FALLBACK, HybridGroup, NCCL_LIBRARY, Work};
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What the contract gives to those who survive a death.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);

/// A job without NCCL, in processes that may do without.
fn job(name: &str, faults: &[&str], timeout_s: &str) -> (tempfile::TempDir, Vec<Child>) {
    job_with(name, faults, timeout_s, &[(NCCL_LIBRARY, "/nowhere/libnccl.so.2"), (ENABLE_FALLBACK, "1")])
}

fn ranks(name: &str, faults: &[&str], timeout_s: &str) {
    let (_folder, children) = job(name, faults, timeout_s);
    children.into_iter().for_each(|child| done_well(name, child));
}

fn joined() -> (ProcessGroup, HybridGroup) {
    let group = phalanx_group::init().unwrap();
    let all = HybridGroup::new(&group, group.local_rank()).unwrap();
    assert!(all.nccl().is_none());
    (group, all)
}

fn sum(all: &HybridGroup, len: usize) -> Result<i64> {
    let mut buffer = DeviceBuffer::from_host(all.stream(), &vec![all.rank() as i64 + 1; len])?;
    all.all_reduce(&mut buffer, ReduceOp::Sum).and_then(Work::wait)?;
    Ok(buffer.to_host(all.stream(), LONG)?[len - 1])
}

#[test]
fn one_program_has_both_kinds_of_memory_and_messages() {
    for more in [&[][..], &[(NCCL_LIBRARY, "/nowhere/libnccl.so.2"), (ENABLE_FALLBACK, "1")]] {
        let (_folder, children) = job_with("child_is_the_example", &[""; 3], "60", more);
        children.into_iter().for_each(|child| done_well("child_is_the_example", child));
    }
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_is_the_example() {
    let group = phalanx_group::init().unwrap();
    example::run(&HybridGroup::new(&group, group.local_rank()).unwrap()).unwrap();
    nothing_is_left();
}

/// Whoever waits for slow collectives finds out why in the log.
#[test]
fn each_use_is_a_warning_that_names_the_operation() {
    ranks("child_is_warned", &["", ""], "60");
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_is_warned() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
    let warnings = |of: &str| {
        let said = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        said.lines().filter(|line| line.contains("WARN") && line.contains(of)).count()
    };
    let (group, all) = joined();
    assert_eq!(warnings("no NCCL: device memory goes over the host on all ranks"), 1);
    for _ in 0..2 {
        assert_eq!(sum(&all, 1000).unwrap(), 3);
    }
    let mut buffer = DeviceBuffer::from_host(all.stream(), &[1u8]).unwrap();
    all.broadcast(&mut buffer, 0).and_then(Work::wait).unwrap();
    match group.rank() {
        0 => all.send(&buffer, 1),
        _ => all.recv(&mut buffer, 0),
    }
    .and_then(Work::wait)
    .unwrap();
    let of_message = ["operation=send", "operation=recv"][group.rank()];
    let found = ["operation=all_reduce bytes=8000", "operation=broadcast bytes=1", of_message].map(warnings);
    assert_eq!(found, [2, 1, 1]);
    assert_eq!(warnings(file!()), 4);
    // Memory of the host is where it belongs.
    all.all_reduce(&mut [1u8][..], ReduceOp::Sum).and_then(Work::wait).unwrap();
    assert_eq!(warnings("operation="), 4);
}

#[test]
fn nothing_that_nccl_does_wrong_matters_over_the_host() {
    let fault = "init-hangs,error@1,stall@1,wrong-sums,refuse@1,abort-hangs,finalize-hangs,version=1";
    ranks("child_does_not_need_nccl", &[fault; 2], "10");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_does_not_need_nccl() {
    let (group, all) = joined();
    assert_eq!(sum(&all, 3).unwrap(), 3);
    all.finalize().unwrap();
    drop(group);
    nothing_is_left();
}

#[test]
fn a_rank_that_is_killed_is_named_by_all_others() {
    let name = "child_sees_a_death";
    let (_folder, children) = job(name, &["", "", ""], "60");
    done_well_but_one(name, children, 1);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_sees_a_death() {
    let (group, all) = joined();
    assert_eq!(sum(&all, 1).unwrap(), 6);
    group.barrier().unwrap();
    if group.rank() == 1 {
        common::die();
    }
    let begun = Instant::now();
    let error = sum(&all, 5 << 20).unwrap_err();
    let Error::PeerLost { peer, how: Loss::Died, .. } = &error else { panic!("{error}") };
    assert!(peer.rank == 1 && error.to_string().contains("all_reduce"), "{error}");
    assert!(begun.elapsed() < KNOWN_WITHIN, "{:?}", begun.elapsed());
    assert!(all.host().barrier().is_err());
    assert!(matches!(all.barrier(), Err(Error::Poisoned { .. })));
    drop((all, group));
    nothing_is_left();
}

/// There is too little for what a chunk needs, on one rank; small operations go on before that.
#[test]
fn pinned_memory_that_is_not_there_is_told_to_all_ranks() {
    ranks("child_has_little_pinned_memory", &["", "pinned=8192"], "10");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_has_little_pinned_memory() {
    let (group, all) = joined();
    assert_eq!(sum(&all, 1000).unwrap(), 3);
    let mut buffer = DeviceBuffer::<i64>::zeros(all.stream(), 10_000).unwrap();
    let error = all.all_reduce(&mut buffer, ReduceOp::Sum).unwrap_err();
    let Error::Aborted { peer, reason, .. } = &error else { panic!("{error}") };
    assert!(peer.rank == 1 && reason.starts_with("cuMemHostAlloc of CUDA driver 13.0 ("), "{error}");
    assert!(reason.ends_with("CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"), "{error}");
    assert!(matches!(all.host().barrier(), Err(Error::Aborted { .. })));
    drop((buffer, all, group));
    nothing_is_left();
}

/// The input is copied in chunks, of all blocks together.
#[test]
fn large_operations_take_little_pinned_memory() {
    ranks("child_has_much_data", &["pinned=8388608"; 2], "60");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_has_much_data() {
    let (_group, all) = joined();
    let input = DeviceBuffer::<u8>::zeros(all.stream(), 24 << 20).unwrap();
    let mut output = DeviceBuffer::<u8>::zeros(all.stream(), 24 << 20).unwrap();
    let before = common::count("pinned");
    all.all_to_all(&input, &mut output).and_then(Work::wait).unwrap();
    all.all_reduce(&mut output, ReduceOp::Max).and_then(Work::wait).unwrap();
    assert_eq!(common::count("pinned") - before, 3);
}

#[test]
fn a_rank_without_a_device_is_named_by_all() {
    ranks("child_lacks_a_device", &["", "no-device"], "10");
    ranks("child_lacks_a_device", &["", "devices=1"], "10");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_lacks_a_device() {
    let group = phalanx_group::init().unwrap();
    let said = HybridGroup::new(&group, group.local_rank()).unwrap_err().to_string();
    let reasons = ["CUDA_ERROR_NO_DEVICE (100)", "there is no device 1: this machine has 1, from 0"];
    assert!(reasons.iter().any(|reason| said.contains(reason)), "{said}");
    assert!(group.rank() == 1 || said.starts_with("a device on rank 1 ("), "{said}");
    group.finalize().unwrap();
}
