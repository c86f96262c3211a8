//! What happens to the ranks of a group with both kinds of memory, in processes, when NCCL fails on one of them, or one of them dies: both halves fail,
//! for the same cause, and within the same times.

#![cfg(target_os = "linux")]

mod common;

use common::{LONG, at_versions, count, done_well, done_well_but_one, job, job_with, nothing_is_left};
use phalanx_core::{Error, Loss, ReduceOp, Result};
use phalanx_group::ProcessGroup;
use phalanx_nccl::{DeviceBuffer, HybridGroup, Work};
use std::time::{Duration, Instant};

/// What the contract gives to those who survive a death.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);

/// Runs the ignored test `name` on as many ranks as there are `faults`, with each version of NCCL; an operation may take so many seconds.
fn ranks(name: &str, faults: &[&str], timeout_s: &str) {
    for faults in at_versions(faults) {
        let (_folder, children) = job(name, &as_text(&faults), timeout_s);
        children.into_iter().for_each(|child| done_well(name, child));
    }
}

/// As [`ranks`], where rank 1 kills itself.
fn ranks_but_one(name: &str, faults: &[&str]) {
    for faults in at_versions(faults) {
        let (_folder, children) = job(name, &as_text(&faults), "60");
        done_well_but_one(name, children, 1);
    }
}

fn as_text(faults: &[String]) -> Vec<&str> {
    faults.iter().map(String::as_str).collect()
}

fn joined() -> (ProcessGroup, HybridGroup) {
    let group = phalanx_group::init().unwrap();
    let all = HybridGroup::new(&group, group.local_rank()).unwrap();
    assert!(all.nccl().is_some());
    (group, all)
}

/// Why `all` has failed, `first` says; the host's half says so too.
fn both_have_failed(all: &HybridGroup, first: &Error) {
    let of_host = all.host().barrier().unwrap_err();
    assert_eq!(std::mem::discriminant(&of_host), std::mem::discriminant(first), "{of_host}, but {first}");
    assert!(matches!(all.host().barrier(), Err(Error::Poisoned { .. })));
    assert!(matches!(all.barrier(), Err(Error::Poisoned { .. })));
}

fn sum(all: &HybridGroup) -> Result<i64> {
    let mut buffer = DeviceBuffer::from_host(all.stream(), &[all.rank() as i64 + 1])?;
    all.all_reduce(&mut buffer, ReduceOp::Sum)?.wait()?;
    Ok(buffer.to_host(all.stream(), LONG)?[0])
}

