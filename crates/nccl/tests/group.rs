//! The backend on the double, ranks being threads: results, the order of things, and the errors of the contract.

#![cfg(target_os = "linux")]

mod common;

use common::{LONG, count, delay, device, double, nccl, run};
use phalanx_core::{Cause, Error, ReduceOp, Result};
use phalanx_group::ProcessGroup;
use phalanx_nccl::{DeviceBuffer, Nccl, NcclGroup, Stream, Work};
use phalanx_testkit::World;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn backend(group: &ProcessGroup) -> NcclGroup {
    NcclGroup::over(group, Ok(nccl()), Ok(device(group.rank()))).unwrap()
}

fn on(backend: &NcclGroup, elements: &[i64]) -> DeviceBuffer<i64> {
    DeviceBuffer::from_host(backend.stream(), elements).unwrap()
}

fn read(backend: &NcclGroup, buffer: &DeviceBuffer<i64>) -> Vec<i64> {
    buffer.to_host(backend.stream(), LONG).unwrap()
}

#[test]
fn every_operation_in_worlds_of_every_kind() {
    for (world, sizes) in [(World::shm(), &[1, 2, 4, 8][..]), (World::tcp(), &[3]), (World::hosts(2), &[3])] {
        for &size in sizes {
            run(&world, size, |group| every_operation(&backend(&group)));
        }
    }
}

fn every_operation(all: &NcclGroup) {
    let (rank, n) = (all.rank() as i64, all.world_size() as i64);
    let (me, size) = (all.rank(), all.world_size());
    let ranks: Vec<i64> = (0..n).collect();
    let root = size - 1;

    let mut buffer = on(all, &[rank, 1]);
    all.all_reduce(&mut buffer, ReduceOp::Sum).unwrap().wait().unwrap();
    assert_eq!(read(all, &buffer), [n * (n - 1) / 2, n]);
    let refused = all.all_reduce(&mut buffer, ReduceOp::PreMulSum(2.0)).unwrap_err().to_string();
    assert_eq!(refused, "all_reduce: pre_mul_sum is for floats, not for i64");
    let mut floats = DeviceBuffer::from_host(all.stream(), &[1.0f32, 0.5]).unwrap();
    // Rank r has the factor r + 1.
    all.all_reduce(&mut floats, ReduceOp::PreMulSum(rank as f64 + 1.0)).unwrap().wait().unwrap();
    let sum = (n * (n + 1) / 2) as f32;
    assert_eq!(floats.to_host(all.stream(), LONG).unwrap(), [sum, sum / 2.0]);

    let mut buffer = on(all, &[rank]);
    all.reduce(&mut buffer, ReduceOp::Max, root).unwrap().wait().unwrap();
    assert_eq!(read(all, &buffer), [if me == root { n - 1 } else { rank }]);
    all.broadcast(&mut buffer, root).unwrap().wait().unwrap();
    assert_eq!(read(all, &buffer), [n - 1]);

    let mine = on(all, &[rank]);
    let mut gathered = on(all, &vec![-1; size]);
    all.all_gather(&mine, &mut gathered).unwrap().wait().unwrap();
    assert_eq!(read(all, &gathered), ranks);
    let mut part = on(all, &[-1]);
    all.reduce_scatter(&gathered, &mut part, ReduceOp::Sum).unwrap().wait().unwrap();
    assert_eq!(read(all, &part), [rank * n]);

    let to_all: Vec<i64> = (0..n).map(|to| rank * 100 + to).collect();
    let (to_all, mut from_all) = (on(all, &to_all), on(all, &vec![-1; size]));
    all.all_to_all(&to_all, &mut from_all).unwrap().wait().unwrap();
    assert_eq!(read(all, &from_all), (0..n).map(|from| from * 100 + rank).collect::<Vec<_>>());

    let mut at_root = (me == root).then(|| on(all, &vec![-1; size]));
    all.gather(&mine, at_root.as_mut(), root).unwrap().wait().unwrap();
    assert!(at_root.as_ref().is_none_or(|gathered| read(all, gathered) == ranks));
    let mut scattered = on(all, &[-1]);
    all.scatter(at_root.as_ref(), &mut scattered, root).unwrap().wait().unwrap();
    assert_eq!(read(all, &scattered), [rank]);

    // Round the ring; together, for otherwise each would wait for the other.
    let mut received = on(all, &[-1]);
    let mut batch = all.batch();
    batch.send(&mine, (me + 1) % size).unwrap();
    batch.recv(&mut received, (me + size - 1) % size).unwrap();
    all.launch(&batch).unwrap().wait().unwrap();
    assert_eq!(read(all, &received), [(rank + n - 1) % n]);

    let halves = all.split(Some(me as u32 % 2), -rank).unwrap().unwrap();
    let mut sum = on(&halves, &[rank]);
    halves.all_reduce(&mut sum, ReduceOp::Sum).unwrap().wait().unwrap();
    assert_eq!(read(&halves, &sum), [ranks.iter().filter(|other| *other % 2 == rank % 2).sum::<i64>()]);
    halves.finalize().unwrap();
    all.barrier().unwrap();
    all.clone().finalize().unwrap();
}

