//! Time that runs out, and ends that somebody wants.

use super::failure::{at_once, cause, failed};
use crate::World;
use phalanx_core::{Cause, Error, ReduceOp, Result};
use phalanx_group::ProcessGroup;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::sleep;
use std::time::Duration;

/// Long enough that on a busy machine all ranks that come have come at half of it.
const PATIENCE: Duration = Duration::from_secs(3);

/// `callers` call what the others don't before it is over; everybody hears that `missing` did not come, in these words.
fn in_vain(
    world: World,
    world_size: usize,
    callers: &'static [usize],
    missing: &'static [usize],
    call: fn(&ProcessGroup) -> Result<()>,
) -> String {
    let over = Arc::new(Barrier::new(world_size));
    let causes = world.run(world_size, move |group| {
        group.all_reduce(&mut [1u8], ReduceOp::Sum).unwrap();
        let calls = callers.contains(&group.rank());
        let outcome = if calls { call(&group) } else { Ok(()) };
        assert!(outcome.is_err() || !calls, "it came to an end without {missing:?}");
        over.wait();
        // What came too late may still find what the others had sent and be complete: so hear of it first.
        while group.failure().is_none() {
            sleep(Duration::from_millis(1));
        }
        let error = failed(&group, outcome);
        let Error::Timeout { missing: told, .. } = &error else { panic!("not a timeout: {error}") };
        assert_eq!(told.iter().map(|peer| peer.rank).collect::<Vec<_>>(), missing, "{error}");
        cause(&group)
    });
    assert!(causes.iter().all(|c| *c == causes[0]), "{causes:?}");
    let Cause::TimedOut { reporter, waited, .. } = &causes[0] else { panic!("{}", causes[0]) };
    assert!(callers.contains(&reporter.rank) && *waited >= PATIENCE, "{}", causes[0]);
    let words = causes[0].to_string();
    assert!(words.contains(" at ") && words.contains("/endings.rs:"), "no call site: {words}");
    words
}

/// A monitored barrier names exactly those who did not come.
pub fn a_monitored_barrier_names_who_is_missing(world: &World) {
    let call = |group: &ProcessGroup| group.monitored_barrier(PATIENCE);
    in_vain(world.clone(), 4, &[0, 1], &[2, 3], call);
    in_vain(world.clone(), 4, &[2, 3], &[0, 1], call);
}

/// So does a collective whose time is up.
pub fn a_collective_names_who_is_missing(world: &World) {
    let world = world.clone().timeout(PATIENCE);
    in_vain(world, 3, &[0, 2], &[1], |group| group.all_reduce(&mut [0f32; 100], ReduceOp::Sum));
}

/// A receive whose message nobody sends, and a send of what is too long to go without somebody who takes it.
pub fn a_message_in_vain_names_its_other_end(world: &World) {
    let world = world.clone().timeout(PATIENCE);
    let recv = in_vain(world.clone(), 3, &[2], &[1], |group| group.recv(&mut [0u8; 10], 1, 7));
    assert!(
        recv.contains(" in recv from rank 1 with tag 7 at ") && recv.ends_with("no such message came"),
        "{recv}"
    );
    let send = in_vain(world, 2, &[0], &[1], |group| group.send(&vec![0u8; 64 << 20], 1, 8));
    assert!(
        send.contains(" in send to rank 1 with tag 8 at ") && send.ends_with("did not take the message"),
        "{send}"
    );
}

