//! What one version does and another does not, each in a process of its own.

use crate::last_error;
use crate::nccl::{ncclCommAbort, ncclCommSplit, ncclGroupEnd, ncclGroupStart};
use crate::refusals::{FLOAT, all_reduce, config, init, status};
use crate::result::{IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, NcclResult, OK};
use std::ffi::c_void;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::ptr::null_mut;

const SIGABRT: i32 = 6;

/// Runs the ignored test `name` as this version.
fn as_version(version: u32, name: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args([&format!("versions::{name}"), "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env("PHALANX_DOUBLE", format!("version={version}"))
        .output()
        .unwrap()
}

fn goes_well(version: u32, name: &str) {
    let output = as_version(version, name);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{version}: {output:?}");
}

/// A communicator of one rank that has come about.
fn ready() -> *mut c_void {
    let (_, comm) = init(1, config());
    settle(comm);
    comm
}

fn settle(comm: *mut c_void) -> NcclResult {
    while status(comm) == IN_PROGRESS {
        std::thread::yield_now();
    }
    status(comm)
}

fn abort(comm: *mut c_void) {
    // SAFETY: nobody uses it any more.
    unsafe { ncclCommAbort(comm) };
    // Until 2.19 an abort does not wait for what goes on behind the caller's back.
    crate::job::join_last();
}

fn group_start() -> NcclResult {
    // SAFETY: it takes nothing.
    unsafe { ncclGroupStart() }
}

fn group_end() -> NcclResult {
    // SAFETY: as above.
    unsafe { ncclGroupEnd() }
}

#[test]
fn who_aborts_after_the_thread_that_began_has_ended_ends_the_process_until_2_26() {
    for version in [21_903, 22_105, 22_602] {
        let output = as_version(version, "child_aborts_after_a_thread");
        assert_eq!(output.status.signal(), Some(SIGABRT), "{version}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("whose state was that of a thread that has ended"), "{said}");
    }
    goes_well(22_703, "child_aborts_after_a_thread");
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_aborts_after_a_thread() {
    let comm = std::thread::spawn(|| init(2, config()).1 as usize).join().unwrap();
    abort(comm as *mut c_void);
}

#[test]
fn a_launch_is_made_in_the_caller_until_2_22() {
    goes_well(22_203, "child_is_told_at_once");
    goes_well(22_304, "child_is_told_later");
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_is_told_at_once() {
    assert_eq!(second_launch(), OK);
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_is_told_later() {
    assert_eq!(second_launch(), IN_PROGRESS);
}

/// The first connects.
fn second_launch() -> NcclResult {
    let comm = ready();
    let (from, mut to) = (1.0, 0.0);
    assert_eq!(all_reduce(comm, &from, &mut to, FLOAT), IN_PROGRESS);
    settle(comm);
    let code = all_reduce(comm, &from, &mut to, FLOAT);
    settle(comm);
    crate::stream::synchronize(0);
    abort(comm);
    code
}

#[test]
fn a_thread_that_is_busy_begins_no_group_in_2_18() {
    goes_well(21_806, "child_is_busy");
    goes_well(21_903, "child_may_begin");
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_is_busy() {
    // The other rank does not come.
    let (_, comm) = init(2, config());
    assert_eq!(group_start(), INVALID_USAGE);
    abort(comm);
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_may_begin() {
    let (_, comm) = init(2, config());
    assert_eq!((group_start(), group_end()), (OK, OK));
    abort(comm);
}

#[test]
fn a_group_that_fails_on_a_busy_thread_ends_the_process_until_2_26() {
    let output = as_version(22_602, "child_fails_while_busy");
    assert_eq!(output.status.signal(), Some(SIGABRT), "{output:?}");
    goes_well(22_703, "child_fails_while_busy");
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_fails_while_busy() {
    let (_, comm) = init(2, config());
    let (from, mut to) = (1.0, 0.0);
    group_start();
    assert_eq!(all_reduce(comm, &from, &mut to, FLOAT), INVALID_ARGUMENT);
    assert_eq!(group_end(), INVALID_ARGUMENT);
    abort(comm);
}

#[test]
fn a_split_is_no_error_while_its_child_is_not_there() {
    let comm = ready();
    let (mut child, mut config) = (null_mut(), config());
    // SAFETY: the pointers are good until it is done.
    let code = unsafe { ncclCommSplit(comm, 0, 0, &raw mut child, &raw mut config) };
    assert_eq!(code, OK);
    assert_eq!(settle(comm), OK);
    assert!(!child.is_null());
    abort(child);
    abort(comm);
}

#[test]
fn the_last_error_stays_whomever_it_was_about() {
    goes_well(22_899, "child_reads_of_another");
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_reads_of_another() {
    let (well, ill) = (ready(), ready());
    assert_eq!(last_error::now(), c"");
    let (from, mut to) = (1.0, 0.0);
    assert_eq!(all_reduce(ill, &from, &mut to, -1), INVALID_ARGUMENT);
    abort(ill);
    assert_eq!((status(well), last_error::now()), (OK, c"from the double"));
    abort(well);
}
