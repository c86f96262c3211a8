//! Ranks that leave, panic, or do not come: the others are told who it was, and nobody hangs.

use super::failure::{at_once, cause, failed};
use crate::World;
use crate::oracle::Random;
use phalanx_core::{Cause, Error, Loss, ReduceOp, Result};
use phalanx_group::{ProcessGroup, Work};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// The buffer that is reduced in one step: little or much.
fn work(step: u64) -> Vec<f32> {
    vec![1.0; 1 << Random::new(step).below(18)]
}

fn take_part(group: &ProcessGroup, step: u64) -> Result<()> {
    group.all_reduce(&mut work(step), ReduceOp::Sum)
}

/// Works until it fails.
pub(super) fn until_failure(group: &ProcessGroup) -> Error {
    for step in 0.. {
        if let Err(error) = take_part(group, step) {
            return failed(group, Err(error));
        }
    }
    unreachable!("the loop ends with a failure only")
}

/// Drops the group as a panic does, without the noise of one.
pub(super) fn panic_with(group: ProcessGroup) {
    let panic = catch_unwind(AssertUnwindSafe(move || {
        let _group = group;
        resume_unwind(Box::new("on purpose"));
    }));
    assert!(panic.is_err());
}

/// Fails unless the error names `lost` and where the call was made; returns the cause.
#[track_caller]
fn names(group: &ProcessGroup, error: &Error, lost: usize, how: Loss) -> Cause {
    assert!(
        matches!(error, Error::PeerLost { peer, how: told, .. } if peer.rank == lost && *told == how),
        "rank {lost}, {how}: {error}"
    );
    assert!(error.to_string().contains("/losses.rs:"), "no call site: {error}");
    cause(group)
}

fn all_equal(causes: &[Option<Cause>]) {
    let told: Vec<_> = causes.iter().flatten().collect();
    assert!(told.len() == causes.len() - 1 && told.iter().all(|cause| *cause == told[0]), "{told:?}");
}

const WHO: [(usize, usize); 5] = [(2, 0), (2, 1), (4, 0), (4, 1), (4, 3)];

/// A rank drops its group while the others still work, having taken part or never having done anything.
pub fn a_rank_that_leaves_is_named(world: &World) {
    for took_part in [0, 1, 7] {
        at_once(&WHO, |&(world_size, who)| {
            let causes = world.run(world_size, move |group| {
                if group.rank() == who {
                    (0..took_part).for_each(|step| take_part(&group, step).unwrap());
                    return None;
                }
                let error = until_failure(&group);
                Some(names(&group, &error, who, Loss::Left))
            });
            all_equal(&causes);
        });
    }
}

/// A rank drops a subgroup, or the group that this was divided from, and is not gone from the job.
pub fn a_rank_that_leaves_one_group_is_named_there(world: &World) {
    let world = &world.clone().timeout(Duration::from_secs(20));
    // Never used, used, and what was divided.
    for (took_part, leaves_half) in [(0, true), (3, true), (0, false)] {
        at_once(&WHO, |&(world_size, who)| {
            // Nobody leaves the job before all have been told.
            let done = Arc::new(Barrier::new(world_size));
            let causes = world.run(world_size, move |group| {
                let half = group.split(Some(0), 0).unwrap().expect("it gave a color");
                let (left, kept) = if leaves_half { (half, group) } else { (group, half) };
                // All are through the split before the others fail in what comes next.
                kept.barrier().unwrap();
                let cause = if left.rank() == who {
                    (0..took_part).for_each(|step| take_part(&left, step).unwrap());
                    drop(left);
                    None
                } else {
                    let error = until_failure(&left);
                    Some(names(&left, &error, who, Loss::Left))
                };
                kept.barrier().unwrap();
                done.wait();
                cause
            });
            all_equal(&causes);
        });
    }
}

/// A rank that has left a group delays no rank that does not need it.
pub fn what_a_rank_did_before_it_left_a_group_counts(world: &World) {
    at_once(&[1usize, 3000], |&len| {
        world.run(3, move |group| {
            let part = group.split(Some(0), 0).unwrap().expect("it gave a color");
            let mut buffer = vec![part.rank() as u8; len];
            if part.rank() == 1 {
                part.broadcast(&mut buffer, 1).unwrap();
                part.send(&buffer, 0, 5).unwrap();
                drop(part);
            } else {
                // Longer than the last bytes of who has left may take.
                std::thread::sleep(Duration::from_millis(1500));
                part.broadcast(&mut buffer, 1).unwrap();
                assert_eq!(buffer, vec![1; len]);
                match part.rank() {
                    0 => part.recv(&mut buffer, 1, 5).unwrap(),
                    _ => part.send(&buffer, 0, 6).unwrap(),
                }
                if part.rank() == 0 {
                    part.recv(&mut buffer, 2, 6).unwrap();
                }
            }
            group.barrier().unwrap();
        });
    });
}

/// A rank panics at some moment or other, half the time with an operation in flight.
pub fn a_rank_that_panics_is_named(world: &World) {
    for seed in 0..4 {
        at_once(&WHO, |&(world_size, who)| {
            let causes = world.run(world_size, move |group| {
                if group.rank() != who {
                    let error = until_failure(&group);
                    return Some(names(&group, &error, who, Loss::Panicked));
                }
                let end = Random::new(seed).bits() % 40;
                (0..end).for_each(|step| take_part(&group, step).unwrap());
                let in_flight = (seed % 2 == 1).then(|| group.all_reduce_async(work(end), ReduceOp::Sum));
                panic_with(group);
                drop(in_flight);
                None
            });
            all_equal(&causes);
        });
    }
}