/// A limit is for the whole call: its time may be over though all ranks are here and their data move.
pub fn a_limit_holds_while_data_move(world: &World) {
    /// In so little time no machine moves [`LEN`].
    const LIMIT: Duration = Duration::from_millis(1);
    const LEN: usize = 64 << 20;
    let calls: [fn(&ProcessGroup) -> Result<()>; 3] = [
        |group| group.all_reduce(&mut vec![1f32; LEN / 4], ReduceOp::Sum),
        |group| group.broadcast(&mut vec![1u8; LEN], 0),
        |group| {
            let (mut bytes, other) = (vec![1u8; LEN], 1 - group.rank());
            if group.rank() == 0 { group.send(&bytes, other, 3) } else { group.recv(&mut bytes, other, 3) }
        },
    ];
    for call in calls {
        let causes = world.run(2, move |group| {
            group.all_reduce(&mut [1u8], ReduceOp::Sum).unwrap();
            let outcome = call(&group.with_timeout(LIMIT));
            assert!(outcome.is_err(), "{LEN} bytes in {LIMIT:?}");
            let error = failed(&group, outcome);
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
            cause(&group)
        });
        assert!(causes[0] == causes[1], "{causes:?}");
    }
}

/// The first whose time is over fails the group for all, whatever their own limits are.
pub fn a_handle_has_a_limit_of_its_own(world: &World) {
    fn limited(group: &ProcessGroup) -> ProcessGroup {
        if group.rank() == 0 { group.with_timeout(PATIENCE) } else { group.clone() }
    }
    let calls: [fn(&ProcessGroup) -> Result<()>; 8] = [
        |group| limited(group).all_reduce(&mut [0f32; 100], ReduceOp::Sum),
        |group| limited(group).all_reduce_async(vec![0u8; 70_000], ReduceOp::Max)?.wait().map(drop),
        |group| limited(group).barrier(),
        |group| limited(group).split(None, 0).map(drop),
        // Where ranks share no memory an alloc asks nobody.
        |group| limited(group).alloc::<f64>(10).and(limited(group).barrier()),
        |group| limited(group).recv(&mut [0u8; 10], 1, 0),
        |group| limited(group).recv_async(vec![0u8; 10], 1, 0)?.wait().map(drop),
        |group| limited(group).send(&vec![0u8; 64 << 20], 1, 0),
    ];
    at_once(&calls, |&call| drop(in_vain(world.clone(), 3, &[0, 2], &[1], call)));
}

/// Ranks may call on one handle or the other, and divide both.
pub fn handles_share_one_order(world: &World) {
    world.run(3, |group| {
        let other = group.with_timeout(group.timeout() * 2);
        assert_eq!(other.timeout(), group.timeout() * 2);
        let handles = [&group, &other];
        for step in 0..20 {
            let handle = handles[(group.rank() + step) % 2];
            let mut sum = [step as u64];
            handle.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            let later = handle.all_reduce_async(vec![step as u64], ReduceOp::Sum).unwrap().wait().unwrap();
            assert_eq!((sum[0], later[0]), (3 * step as u64, 3 * step as u64));
        }
        let halves = handles.map(|of| of.split(Some(0), 0).unwrap().expect("it gave a color"));
        assert_ne!(halves[0].id(), halves[1].id());
        assert_eq!(halves.map(|half| half.timeout()), handles.map(ProcessGroup::timeout));
    });
}

/// `abort` on one rank, from a thread that is not in an operation, ends what runs on all of them.
pub fn an_abort_ends_what_runs_everywhere(world: &World) {
    for culprit in [0, 2] {
        let causes = world.run(4, move |group| {
            let thread = (group.rank() == culprit).then(|| {
                let group = group.clone();
                std::thread::spawn(move || {
                    sleep(Duration::from_millis(150));
                    group.abort("the loss is not a number");
                })
            });
            let begun = group.recv_async(vec![0u8; 5], (group.rank() + 1) % 4, 9).unwrap();
            // Rank 3 waits for something else than the others, all in vain.
            let outcome = match group.rank() {
                3 => group.recv(&mut [0u8; 4], 1, 7),
                _ => group.all_reduce(&mut vec![0u16; 70_000], ReduceOp::Sum),
            };
            for outcome in [outcome, begun.wait().map(drop)] {
                match outcome {
                    Err(Error::Aborted { peer, reason, .. }) => {
                        assert_eq!((peer.rank, reason.as_str()), (culprit, "the loss is not a number"));
                    }
                    other => panic!("{other:?}"),
                }
            }
            thread.into_iter().for_each(|thread| thread.join().expect("aborting does not panic"));
            cause(&group)
        });
        assert!(causes.iter().all(|c| *c == causes[0]), "{causes:?}");
    }
}