/// Every set of ranks there is. The others do not call, or call and get nothing; the group that it was made from works on.
#[test]
fn a_group_is_made_by_its_members_alone() {
    run(&World::thread(), 4, |group| {
        let (all, rank) = (backend(&group), group.rank());
        for set in 1..16 {
            let mut members: Vec<usize> = (0..4).filter(|rank| set >> rank & 1 == 1).collect();
            let ranks: i64 = members.iter().map(|&rank| rank as i64).sum();
            let place = members.iter().position(|&member| member == rank);
            // Each names them in another order.
            let turn = rank % members.len();
            members.rotate_left(turn);
            let Some(place) = place else {
                assert!(set % 2 == 1 || all.new_group(&members).unwrap().is_none());
                continue;
            };
            let new = all.new_group(&members).unwrap().expect("a member");
            assert_eq!((new.rank(), new.world_size(), new.device().ordinal()), (place, members.len(), rank));
            let mut sum = on(&new, &[rank as i64]);
            new.all_reduce(&mut sum, ReduceOp::Sum).unwrap().wait().unwrap();
            assert_eq!(read(&new, &sum), [ranks]);
            // One of a group that was made so itself.
            let alone = new.new_group(&[place]).unwrap().expect("a member");
            assert_eq!(alone.world_size(), 1);
            alone.finalize().unwrap();
            new.finalize().unwrap();
        }
        all.barrier().unwrap();
    });
}

#[test]
fn ranks_that_make_no_group_are_refused_and_hurt_nobody() {
    run(&World::thread(), 2, |group| {
        let all = backend(&group);
        for (ranks, why) in [(&[0, 2][..], "rank 2 is out of range"), (&[1, 1], "rank 1 is named twice")] {
            let error = all.new_group(ranks).unwrap_err();
            let words = error.to_string();
            assert!(matches!(error, Error::Misuse { .. }) && words.contains(why), "{words}");
            assert!(words.starts_with("new_group") && words.contains("tests/group.rs:"), "{words}");
        }
        all.barrier().unwrap();
    });
}

/// The others hear who is missing, and so does that one when it comes; then there is a new group again.
#[test]
fn a_member_that_does_not_come_is_named_and_the_group_works_on() {
    let others_have_failed = Barrier::new(3);
    run(&World::thread(), 3, move |group| {
        let all = backend(&group);
        let late = group.rank() == 2;
        if late {
            others_have_failed.wait();
        }
        let limit = if late { LONG } else { Duration::from_secs(1) };
        let error = all.with_timeout(limit).new_group(&[0, 1, 2]).unwrap_err();
        let Error::Timeout { missing, .. } = &error else { panic!("{error}") };
        assert_eq!(missing.iter().map(|peer| peer.rank).collect::<Vec<_>>(), [2], "{error}");
        assert!(error.to_string().contains("tests/group.rs:"), "{error}");
        if !late {
            others_have_failed.wait();
        }
        all.barrier().unwrap();
        let again = all.new_group(&[0, 1, 2]).unwrap().expect("a member");
        again.barrier().unwrap();
        all.abort("on purpose");
        assert!(matches!(all.new_group(&[0, 1, 2]), Err(Error::Poisoned { .. } | Error::Aborted { .. })));
        // A group has a life of its own.
        again.barrier().unwrap();
    });
}

