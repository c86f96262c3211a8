//! Threads of a program that call and end, while NCCL still works on what they began, and calls that do not come out of NCCL; with versions of it that keep their
//! books in different places. In processes: where it goes wrong, the double ends them.

#![cfg(target_os = "linux")]

mod common;

use common::{LONG, device, done_well, joined, me, nccl, nothing_is_left, process, ranks, sum};
use phalanx_core::Error;
use phalanx_nccl::{Communicator, Nccl, Stream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_secs(1);

/// On a thread that is gone when this returns.
fn on_a_thread<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    thread::scope(|threads| threads.spawn(work).join().unwrap())
}

#[test]
fn every_call_may_come_from_a_thread_that_ends() {
    ranks("child_calls_from_threads", &["", ""]);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_calls_from_threads() {
    let (rank, size, id) = me();
    let device = device(rank);
    let init = || Communicator::init(nccl(), &device, &id, rank, size, LONG).unwrap();
    let (comm, stream) = (on_a_thread(init), Stream::new(&device).unwrap());
    for _ in 0..5 {
        assert_eq!(on_a_thread(|| sum(&comm, &stream, LONG).unwrap()), 3);
    }
    let part = on_a_thread(|| comm.split(Some(0), 0, LONG).unwrap().unwrap());
    assert_eq!(on_a_thread(|| sum(&part, &stream, LONG).unwrap()), 3);
    on_a_thread(|| part.finalize(LONG).unwrap());
    on_a_thread(|| comm.finalize(LONG).unwrap());
    drop((part, comm, stream, device));
    nothing_is_left();
}

/// Rank 1 does not come to the first sum, for which NCCL must connect the two.
#[test]
fn an_abort_ends_what_a_thread_began_that_has_ended() {
    ranks("child_aborts_what_a_thread_began", &["", ""]);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_aborts_what_a_thread_began() {
    let (rank, size, id) = me();
    let device = device(rank);
    let init = || Communicator::init(nccl(), &device, &id, rank, size, LONG).unwrap();
    let (comm, stream) = (on_a_thread(init), Stream::new(&device).unwrap());
    if rank == 0 {
        let error = on_a_thread(|| sum(&comm, &stream, SHORT).unwrap_err().to_string());
        assert!(error.ends_with("still in progress after 1.0 s"), "{error}");
        // NCCL has not let go of it yet, and would lose its way with another.
        let error = sum(&comm, &stream, SHORT).unwrap_err().to_string();
        assert!(error.ends_with("still busy with an operation that was given up; abort it"), "{error}");
    } else {
        thread::sleep(2 * SHORT);
    }
    on_a_thread(|| comm.abort(LONG).unwrap());
    drop((comm, stream));
    assert_eq!(common::count("communicators"), 0);
}

#[test]
fn an_init_that_was_given_up_is_aborted_when_its_thread_has_ended() {
    ranks("child_gives_up_its_init", &["init-hangs"]);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_gives_up_its_init() {
    let (rank, _, id) = me();
    let device = device(rank);
    let error = on_a_thread(|| Communicator::init(nccl(), &device, &id, rank, 2, SHORT).unwrap_err());
    assert!(matches!(error, Error::Rendezvous { .. }), "{error}");
    drop(device);
    nothing_is_left();
}

/// Until 2.22 the launch is inside NCCL on the thread that makes it.
#[test]
fn a_launch_that_does_not_come_out_of_nccl_is_late_and_ends_by_an_abort() {
    ranks("child_is_inside", &["block@2", "block@2"]);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_is_inside() {
    let (comm, stream) = joined();
    assert_eq!(sum(&comm, &stream, LONG).unwrap(), 3);
    let (comm, stream) = (Arc::new(comm), Arc::new(stream));
    let (inside, on) = (comm.clone(), stream.clone());
    let late = thread::spawn(move || sum(&inside, &on, SHORT).unwrap_err().to_string());
    let begun = Instant::now();
    while !late.is_finished() {
        assert!(begun.elapsed() < LONG, "it waits inside NCCL");
        thread::sleep(Duration::from_millis(1));
    }
    let error = late.join().unwrap();
    assert!(error.ends_with("still in progress after 1.0 s"), "{error}");
    comm.abort(LONG).unwrap();
    assert!(stream.synchronize(LONG).unwrap());
    let error = sum(&comm, &stream, LONG).unwrap_err().to_string();
    assert!(error.ends_with("the communicator was aborted"), "{error}");
    assert_eq!(common::count("communicators"), 0);
}

#[test]
fn a_launch_that_is_inside_nccl_is_ended_by_an_abort_of_another_thread() {
    ranks("child_is_called_back", &["block@2", "block@2"]);
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_is_called_back() {
    let (comm, stream) = joined();
    assert_eq!(sum(&comm, &stream, LONG).unwrap(), 3);
    thread::scope(|threads| {
        let inside = threads.spawn(|| sum(&comm, &stream, 10 * LONG).unwrap_err().to_string());
        thread::sleep(Duration::from_millis(100));
        comm.abort(LONG).unwrap();
        let error = inside.join().unwrap();
        assert!(error.ends_with("the communicator was aborted"), "{error}");
    });
}

#[test]
fn a_version_that_is_too_old_is_refused_with_the_least_and_why() {
    for version in [21_403, 21_806] {
        let fault = format!("version={version}");
        done_well("child_is_too_old", process("child_is_too_old", &[("PHALANX_DOUBLE", &fault)]));
    }
    let of_first = process("child_is_new_enough", &[("PHALANX_DOUBLE", "version=21901")]);
    done_well("child_is_new_enough", of_first);
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_is_too_old() {
    let error = Nccl::load().unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    let error = error.to_string();
    assert!(error.contains("tried: NCCL 2.14.3 (/") || error.contains("tried: NCCL 2.18.6 (/"), "{error}");
    let why = "at least 2.19 is needed, for what is older may crash when a communicator is aborted while it is at work (NVIDIA/nccl#992)";
    assert!(error.contains(why), "{error}");
    assert!(Nccl::open(common::double()).is_err() && !Nccl::is_available());
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_is_new_enough() {
    assert_eq!(Nccl::load().unwrap().version().to_string(), "2.19.1");
}