/// A message that was sent before its sender left still arrives; the next one never will.
pub fn last_messages_of_a_rank_that_left_arrive(world: &World) {
    at_once(&[1usize, 60_000, 3_000_000], |&len| {
        world.run(2, move |group| {
            if group.rank() == 1 {
                return group.send(&vec![1u8; len], 0, 5).unwrap();
            }
            // Let it be gone.
            std::thread::sleep(Duration::from_millis(100));
            let mut message = vec![0u8; len];
            group.recv(&mut message, 1, 5).unwrap();
            assert!(message.iter().all(|&b| b == 1));
            let error = group.recv(&mut message, 1, 5).unwrap_err();
            names(&group, &error, 1, Loss::Left);
            assert!(error.to_string().contains(": recv from rank 1 with tag 5 at "), "{error}");
        });
    });
}

/// Operations in flight fail as well, each of them, and whoever waits for one is told.
pub fn operations_in_flight_are_told(world: &World) {
    let together = Barrier::new(3);
    let causes = world.run(3, move |group| {
        group.barrier().unwrap();
        together.wait();
        if group.rank() == 2 {
            panic_with(group);
            return None;
        }
        let begun: Vec<_> =
            (0..5).map(|_| group.all_reduce_async(vec![1u8; 100_000], ReduceOp::Sum)).collect();
        let incoming = group.recv_async(vec![0u8], 2, 0);
        let mut errors: Vec<Error> = begun
            .into_iter()
            .map(|work| work.and_then(Work::wait).expect_err("rank 2 is not there"))
            .collect();
        errors.push(incoming.and_then(Work::wait).expect_err("rank 2 is not there"));
        let blames_2 = |error: &Error| match error {
            Error::PeerLost { peer, .. } => peer.rank == 2,
            Error::Poisoned { cause, .. } => cause.culprit().is_some_and(|peer| peer.rank == 2),
            _ => false,
        };
        assert!(errors.iter().all(blames_2), "{errors:?}");
        Some(cause(&group))
    });
    all_equal(&causes);
}

/// The group has failed when a rank calls: the first cause, and the call with its number, or its other end.
pub fn a_failure_that_a_call_finds_is_told_at_its_place(world: &World) {
    type Call = fn(&ProcessGroup) -> Result<()>;
    // Where `init` tests the sums of a world, that was the first call.
    let calls: [(Call, &'static [&'static str]); 3] = [
        (|group| group.all_reduce(&mut [1u8], ReduceOp::Sum), &["all_reduce #2 at ", "all_reduce #3 at "]),
        (
            |group| group.all_reduce_async(vec![1u8], ReduceOp::Sum)?.wait().map(drop),
            &["all_reduce #2 at ", "all_reduce #3 at "],
        ),
        (|group| group.recv(&mut [1u8], 0, 7), &["recv from rank 0 with tag 7 at "]),
    ];
    at_once(&calls, |&(call, words)| {
        let all_was_well = Barrier::new(2);
        world.run(2, move |group| {
            group.barrier().unwrap();
            all_was_well.wait();
            if group.rank() == 0 {
                group.abort("on purpose");
                return;
            }
            while group.failure().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let error = call(&group).unwrap_err();
            assert!(matches!(error, Error::Aborted { .. }), "{error}");
            assert!(words.iter().any(|words| error.to_string().contains(words)), "{error}");
        });
    });
}

/// After the end every operation says so, with the first cause, and sends nothing.
pub fn a_failed_group_refuses_everything(world: &World) {
    world.run(2, |group| {
        if group.rank() == 0 {
            panic_with(group);
            return;
        }
        let error = until_failure(&group);
        let cause = names(&group, &error, 0, Loss::Panicked);
        let (sum, mut one, mut two) = (ReduceOp::Sum, [0u8; 1], [0u8; 2]);
        let refusals: Vec<Result<()>> = vec![
            group.all_reduce(&mut one, sum),
            group.reduce_scatter(&[0; 2], &mut one, sum),
            group.reduce_scatter_v(&[0; 2], &mut one, &[1; 2], sum),
            group.all_gather(&[0], &mut two),
            group.all_gather_v(&[0], &mut two, &[1; 2]),
            group.broadcast(&mut one, 0),
            group.reduce(&mut one, sum, 0),
            group.gather(&[0u8], None, 0),
            group.gather_v(&[0u8], None, &[1; 2], 0),
            group.scatter(None, &mut one, 0),
            group.scatter_v(None, &mut one, &[1; 2], 0),
            group.all_to_all(&[0; 2], &mut two),
            group.all_to_all_v(&[0; 2], &[1; 2], &mut two, &[1; 2]),
            group.barrier(),
            group.monitored_barrier(group.timeout()),
            group.send(&one, 0, 0),
            group.recv(&mut one, 0, 0),
            group.recv_timeout(&mut one, 0, 0, group.timeout()),
            group.split(None, 0).map(drop),
            group.broadcast_object(None::<u8>, 0).map(drop),
            group.all_gather_object(&1).map(drop),
            group.all_reduce_async(vec![0u8], sum).map(drop),
            group.broadcast_async(vec![0u8], 0).map(drop),
            group.all_gather_async(&[0u8]).map(drop),
            group.reduce_scatter_async(vec![0u8; 2], sum).map(drop),
            group.barrier_async().map(drop),
            group.send_async(vec![0u8], 0, 0).map(drop),
            group.recv_async(vec![0u8], 0, 0).map(drop),
            group.clone().finalize(),
        ];
        for (i, refusal) in refusals.into_iter().enumerate() {
            match refusal {
                Err(Error::Poisoned { cause: first, .. }) => assert_eq!(*first, cause, "call {i}"),
                other => panic!("call {i}: {other:?}"),
            }
        }
    });
}