/// Nothing goes over the host but what is asked for.
#[test]
fn data_stays_on_the_devices() {
    // Other tests copy at the same time, so this one is a program of its own.
    common::done_well("child_copies_nothing", common::process("child_copies_nothing", &[]));
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_copies_nothing() {
    run(&World::thread(), 2, |group| {
        let all = backend(&group);
        let mut buffer = on(&all, &[1; 1000]);
        group.barrier().unwrap();
        let before = count("copies_to_host");
        for _ in 0..3 {
            all.all_reduce(&mut buffer, ReduceOp::Sum).unwrap().wait().unwrap();
        }
        all.broadcast(&mut buffer, 0).unwrap().wait().unwrap();
        assert_eq!(count("copies_to_host"), before);
        group.barrier().unwrap();
        assert_eq!(read(&all, &buffer), [8; 1000]);
    });
}

/// A tensor of another library, on that one's stream.
#[test]
fn memory_of_another_is_used_in_the_order_of_its_stream() {
    run(&World::thread(), 2, |group| {
        let all = backend(&group);
        let compute = Stream::new(all.device()).unwrap();
        for round in 1..4 {
            let mut owner = DeviceBuffer::<i64>::zeros(&compute, 3).unwrap();
            assert!(compute.synchronize(LONG).unwrap());
            delay(&compute, Duration::from_millis(30));
            owner.copy_from_host(&compute, &[round; 3]).unwrap();
            // SAFETY: the owner lives until the host has read it.
            let mut tensor =
                unsafe { DeviceBuffer::<i64>::from_raw(&compute, owner.address(), owner.len()) }.unwrap();
            let work = all.all_reduce(&mut tensor, ReduceOp::Sum).unwrap();
            tensor.order(&compute).unwrap();
            // The owner knows nothing of that use, but its stream waits for it.
            assert_eq!(owner.to_host(&compute, LONG).unwrap(), [2 * round; 3]);
            drop(tensor);
            work.wait().unwrap();
        }
    });
}

#[test]
fn calls_return_before_the_devices_are_done_and_may_be_waited_for_in_any_order() {
    run(&World::thread(), 2, |group| {
        let all = backend(&group);
        delay(all.stream(), Duration::from_millis(200));
        let (mut first, mut second) = (on(&all, &[1]), on(&all, &[2]));
        let works = [
            all.all_reduce(&mut first, ReduceOp::Sum).unwrap(),
            all.all_reduce(&mut second, ReduceOp::Sum).unwrap(),
        ];
        assert!(works.iter().all(|work| !work.is_done()));
        // Another stream may wait for it, which the host does not notice.
        let other = Stream::new(all.device()).unwrap();
        works[1].wait_on(&other).unwrap();
        let after = other.record().unwrap();
        assert!(!after.is_over().unwrap());
        let [one, two] = works;
        two.wait().unwrap();
        assert!(after.wait(LONG).unwrap());
        assert!(one.is_done());
        one.wait().unwrap();
        assert_eq!((read(&all, &first), read(&all, &second)), (vec![2], vec![4]));
        // Nobody has to wait for an operation; buffers know that they are in use.
        let mut buffer = on(&all, &[1]);
        delay(all.stream(), Duration::from_millis(50));
        drop(all.all_reduce(&mut buffer, ReduceOp::Sum).unwrap());
        assert_eq!(read(&all, &buffer), [2]);
    });
}

/// NCCL connects ranks when it needs them. Afterwards nobody waits.
#[test]
fn only_the_first_call_of_a_kind_waits_for_the_others() {
    let (has_come, has_returned) = (AtomicBool::new(false), Barrier::new(2));
    run(&World::thread(), 2, move |group| {
        let all = backend(&group);
        let mut buffer = on(&all, &[group.rank() as i64]);
        if group.rank() == 1 {
            std::thread::sleep(Duration::from_millis(200));
            has_come.store(true, Ordering::SeqCst);
        }
        let first = all.broadcast(&mut buffer, 0).unwrap();
        assert!(has_come.load(Ordering::SeqCst), "it did not wait for rank 1");
        first.wait().unwrap();
        if group.rank() == 1 {
            has_returned.wait();
        }
        let second = all.broadcast(&mut buffer, 0).unwrap();
        if group.rank() == 0 {
            assert!(!second.is_done());
            has_returned.wait();
        }
        second.wait().unwrap();
        assert_eq!(read(&all, &buffer), [0]);
    });
}

#[test]
fn a_callers_stream_is_used_if_it_is_given() {
    run(&World::thread(), 2, |group| {
        let all = backend(&group);
        let compute = Stream::new(all.device()).unwrap();
        let on_compute = all.on_stream(&compute).unwrap();
        delay(&compute, Duration::from_millis(100));
        let mut buffer = DeviceBuffer::<i64>::zeros(&compute, 1).unwrap();
        let work = on_compute.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
        assert!(all.stream().synchronize(LONG).unwrap() && !work.is_done());
        work.wait().unwrap();
        let elsewhere = Stream::new(&device(7)).unwrap();
        assert!(matches!(all.on_stream(&elsewhere), Err(Error::Config { .. })));
        let mut elsewhere = DeviceBuffer::<i64>::zeros(&elsewhere, 1).unwrap();
        let error = all.all_reduce(&mut elsewhere, ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, Error::Misuse { .. }), "{error}");
        all.barrier().unwrap();
    });
}