#[test]
fn a_job_works_and_leaves_nothing() {
    for size in [1, 2, 4, 8] {
        ranks("child_works", &vec![""; size], "60");
    }
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_works() {
    let (group, all) = joined();
    let n = all.world_size() as i64;
    for _ in 0..20 {
        assert_eq!(sum(&all).unwrap(), n * (n + 1) / 2);
    }
    assert_eq!((count("finalized"), count("aborted")), (0, 0));
    all.finalize().unwrap();
    nothing_is_left();
    // Not dropped, which would end it too, and leave to the other ranks' NCCL to find out.
    assert_eq!((count("finalized"), count("aborted")), (1, 0));
    drop(group);
}

/// The others have nothing to complain of on their devices, and wait for the end of the group.
#[test]
fn a_finalize_that_hangs_is_told_to_all_ranks() {
    ranks("child_can_not_finalize", &["", "finalize-hangs"], "30");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_can_not_finalize() {
    let (group, all) = joined();
    assert_eq!(sum(&all).unwrap(), 3);
    // Who knows why gives up first; else all it could be told is that it did not come.
    let patience = Duration::from_secs(if group.rank() == 1 { 1 } else { 30 });
    let error = all.with_timeout(patience).finalize().unwrap_err();
    drop(all);
    match group.rank() {
        0 => assert!(matches!(error, Error::Aborted { ref peer, .. } if peer.rank == 1), "{error}"),
        _ => assert!(matches!(error, Error::Library { .. }), "{error}"),
    }
    assert!(error.to_string().contains("ncclCommFinalize of NCCL"), "{error}");
    assert!(error.to_string().contains("still in progress after 1.0 s"), "{error}");
    nothing_is_left();
}

#[test]
fn a_rank_that_is_killed_in_the_middle_is_named_by_all_others() {
    ranks_but_one("child_sees_a_death", &["", "", ""]);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_sees_a_death() {
    let (group, all) = joined();
    assert_eq!(sum(&all).unwrap(), 6);
    group.barrier().unwrap();
    let mut buffer = DeviceBuffer::from_host(all.stream(), &[1i64]).unwrap();
    // All agree, but one device does not come to it before its process dies.
    if group.rank() == 1 {
        common::delay(all.stream(), LONG);
        let _ = all.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        common::die();
    }
    let begun = Instant::now();
    let error = all.all_reduce(&mut buffer, ReduceOp::Sum).and_then(Work::wait).unwrap_err();
    let Error::PeerLost { peer, how: Loss::Died, .. } = &error else { panic!("{error}") };
    assert_eq!(peer.rank, 1, "{error}");
    assert!(error.to_string().contains("all_reduce"), "{error}");
    assert!(begun.elapsed() < KNOWN_WITHIN, "{:?}", begun.elapsed());
    both_have_failed(&all, &error);
}

/// NCCL knows of it earlier than the host, and refuses the others' launches, or their init.
#[test]
fn a_rank_that_dies_is_named_though_nccl_complains_first() {
    for name in ["child_hears_of_a_death_from_nccl", "child_meets_nobody"] {
        let fault = if name == "child_meets_nobody" { "gone@0" } else { "gone@5" };
        ranks_but_one(name, &["", fault, ""]);
    }
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_hears_of_a_death_from_nccl() {
    let (group, all) = joined();
    assert_eq!(sum(&all).unwrap(), 6);
    group.barrier().unwrap();
    let mut buffer = DeviceBuffer::from_host(all.stream(), &[1i64]).unwrap();
    if group.rank() == 1 {
        let _ = all.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
        group.barrier().unwrap();
        std::thread::sleep(Duration::from_millis(300));
        common::die();
    }
    group.barrier().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    let error = all.all_reduce(&mut buffer, ReduceOp::Sum).and_then(Work::wait).unwrap_err();
    assert!(matches!(error, Error::PeerLost { ref peer, .. } if peer.rank == 1), "{error}");
    both_have_failed(&all, &error);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_meets_nobody() {
    let group = phalanx_group::init().unwrap();
    if group.rank() == 1 {
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(500));
            common::die();
        });
    }
    let error = HybridGroup::new(&group, group.local_rank()).unwrap_err();
    assert!(matches!(error, Error::PeerLost { ref peer, .. } if peer.rank == 1), "{error}");
}

/// A launch that waits for it to connect is late, too.
#[test]
fn who_does_not_come_to_a_first_call_is_named() {
    ranks("child_does_not_come", &["", "", ""], "2");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_does_not_come() {
    let (_group, all) = joined();
    let mut buffer = DeviceBuffer::from_host(all.stream(), &[1i64]).unwrap();
    let error = match all.rank() {
        1 => {
            let begun = Instant::now();
            while all.host().failure().is_none() && begun.elapsed() < LONG {
                let _ = all.synchronize();
                std::thread::sleep(Duration::from_millis(10));
            }
            all.barrier().unwrap_err()
        }
        _ => all.broadcast(&mut buffer, 0).and_then(Work::wait).unwrap_err(),
    };
    let Error::Timeout { missing, .. } = &error else { panic!("{error}") };
    assert_eq!(missing.iter().map(|peer| peer.rank).collect::<Vec<_>>(), [1], "{error}");
}

/// As where transfers between the GPUs of a machine hang.
#[test]
fn a_first_sum_that_does_not_come_ends_init() {
    ranks("child_has_no_first_sum", &["stall@1", ""], "2");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_has_no_first_sum() {
    let group = phalanx_group::init().unwrap();
    let error = HybridGroup::new(&group, group.local_rank()).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    group.finalize().unwrap();
}

/// The self-test takes three launches, and each sum one; all agree to the fifth, which never ends.
#[test]
fn an_operation_that_stalls_is_a_timeout_on_all_ranks() {
    ranks("child_is_late", &["", "stall@5", ""], "2");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_is_late() {
    let (group, all) = joined();
    assert_eq!(sum(&all).unwrap(), 6);
    group.barrier().unwrap();
    let begin = |buffer: &mut DeviceBuffer<i64>| all.all_reduce(buffer, ReduceOp::Sum).unwrap();
    let mut buffers = [1, 2].map(|x| DeviceBuffer::from_host(all.stream(), &[x]).unwrap());
    let works = buffers.each_mut().map(begin);
    // The one behind it is no better for being over when NCCL is stopped.
    let outcomes = works.map(|work| work.wait().unwrap_err());
    both_have_failed(&all, &outcomes[0]);
    for (error, name) in outcomes.iter().zip(["all_reduce #5", "all_reduce #6"]) {
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(
            error.to_string().contains(&format!(": {name} at crates/nccl/tests/group_faults.rs:")),
            "{error}"
        );
        assert!(error.to_string().contains("all ranks had arrived"), "{error}");
    }
    // Nothing is under way any more.
    assert!(all.stream().synchronize(LONG).unwrap());
}

#[test]
fn an_asynchronous_error_is_told_to_all_ranks_in_nccls_words() {
    ranks("child_hears_of_an_error", &["", "error@5", ""], "60");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_hears_of_an_error() {
    let (group, all) = joined();
    assert_eq!(sum(&all).unwrap(), 6);
    group.barrier().unwrap();
    let error = sum(&all).unwrap_err();
    let Error::Aborted { peer, reason, .. } = &error else { panic!("{error}") };
    assert_eq!(peer.rank, 1, "{error}");
    assert!(reason.contains("remote process exited or there was a network error (6)"), "{error}");
    both_have_failed(&all, &error);
}

/// Its own rank hears of it from the call: who does not look at the work must not take what is in the buffer for a sum.
#[test]
fn a_launch_that_nccl_refuses_is_told_to_all_ranks() {
    ranks("child_hears_of_a_refusal", &["refuse@5", ""], "60");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_hears_of_a_refusal() {
    let (group, all) = joined();
    assert_eq!(sum(&all).unwrap(), 3);
    group.barrier().unwrap();
    let mut buffer = DeviceBuffer::from_host(all.stream(), &[1i64]).unwrap();
    let begun = all.all_reduce(&mut buffer, ReduceOp::Sum);
    let error = match group.rank() {
        0 => begun.map(drop).unwrap_err(),
        _ => begun.and_then(Work::wait).unwrap_err(),
    };
    assert!(matches!(all.synchronize(), Err(Error::Poisoned { .. })));
    let Error::Aborted { peer, reason, .. } = &error else { panic!("{error}") };
    assert!(peer.rank == 0 && reason.contains("unhandled system error (2)"), "{error}");
    both_have_failed(&all, &error);
}

/// NCCL's own abort hangs: the error comes nevertheless, and the process ends.
#[test]
fn an_abort_that_hangs_holds_nobody_up() {
    ranks("child_is_late_and_stuck", &["stall@5,abort-hangs", "abort-hangs"], "2");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_is_late_and_stuck() {
    let (group, all) = joined();
    assert_eq!(sum(&all).unwrap(), 3);
    group.barrier().unwrap();
    let error = sum(&all).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    both_have_failed(&all, &error);
}

/// It is an error of that rank, which tells the others why it can't go on.
#[test]
fn memory_that_is_not_there_ends_nobody_but_who_says_so() {
    ranks("child_has_little_memory", &["", "memory=65536"], "60");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_has_little_memory() {
    let (group, all) = joined();
    let large = DeviceBuffer::<i64>::zeros(all.stream(), 10_000);
    assert_eq!(sum(&all).unwrap(), 3);
    group.barrier().unwrap();
    if let Err(error) = &large {
        assert!(matches!(error, Error::Library { .. }), "{error}");
        all.abort(&error.to_string());
    }
    assert_eq!(large.is_err(), group.rank() == 1);
    let error = sum(&all).unwrap_err();
    assert!(matches!(error, Error::Aborted { ref peer, .. } if peer.rank == 1), "{error}");
    assert!(error.to_string().ends_with("CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"), "{error}");
    both_have_failed(&all, &error);
}

#[test]
fn different_versions_are_named_before_nccl_is_asked() {
    ranks("child_has_another_version", &["", "version=22703"], "60");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_has_another_version() {
    let group = phalanx_group::init().unwrap();
    let error = HybridGroup::new(&group, group.local_rank()).unwrap_err().to_string();
    assert!(
        error.starts_with("configuration: the ranks have different versions of NCCL: rank 0 ("),
        "{error}"
    );
    assert!(error.contains(" has NCCL 2.28.99 (/") && error.contains(" has NCCL 2.27.3 (/"), "{error}");
    group.finalize().unwrap();
}

/// NCCL would fail all ranks for it, and until 2.28 for a broadcast too.
#[test]
fn floats_of_eight_bits_are_refused_on_all_ranks_where_one_device_has_none() {
    ranks("child_has_no_eight_bits", &["version=22703", "version=22703,capability=80"], "60");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_has_no_eight_bits() {
    let (_group, all) = joined();
    let ones = [phalanx_nccl::F8E4M3(0x38); 3];
    let mut floats = DeviceBuffer::from_host(all.stream(), &ones).unwrap();
    let error = all.all_reduce(&mut floats, ReduceOp::Sum).and_then(Work::wait).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    assert!(
        error.to_string().ends_with("from compute capability 9.0 on, and a device here has 8.0"),
        "{error}"
    );
    all.broadcast(&mut floats, 1).unwrap().wait().unwrap();
    assert_eq!(floats.to_host(all.stream(), LONG).unwrap(), ones);
    assert_eq!(sum(&all).unwrap(), 3);
    all.finalize().unwrap();
}

#[test]
fn an_init_that_hangs_on_one_rank_ends_on_all() {
    for faults in at_versions(&["", "init-hangs"]) {
        let limit = [("PHALANX_INIT_TIMEOUT_S", "5")];
        let (_folder, children) = job_with("child_does_not_come_about", &as_text(&faults), "60", &limit);
        children.into_iter().for_each(|child| done_well("child_does_not_come_about", child));
    }
}

/// Only the new group fails, on both members, and another can be made.
#[test]
fn a_new_group_that_nccl_can_not_connect_fails_alone() {
    for faults in at_versions(&["", "", ""]) {
        let limit = [("PHALANX_INIT_TIMEOUT_S", "5")];
        let name = "child_makes_a_group_without_luck";
        let (_folder, children) = job_with(name, &as_text(&faults), "60", &limit);
        children.into_iter().for_each(|child| done_well(name, child));
    }
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_makes_a_group_without_luck() {
    let (group, all) = joined();
    let version = std::env::var("PHALANX_DOUBLE").unwrap();
    if group.rank() != 2 {
        if group.rank() == 1 {
            common::faults(&format!("{version},init-hangs"));
        }
        let error = all.new_group(&[0, 1]).unwrap_err();
        assert!(matches!(error, Error::Rendezvous { .. } | Error::Aborted { .. }), "{error}");
        assert!(error.to_string().contains("ncclCommInitRankConfig"), "{error}");
        common::faults(&version);
        let pair = all.new_group(&[0, 1]).unwrap().unwrap();
        assert_eq!(sum(&pair).unwrap(), 3);
        pair.finalize().unwrap();
    }
    assert_eq!(sum(&all).unwrap(), 6);
    all.finalize().unwrap();
}

/// It takes the job with it, as any death does; all who wait hear who it was.
#[test]
fn a_member_that_dies_while_a_group_is_made_is_named() {
    ranks_but_one("child_makes_a_group_with_the_dead", &["", "", ""]);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_makes_a_group_with_the_dead() {
    let (group, all) = joined();
    if group.rank() == 1 {
        // Not before the others have made the group of all.
        [0, 2].iter().for_each(|&other| group.recv(&mut [0u8], other, 0).unwrap());
        common::die();
    }
    group.send(&[1u8], 1, 0).unwrap();
    let error = match group.rank() {
        0 => all.new_group(&[0, 1]).map(drop),
        _ => all.barrier(),
    };
    let error = error.unwrap_err();
    assert!(matches!(error, Error::PeerLost { ref peer, how: Loss::Died, .. } if peer.rank == 1), "{error}");
}

/// An operation may take a second, and to connect the devices takes three.
#[test]
fn devices_have_as_long_to_come_together_as_ranks_have() {
    ranks("child_comes_about_slowly", &["init-slow=3000", "init-slow=3000"], "1");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_comes_about_slowly() {
    let (group, all) = joined();
    assert_eq!(group.timeout(), Duration::from_secs(1));
    assert!(group.init_timeout() > Duration::from_secs(3));
    assert_eq!(sum(&all).unwrap(), 3);
    let part = all.with_timeout(Duration::from_secs(2)).split(Some(0), 0).unwrap().unwrap();
    assert_eq!(sum(&part).unwrap(), 3);
}

/// Each rank waits in the first call of a kind for the other, which waits in another. On devices that are full, later calls do so too.
#[test]
fn two_groups_that_are_called_in_two_orders_are_a_timeout() {
    ranks("child_has_two_orders", &["", ""], "2");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_has_two_orders() {
    let (group, all) = joined();
    let other = all.split(Some(0), 0).unwrap().unwrap();
    let between = group.split(Some(0), 0).unwrap().unwrap();
    let (first, second) = if all.rank() == 0 { (&all, &other) } else { (&other, &all) };
    let mut buffer = DeviceBuffer::from_host(all.stream(), &[1i64]).unwrap();
    let error = first.broadcast(&mut buffer, 0).and_then(Work::wait).unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    assert!(error.to_string().contains("broadcast #4 at crates/nccl/tests/group_faults.rs"), "{error}");
    // The other may still wait in the group that is called next, and would be answered.
    between.barrier().unwrap();
    assert!(second.broadcast(&mut buffer, 0).and_then(Work::wait).is_err());
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_does_not_come_about() {
    let group = phalanx_group::init().unwrap();
    let error = HybridGroup::new(&group, group.local_rank()).unwrap_err();
    // Whose time is over first tells the other.
    assert!(matches!(error, Error::Rendezvous { .. } | Error::Aborted { .. }), "{error}");
    assert!(error.to_string().contains("ncclCommInitRankConfig"), "{error}");
    group.finalize().unwrap();
}

#[test]
fn a_wrong_sum_is_found_before_anybody_trusts_it() {
    ranks("child_gets_wrong_sums", &["", "wrong-sums"], "60");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_gets_wrong_sums() {
    let group = phalanx_group::init().unwrap();
    let error = HybridGroup::new(&group, group.local_rank()).unwrap_err();
    match group.rank() {
        0 => assert!(matches!(error, Error::Aborted { ref peer, .. } if peer.rank == 1), "{error}"),
        _ => assert!(matches!(error, Error::WrongSum { rank: 1, .. }), "{error}"),
    }
    assert!(error.to_string().contains("in the sum of element"), "{error}");
    group.finalize().unwrap();
}
