//! Every operation in every type, on the double, ranks being processes: over NCCL, over the host, and in groups of both kinds of memory.

#![cfg(target_os = "linux")]

mod common;
mod suite;

use common::{count, delay, done_well, job, nothing_is_left};
use phalanx_nccl::{DeviceBuffer, Fallback, HybridGroup};
use std::time::Duration;

#[test]
fn every_operation_in_worlds_of_processes() {
    for size in [1, 2, 3, 4, 5, 8] {
        let (_folder, children) = job("child_does_everything", &vec![""; size], "60");
        children.into_iter().for_each(|child| done_well("child_does_everything", child));
    }
}

#[test]
#[ignore = "run by another test, in processes of their own"]
fn child_does_everything() {
    let group = phalanx_group::init().unwrap();
    for fallback in [Fallback::Never, Fallback::Always] {
        let part = group.split(Some(0), group.rank() as i64).unwrap().unwrap();
        let all = HybridGroup::with_fallback(&part, part.local_rank(), fallback).unwrap();
        assert_eq!(all.nccl().is_some(), fallback == Fallback::Never, "{all:?}");
        suite::everything(&all, |stream| delay(stream, Duration::from_millis(5)));
        each_by_its_way(&all);
        let halves = all.split(Some(all.rank() as u32 % 2), -(all.rank() as i64)).unwrap().unwrap();
        assert_eq!(halves.nccl().is_some(), all.nccl().is_some());
        suite::types::<f32>(&halves);
        each_by_its_way(&halves);
        halves.finalize().unwrap();
        all.finalize().unwrap();
    }
    nothing_is_left();
    assert_eq!(count("aborted"), 0);
    group.finalize().unwrap();
}

fn each_by_its_way(all: &HybridGroup) {
    let launches = count("launches");
    suite::one_by_one::<Vec<f32>>(all);
    assert_eq!(count("launches"), launches, "memory of the host went over NCCL");
    suite::one_by_one::<DeviceBuffer<f32>>(all);
    assert_eq!(count("launches") > launches, all.nccl().is_some());
}