/// One that only launches something, or nothing at all, would return at once.
#[test]
fn a_barrier_waits_for_all_hosts_and_all_devices() {
    const WORK: Duration = Duration::from_millis(300);
    run(&World::thread(), 3, |group| {
        let all = backend(&group);
        let begun = Instant::now();
        group.barrier().unwrap();
        if group.rank() == 1 {
            delay(all.stream(), WORK);
        }
        all.barrier().unwrap();
        assert!(begun.elapsed() >= WORK, "{:?}", begun.elapsed());
        if group.rank() == 2 {
            std::thread::sleep(WORK);
        }
        all.barrier().unwrap();
        assert!(begun.elapsed() >= 2 * WORK, "{:?}", begun.elapsed());
    });
}

type Call = fn(&NcclGroup, bool) -> (Result<Work>, u32);

/// One of three calls something else; all are told, with both lines, and NCCL is stopped.
fn disagree(call: Call) {
    let all_is_well = Barrier::new(3);
    let outcomes = run(&World::thread().timeout(LONG), 3, move |group| {
        let all = backend(&group);
        all_is_well.wait();
        let (outcome, line) = call(&all, group.rank() == 1);
        let error = outcome.and_then(Work::wait).unwrap_err();
        let later = all.barrier().unwrap_err();
        let Error::Poisoned { cause, .. } = later else { panic!("not poisoned: {later}") };
        // The group that it was made from lives on.
        group.barrier().unwrap();
        (line, error, *cause)
    });
    let cause = &outcomes[0].2;
    let Cause::Mismatch { left, right, .. } = cause else { panic!("{cause}") };
    for (peer, signature) in [left, right] {
        assert_eq!(signature.site.line, outcomes[peer.rank].0, "{cause}");
    }
    for (_, error, theirs) in &outcomes {
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        assert_eq!(theirs, cause);
    }
}

#[test]
fn ranks_that_call_different_things_are_told_and_do_not_hang() {
    disagree(|all, odd| {
        let mut buffer = on(all, &[1]);
        if odd {
            (all.broadcast(&mut buffer, 0), line!())
        } else {
            (all.all_reduce(&mut buffer, ReduceOp::Sum), line!())
        }
    });
    disagree(|all, odd| {
        let mut buffer = on(all, &vec![1; if odd { 3 } else { 4 }]);
        (all.all_reduce(&mut buffer, ReduceOp::Sum), line!())
    });
}

/// NCCL would give wrong numbers without a word.
#[test]
fn ranks_that_mean_different_numbers_are_told() {
    disagree(|all, odd| {
        let mut floats = DeviceBuffer::<f64>::zeros(all.stream(), 1).unwrap();
        let mut integers = on(all, &[1]);
        if odd {
            (all.all_reduce(&mut floats, ReduceOp::Sum), line!())
        } else {
            (all.all_reduce(&mut integers, ReduceOp::Sum), line!())
        }
    });
    disagree(|all, odd| {
        let mut buffer = on(all, &[1]);
        (all.all_reduce(&mut buffer, if odd { ReduceOp::Max } else { ReduceOp::Sum }), line!())
    });
    disagree(|all, odd| {
        let mut buffer = DeviceBuffer::<f64>::zeros(all.stream(), 1).unwrap();
        let op = if odd { ReduceOp::PreMulSum(0.0) } else { ReduceOp::Sum };
        (all.all_reduce(&mut buffer, op), line!())
    });
    disagree(|all, odd| {
        let (mut first, mut second) = (on(all, &[1]), on(all, &[1]));
        let mut batch = all.batch();
        batch.all_reduce(&mut first, ReduceOp::Sum).unwrap();
        batch.all_reduce(&mut second, if odd { ReduceOp::Max } else { ReduceOp::Sum }).unwrap();
        (all.launch(&batch), line!())
    });
}

#[test]
fn who_does_not_come_is_named_by_all() {
    const PATIENCE: Duration = Duration::from_secs(3);
    let over = Barrier::new(3);
    run(&World::thread(), 3, move |group| {
        let all = backend(&group).with_timeout(PATIENCE);
        let mut buffer = on(&all, &[1]);
        let outcome = match group.rank() {
            1 => Ok(()),
            _ => all.all_reduce(&mut buffer, ReduceOp::Sum).and_then(Work::wait),
        };
        over.wait();
        let error = outcome.and_then(|()| all.barrier()).unwrap_err();
        let Error::Timeout { missing, .. } = &error else { panic!("{error}") };
        assert_eq!(missing.iter().map(|peer| peer.rank).collect::<Vec<_>>(), [1], "{error}");
        assert!(error.to_string().contains("all_reduce") || group.rank() == 1, "{error}");
    });
}

