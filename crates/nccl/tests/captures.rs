//! Graphs that a program captures beside operations between ranks: nothing here breaks a capture, or becomes part of one. In processes: a capture concerns all threads.

#![cfg(target_os = "linux")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "looking a function of the double up and calling it is one thing"
)]

mod common;

use common::{LONG, done_well, double, job, nothing_is_left};
use phalanx_core::{Error, ReduceOp};
use phalanx_nccl::{DeviceBuffer, HybridGroup, Stream, Work};
use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`: such a call of any thread breaks it.
const GLOBAL: c_int = 0;

/// The driver's own functions for it, which programs call over cudarc.
struct Capture<'a>(&'a Stream);

impl<'a> Capture<'a> {
    fn begin(stream: &'a Stream) -> Self {
        // SAFETY: the file is the double, the function has this type, and the stream is of the double.
        let code = unsafe {
            let library = libloading::Library::new(double()).unwrap();
            let begin =
                library.get::<unsafe extern "C" fn(*mut c_void, c_int) -> c_int>("cuStreamBeginCapture_v2");
            begin.unwrap()(stream.raw(), GLOBAL)
        };
        assert_eq!(code, 0);
        Self(stream)
    }

    /// What came of it.
    fn end(self) -> c_int {
        let mut graph = std::ptr::null_mut();
        // SAFETY: as above.
        unsafe {
            let library = libloading::Library::new(double()).unwrap();
            let end = library
                .get::<unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> c_int>("cuStreamEndCapture");
            end.unwrap()(self.0.raw(), &raw mut graph)
        }
    }
}

fn ranks(name: &str) {
    let (_folder, children) = job(name, &["", ""], "60");
    children.into_iter().for_each(|child| done_well(name, child));
}

#[test]
fn operations_on_their_way_break_no_capture() {
    ranks("child_captures");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_captures() {
    let group = phalanx_group::init().unwrap();
    let all = HybridGroup::new(&group, group.local_rank()).unwrap();
    let mut sum = DeviceBuffer::from_host(all.stream(), &[1i64]).unwrap();
    let compute = Stream::new(all.device()).unwrap();
    common::delay(all.stream(), Duration::from_millis(100));
    let work = all.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    // The thread that looks after operations asks after the event all the time, and so does who waits here.
    let capture = Capture::begin(&compute);
    work.wait().unwrap();
    let begun = Instant::now();
    let again = all.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    while !again.is_done() {
        assert!(begun.elapsed() < LONG);
    }
    again.wait().unwrap();
    assert_eq!(sum.to_host(all.stream(), LONG).unwrap(), [4]);
    assert_eq!(capture.end(), 0, "the capture is broken");
    drop((sum, compute));
    all.finalize().unwrap();
    drop(group);
    nothing_is_left();
}

#[test]
fn a_stream_that_captures_is_refused_before_the_others_hear_of_the_call() {
    ranks("child_calls_while_it_captures");
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_calls_while_it_captures() {
    let group = phalanx_group::init().unwrap();
    let all = HybridGroup::new(&group, group.local_rank()).unwrap();
    let compute = Stream::new(all.device()).unwrap();
    let there = all.on_stream(&compute).unwrap();
    let mut sum = DeviceBuffer::from_host(all.stream(), &[1i64]).unwrap();
    if group.rank() == 0 {
        let capture = Capture::begin(&compute);
        for refused in [
            there.all_reduce(&mut sum, ReduceOp::Sum).map(drop).unwrap_err(),
            sum.to_host(&compute, LONG).map(drop).unwrap_err(),
            // What comes of such an event would join the graph, and one from outside would break the capture.
            compute.record().map(drop).unwrap_err(),
            compute.record_time().map(drop).unwrap_err(),
            compute.wait_for(&all.stream().record().unwrap()).unwrap_err(),
            sum.order(&compute).unwrap_err(),
        ] {
            assert!(matches!(refused, Error::Config { .. }), "{refused}");
            assert!(
                refused.to_string().contains("captures a graph, of which nothing here can be a part"),
                "{refused}"
            );
        }
        assert_eq!(capture.end(), 0, "the capture is broken");
    }
    there.all_reduce(&mut sum, ReduceOp::Sum).and_then(Work::wait).unwrap();
    assert_eq!(sum.to_host(&compute, LONG).unwrap(), [2]);
    drop((sum, compute, there));
    all.finalize().unwrap();
    drop(group);
    nothing_is_left();
}
