//! What NCCL sends in a job that encrypts: with a key of the job's where NCCL takes one, else with a warning, or not at all.

#![cfg(target_os = "linux")]

mod common;

use common::{double, job_with};
use phalanx_core::{Error, ReduceOp};
use phalanx_nccl::{
    CUDA_LIBRARY, Cuda, Device, DeviceBuffer, HybridGroup, NCCL_LIBRARY, Nccl, NcclGroup, Work,
};
use phalanx_testkit::World;
use std::path::PathBuf;

/// A copy of the double that was not built with OpenSSL.
fn without_tls(folder: &tempfile::TempDir) -> PathBuf {
    let mut bytes = std::fs::read(double()).unwrap();
    let name = b"libssl.so.3";
    let places: Vec<usize> =
        (0..bytes.len() - name.len()).filter(|&at| bytes[at..].starts_with(name)).collect();
    assert_eq!(places.len(), 1, "where the name of OpenSSL stands in the double");
    bytes[places[0] + 3] = b'x';
    let file = folder.path().join("libnccl.so.2");
    std::fs::write(&file, bytes).unwrap();
    file
}

/// Runs the ignored test `name` on two ranks. What each has written to stderr.
fn said(name: &str, fault: &str, environment: &[(&str, &str)]) -> [String; 2] {
    let (_folder, children) = job_with(name, &[fault; 2], "30", environment);
    let said = children.into_iter().map(|child| {
        let output = child.wait_with_output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.contains("1 passed"), "{name}: {out}{err}");
        err.into_owned()
    });
    said.collect::<Vec<_>>().try_into().unwrap()
}

/// By what the double tells this process's key from others; 0 without one.
fn key() -> u64 {
    // SAFETY: the file is the double, which is loaded already.
    let library = unsafe { libloading::Library::new(std::env::var_os(NCCL_LIBRARY).unwrap()) }.unwrap();
    // SAFETY: the function has this type.
    let key = *unsafe { library.get::<extern "C" fn() -> u64>("phalanxDoubleKey") }.unwrap();
    key()
}

/// The keys of all ranks, after a sum over NCCL.
fn keys() -> Vec<u64> {
    let group = phalanx_group::init().unwrap();
    let all = NcclGroup::new(&group, group.local_rank()).unwrap();
    let mut sum = DeviceBuffer::from_host(all.stream(), &[group.rank() as f32 + 1.0]).unwrap();
    all.all_reduce(&mut sum, ReduceOp::Sum).and_then(Work::wait).unwrap();
    assert_eq!(sum.to_host(all.stream(), common::LONG).unwrap(), [3.0]);
    let mut keys = vec![0; 2];
    group.all_gather(&[key()], &mut keys).unwrap();
    all.finalize().unwrap();
    group.finalize().unwrap();
    keys
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_has_the_jobs_key() {
    let keys = keys();
    assert!(keys[0] == keys[1] && keys[0] != 0, "{keys:?}");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_has_no_key() {
    assert_eq!(keys(), [0, 0]);
}

#[test]
fn where_nccl_encrypts_it_gets_a_key_of_the_job() {
    for how in ["1", "require"] {
        let said = said("child_has_the_jobs_key", "version=23203", &[("PHALANX_ENCRYPT", how)]);
        assert!(!said.concat().contains("not encrypted"), "{said:?}");
    }
}

#[test]
fn in_a_job_that_does_not_encrypt_nccl_gets_no_key() {
    let said = said("child_has_no_key", "version=23203", &[]);
    assert!(!said.concat().contains("not encrypted"), "{said:?}");
}

/// Once for the group, not by each rank.
#[test]
fn an_nccl_that_cannot_encrypt_is_warned_of_by_rank_0() {
    let [first, second] = said("child_has_no_key", "version=22899", &[("PHALANX_ENCRYPT", "1")]);
    let warning = "phalanx: nccl: what NCCL sends is not encrypted: on rank 0 (";
    let why = "): NCCL 2.28.99 can't encrypt, which came with 2.32.3; PHALANX_ENCRYPT=require refuses that";
    assert!(first.matches(warning).count() == 1 && first.contains(why), "{first}");
    assert!(!second.contains("encrypt"), "{second}");
}

/// It would take a key, and then fail to connect.
#[test]
fn an_nccl_without_tls_gets_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = without_tls(&folder);
    let file = file.to_str().unwrap();
    let environment = [("PHALANX_ENCRYPT", "1"), (NCCL_LIBRARY, file), (CUDA_LIBRARY, file)];
    let [first, _] = said("child_has_no_key", "version=23203", &environment);
    let why = format!("NCCL 2.32.3 ({file}) was built without TLS (TLS_BACKEND=OPENSSL3)");
    assert!(first.contains("what NCCL sends is not encrypted") && first.contains(&why), "{first}");
    let environment = [("PHALANX_ENCRYPT", "require"), (NCCL_LIBRARY, file), (CUDA_LIBRARY, file)];
    said("child_is_refused", "version=23203", &environment);
}

#[test]
fn who_requires_encryption_has_no_nccl_that_sends_in_the_clear() {
    said("child_is_refused", "version=22899", &[("PHALANX_ENCRYPT", "require")]);
    let environment = [("PHALANX_ENCRYPT", "require"), ("PHALANX_ENABLE_GPU_FALLBACK", "1")];
    let said = said("child_goes_over_the_host", "version=22899", &environment);
    assert!(!said.concat().contains("not encrypted"), "{said:?}");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_is_refused() {
    let group = phalanx_group::init().unwrap();
    let error = NcclGroup::new(&group, group.local_rank()).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let error = error.to_string();
    let wanted = format!("NCCL on {} is not available", group.peer(group.rank()));
    assert!(error.starts_with(&wanted), "{error}");
    assert!(error.contains("PHALANX_ENCRYPT=require refuses to send in the clear: NCCL 2."), "{error}");
    // The group of the hosts is as it was.
    group.barrier().unwrap();
    group.finalize().unwrap();
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_goes_over_the_host() {
    let group = phalanx_group::init().unwrap();
    let all = HybridGroup::new(&group, group.local_rank()).unwrap();
    assert!(all.nccl().is_none());
    all.finalize().unwrap();
    group.finalize().unwrap();
}

/// NCCL has one key for all that the process does.
#[test]
fn another_jobs_key_is_refused() {
    let child = common::process("child_has_two_jobs", &[("PHALANX_DOUBLE", "version=23203")]);
    common::done_well("child_has_two_jobs", child);
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_has_two_jobs() {
    let backend = |group: phalanx_group::ProcessGroup| {
        let device = Device::open(Cuda::load().unwrap(), group.rank());
        NcclGroup::over(&group, Nccl::load(), device).and_then(NcclGroup::finalize)
    };
    World::tcp().encrypted().run(2, move |group| backend(group).unwrap());
    World::tcp().encrypted().run(2, move |group| {
        let error = backend(group).unwrap_err().to_string();
        assert!(error.contains("has that of another job already"), "{error}");
    });
}