/// Of three ranks, one waits for a message that the last does not send: the first they would connect for, and one for which they are connected.
#[test]
fn a_message_that_does_not_come_is_no_fault_of_third_ranks() {
    const PATIENCE: Duration = Duration::from_secs(1);
    for are_connected in [false, true] {
        let over = Barrier::new(3);
        run(&World::thread(), 3, move |group| {
            let all = backend(&group);
            let mut buffer = on(&all, &[1]);
            match group.rank() {
                1 if are_connected => all.send(&buffer, 0).and_then(Work::wait).unwrap(),
                0 if are_connected => all.recv(&mut buffer, 1).and_then(Work::wait).unwrap(),
                _ => {}
            }
            let outcome = match group.rank() {
                0 => all.with_timeout(PATIENCE).recv(&mut buffer, 1).and_then(Work::wait),
                _ => Ok(()),
            };
            over.wait();
            let error = outcome.and_then(|()| all.barrier()).unwrap_err();
            let Error::Timeout { missing, .. } = &error else { panic!("{error}") };
            assert_eq!(missing.iter().map(|peer| peer.rank).collect::<Vec<_>>(), [1], "{error}");
            let said = error.to_string();
            assert!(said.contains(" in recv at crates/nccl/tests/group.rs:"), "{error}");
            assert!(said.contains(", but no message of rank 1 ("), "{error}");
        });
    }
}

#[test]
fn an_abort_ends_what_is_on_its_way_on_all_ranks() {
    let is_on_its_way = Barrier::new(2);
    run(&World::thread(), 2, move |group| {
        let all = backend(&group);
        let mut buffer = on(&all, &[1]);
        let work = (group.rank() == 0).then(|| all.all_reduce(&mut buffer, ReduceOp::Sum).unwrap());
        is_on_its_way.wait();
        if group.rank() == 1 {
            all.abort("enough");
        }
        let error = work.map_or_else(|| all.barrier(), Work::wait).unwrap_err();
        assert!(matches!(error, Error::Aborted { .. }) && error.to_string().ends_with("enough"), "{error}");
    });
}

/// Fails the same way on all ranks, and leaves the group as it was.
fn refused(devices: [Result<usize>; 2], libraries: [Result<Nccl>; 2]) -> [Error; 2] {
    let what = std::sync::Mutex::new([devices, libraries.map(|nccl| nccl.map(|_| 0))]);
    let errors = run(&World::thread(), 2, move |group| {
        let (rank, mut what) = (group.rank(), what.lock().unwrap());
        let mut take = |i: usize| std::mem::replace(&mut what[i][rank], Ok(0));
        let (ordinal, library) = (take(0), take(1));
        drop(what);
        let error = NcclGroup::over(&group, library.map(|_| nccl()), ordinal.map(device)).unwrap_err();
        group.barrier().unwrap();
        error
    });
    errors.try_into().unwrap()
}

#[test]
fn two_ranks_with_one_device_are_named_before_nccl_is_asked() {
    let errors = refused([Ok(3), Ok(3)], [Ok(nccl()), Ok(nccl())]);
    assert_eq!(errors[0].to_string(), errors[1].to_string());
    let said = errors[0].to_string();
    assert!(said.contains("have one device, device 3 (double of a GPU"), "{said}");
}

#[test]
fn a_rank_without_nccl_or_without_a_device_is_named_by_the_others() {
    let without = || Nccl::open("/nowhere/libnccl.so.2");
    let [has, has_not] = refused([Ok(0), Ok(1)], [Ok(nccl()), without()]);
    assert_eq!(has_not.to_string(), has.to_string());
    let said = has.to_string();
    assert!(said.starts_with("NCCL on rank 1 (") && said.contains("/nowhere/libnccl.so.2"), "{said}");

    let none = Error::config("there is no device 9");
    let [has, has_not] = refused([Ok(0), Err(none.clone())], [Ok(nccl()), Ok(nccl())]);
    assert_eq!(has_not.to_string(), none.to_string());
    assert!(has.to_string().contains("there is no device 9"), "{has}");
}

#[test]
fn a_backend_says_what_it_is() {
    run(&World::thread(), 1, |group| {
        let said = backend(&group).describe();
        assert!(said.starts_with("nccl: 1 rank, here on device 0 (double of a GPU"), "{said}");
        assert!(said.contains("NCCL 2.28.99 (") && said.ends_with("libphalanx_nccl_double.so)"), "{said}");
        assert!(double().exists());
    });
}