/// Two ranks call what the third never will, until somebody aborts: the third, or another thread of one that waits.
pub fn an_abort_ends_every_operation(world: &World) {
    let calls: [fn(&ProcessGroup) -> Result<()>; 18] = [
        |group| group.barrier(),
        |group| group.monitored_barrier(group.timeout()),
        |group| group.clone().finalize(),
        |group| group.all_reduce(&mut [0u8], ReduceOp::Sum),
        |group| group.all_reduce(&mut vec![0f32; 1 << 20], ReduceOp::Sum),
        |group| group.reduce(&mut [0u8; 1000], ReduceOp::Sum, 0),
        |group| group.reduce_scatter(&[0u16; 3000], &mut [0; 1000], ReduceOp::Sum),
        |group| group.all_gather(&[0u8; 1000], &mut [0; 3000]),
        |group| group.all_to_all(&[0u64; 3000], &mut [0; 3000]),
        |group| group.broadcast(&mut [0u8; 1000], 1),
        |group| group.scatter(None, &mut [0u8; 1000], 1),
        |group| group.all_gather_object(&1).map(drop),
        |group| group.split(Some(0), 0).map(drop),
        |group| group.alloc::<f32>(1000).and(group.barrier()),
        |group| group.recv(&mut [0u8; 10], 1, 0),
        |group| group.recv_timeout(&mut [0u8; 10], 1, 0, group.timeout()),
        |group| group.send(&vec![0u8; 64 << 20], 1, 0),
        |group| {
            let begun = [0; 3].map(|_| group.all_reduce_async(vec![0u8; 100_000], ReduceOp::Sum));
            let incoming = group.recv_async(vec![0u8; 10], 1, 0)?;
            begun.into_iter().try_for_each(|work| work?.wait().map(drop)).and(incoming.wait().map(drop))
        },
    ];
    for culprit in [1, 2] {
        at_once(&calls, |&call| {
            let (begin, over) = (Barrier::new(3), Barrier::new(3));
            let causes = world.run(3, move |group| {
                group.barrier().unwrap();
                begin.wait();
                let other = group.clone();
                let aborts = (group.rank() == culprit).then(|| {
                    std::thread::spawn(move || {
                        sleep(Duration::from_millis(150));
                        other.abort("enough");
                    })
                });
                let outcome = if group.rank() == 1 { Ok(()) } else { call(&group) };
                over.wait();
                aborts.into_iter().for_each(|thread| thread.join().expect("aborting does not panic"));
                let error = failed(&group, outcome);
                assert!(matches!(&error, Error::Aborted { peer, .. } if peer.rank == culprit), "{error}");
                cause(&group)
            });
            assert!(causes.iter().all(|c| *c == causes[0]), "{causes:?}");
        });
    }
}

/// `finalize` returns nowhere before the slowest has come, and a group of one has nobody to wait for.
pub fn finalize_waits_for_all(world: &World) {
    for world_size in [1, 2, 4] {
        let come = Arc::new(AtomicUsize::new(0));
        world.run(world_size, move |group| {
            sleep(Duration::from_millis(50 * group.rank() as u64));
            come.fetch_add(1, Ordering::SeqCst);
            group.finalize().unwrap();
            assert_eq!(come.load(Ordering::SeqCst), world_size);
        });
    }
}

/// An operation that was begun is performed although nobody waits for it and its group was dropped.
pub fn what_was_begun_is_performed(world: &World) {
    let sums = world.run(3, |group| {
        let rank = group.rank();
        let work = group.all_reduce_async(vec![rank as u32; 300_000], ReduceOp::Sum).unwrap();
        drop(group);
        if rank == 0 { None } else { Some(work.wait().unwrap()) }
    });
    assert_eq!(sums[0], None);
    for sum in &sums[1..] {
        assert!(sum.as_ref().is_some_and(|sum| *sum == vec![3; 300_000]));
    }
}
