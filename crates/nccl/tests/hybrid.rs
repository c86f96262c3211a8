//! Groups of host memory and device memory on the double: which way data goes, in what order, and that both halves fail together.

#![cfg(target_os = "linux")]

mod common;

use common::{LONG, count, delay, device, nccl, run};
use phalanx_core::{Cause, Error, ReduceOp, Result};
use phalanx_group::{BlockExchange, Buffers, ProcessGroup, Request};
use phalanx_nccl::{DeviceBuffer, Fallback, HybridGroup, Nccl, Stream, Work};
use phalanx_testkit::World;
use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const BOTH_WAYS: [Fallback; 2] = [Fallback::Never, Fallback::Always];

fn hybrid(group: &ProcessGroup, fallback: Fallback) -> HybridGroup {
    HybridGroup::over(group, Ok(nccl()), Ok(device(group.rank())), fallback).unwrap()
}

fn on<T: phalanx_nccl::DeviceElement>(all: &HybridGroup, elements: &[T]) -> DeviceBuffer<T> {
    DeviceBuffer::from_host(all.stream(), elements).unwrap()
}

fn read<T: phalanx_nccl::DeviceElement>(all: &HybridGroup, buffer: &DeviceBuffer<T>) -> Vec<T> {
    buffer.to_host(all.stream(), LONG).unwrap()
}

fn sum(all: &HybridGroup) -> Result<i64> {
    let mut buffer = on(all, &[all.rank() as i64 + 1]);
    all.all_reduce(&mut buffer, ReduceOp::Sum).and_then(Work::wait)?;
    Ok(read(all, &buffer)[0])
}

/// Numbers whose sum depends on the order in which they are added.
fn rough(rank: usize, len: usize) -> Vec<f32> {
    let number = |i: usize| ((i * 7919 + rank * 104_729) % 10_007) as f32 / 97.0;
    (0..len).map(number).collect()
}

/// Both are counted for the whole process, so each is one.
#[test]
fn data_comes_to_the_host_only_where_that_was_asked_for() {
    common::done_well("child_counts_copies", common::process("child_counts_copies", &[]));
}

#[test]
#[ignore = "run by another test, in a process of its own"]
fn child_counts_copies() {
    run(&World::thread(), 2, |group| {
        for fallback in BOTH_WAYS {
            let part = group.split(Some(0), 0).unwrap().unwrap();
            let all = hybrid(&part, fallback);
            let (mut buffer, mut words) = (on(&all, &[1i64; 1000]), [1i64; 1000]);
            part.barrier().unwrap();
            let before = (count("copies_to_host"), count("launches"));
            part.barrier().unwrap();
            all.all_reduce(&mut words[..], ReduceOp::Sum).and_then(Work::wait).unwrap();
            part.barrier().unwrap();
            assert_eq!((count("copies_to_host"), count("launches")), before);
            part.barrier().unwrap();
            for _ in 0..3 {
                all.all_reduce(&mut buffer, ReduceOp::Sum).and_then(Work::wait).unwrap();
            }
            all.broadcast(&mut buffer, 0).and_then(Work::wait).unwrap();
            part.barrier().unwrap();
            let copies = count("copies_to_host") - before.0;
            // One for each sum and rank, and one at the root.
            assert_eq!(copies, if fallback == Fallback::Never { 0 } else { 7 });
            assert_eq!(count("launches") > before.1, fallback == Fallback::Never);
            part.barrier().unwrap();
            assert_eq!(read(&all, &buffer), [8; 1000]);
        }
    });
}

#[test]
fn an_all_to_all_in_place_is_not_for_devices() {
    run(&World::thread(), 2, |group| {
        for fallback in BOTH_WAYS {
            let all = hybrid(&group, fallback);
            let mut buffer = on(&all, &[1i64, 2]);
            let blocks = BlockExchange::Even { count: 1 };
            let request = Request::AllToAll { buffers: Buffers::InPlace(&mut buffer), blocks };
            let error = all.batch().request(request).unwrap_err().to_string();
            assert!(error.contains("on a device it goes from one buffer to another"), "{error}");
            assert_eq!(sum(&all).unwrap(), 3, "the group works on");
        }
    });
}

/// The library is on rank 0 alone.
fn with_half_of_nccl(group: &ProcessGroup, fallback: Fallback) -> Result<HybridGroup> {
    let library = if group.rank() == 0 { Ok(nccl()) } else { Nccl::open("/nowhere/libnccl.so.2") };
    HybridGroup::over(group, library, Ok(device(group.rank())), fallback)
}

#[test]
fn without_nccl_all_ranks_hear_what_would_help() {
    let said = run(&World::thread(), 2, |group| {
        let error = with_half_of_nccl(&group, Fallback::Never).unwrap_err();
        group.barrier().unwrap();
        error.to_string()
    });
    for said in said {
        assert!(said.starts_with("NCCL on rank 1 (") && said.contains("/nowhere/libnccl.so.2: "), "{said}");
        assert!(said.ends_with("over the host: PHALANX_ENABLE_GPU_FALLBACK=1 on all ranks)"), "{said}");
    }
}

#[test]
fn one_rank_without_nccl_takes_all_over_the_host_if_they_may() {
    run(&World::thread(), 2, |group| {
        let all = with_half_of_nccl(&group, Fallback::WithoutNccl).unwrap();
        assert!(all.nccl().is_none() && all.describe().contains("; over that from device "), "{all:?}");
        assert_eq!(sum(&all).unwrap(), 3);
        all.finalize().unwrap();
    });
}

#[test]
fn ranks_that_may_not_do_the_same_are_named() {
    run(&World::thread(), 2, |group| {
        let fallback = BOTH_WAYS[group.rank()];
        let error = HybridGroup::over(&group, Ok(nccl()), Ok(device(group.rank())), fallback).unwrap_err();
        let said = error.to_string();
        assert!(said.contains("has no fallback, but rank 1 ("), "{said}");
        group.barrier().unwrap();
    });
}

#[test]
fn over_the_host_two_ranks_may_have_one_device() {
    run(&World::thread(), 2, |group| {
        let all = HybridGroup::over(&group, Ok(nccl()), Ok(device(3)), Fallback::Always).unwrap();
        assert_eq!(sum(&all).unwrap(), 3);
    });
}

/// Several chunks and a rest, over every transport: to the bit what the group gives on the host for the same chunks.
#[test]
fn over_the_host_come_the_bits_of_the_host() {
    const CHUNK: usize = (4 << 20) / size_of::<f32>();
    const LEN: usize = 4 * CHUNK + 1001;
    for world in [World::thread(), World::shm(), World::tcp()] {
        run(&world, 2, |group| {
            let all = hybrid(&group, Fallback::Always);
            let mut expected = rough(group.rank(), LEN);
            let mut buffer = on(&all, &expected);
            all.all_reduce(&mut buffer, ReduceOp::Avg).and_then(Work::wait).unwrap();
            expected.chunks_mut(CHUNK).for_each(|chunk| group.all_reduce(chunk, ReduceOp::Avg).unwrap());
            assert!(read(&all, &buffer).iter().map(|x| x.to_bits()).eq(expected.iter().map(|x| x.to_bits())));
        });
    }
}

/// Blocks are cut into chunks of which each is a piece of every block.
#[test]
fn blocks_stay_blocks_however_they_are_cut() {
    const LEN: usize = (3 << 19) + 5;
    run(&World::thread(), 3, |group| {
        let (all, rank) = (hybrid(&group, Fallback::Always), group.rank());
        let of = |from: usize, to: usize| {
            (0..LEN).map(move |i| (i * 31 + from * 7 + to * 3) as u8).collect::<Vec<_>>()
        };
        let to_all = on(&all, &[of(rank, 0), of(rank, 1), of(rank, 2)].concat());
        let mut from_all = on(&all, &vec![0u8; 3 * LEN]);
        all.all_to_all(&to_all, &mut from_all).and_then(Work::wait).unwrap();
        assert!(read(&all, &from_all) == [of(0, rank), of(1, rank), of(2, rank)].concat());
        let (mine, mut gathered) = (on(&all, &of(rank, 0)), on(&all, &vec![0u8; 3 * LEN]));
        all.all_gather(&mine, &mut gathered).and_then(Work::wait).unwrap();
        assert!(read(&all, &gathered) == [of(0, 0), of(1, 0), of(2, 0)].concat());
        let mut part = on(&all, &vec![0u8; LEN]);
        all.reduce_scatter(&to_all, &mut part, ReduceOp::BitXor).and_then(Work::wait).unwrap();
        let expected: Vec<u8> =
            (0..LEN).map(|i| (0..3).fold(0, |x, r| x ^ (i * 31 + r * 7 + rank * 3) as u8)).collect();
        assert!(read(&all, &part) == expected);
        let mut dealt = on(&all, &vec![0u8; LEN]);
        all.scatter((rank == 1).then_some(&to_all), &mut dealt, 1).and_then(Work::wait).unwrap();
        assert!(read(&all, &dealt) == of(1, rank));
        all.gather(&mine, (rank == 2).then_some(&mut gathered), 2).and_then(Work::wait).unwrap();
        assert!(read(&all, &gathered) == [of(0, 0), of(1, 0), of(2, 0)].concat());
    });
}

/// Both halves, by the way of the group that it is made from, while the other ranks do something else.
#[test]
fn a_group_is_made_by_its_members_alone() {
    let both_have_summed = Barrier::new(2);
    run(&World::thread(), 3, move |group| {
        for fallback in BOTH_WAYS {
            let (all, rank) = (hybrid(&group, fallback), group.rank());
            if rank == 1 {
                continue;
            }
            let pair = all.new_group(&[2, 0]).unwrap().expect("a member");
            assert_eq!((pair.rank(), pair.world_size()), (rank / 2, 2));
            assert_eq!((pair.nccl().is_some(), pair.device().ordinal()), (all.nccl().is_some(), rank));
            assert_eq!(sum(&pair).unwrap(), 3);
            let mut words = [rank as i64];
            pair.all_reduce(&mut words[..], ReduceOp::Sum).and_then(Work::wait).unwrap();
            assert_eq!(words, [2]);
            both_have_summed.wait();
            // Its halves fail together, and alone.
            pair.abort("on purpose");
            assert!(pair.host().barrier().is_err() && sum(&pair).is_err());
            assert!(all.host().failure().is_none());
        }
        group.barrier().unwrap();
    });
}

/// Whichever half has failed, and whether the other has heard of it or not.
#[test]
fn a_group_that_has_failed_makes_none() {
    let both_are_there = Barrier::new(2);
    run(&World::thread(), 2, move |group| {
        for fallback in BOTH_WAYS {
            let part = group.split(Some(0), 0).unwrap().unwrap();
            let all = hybrid(&part, fallback);
            // An abort would end the making of the other rank's group too.
            both_are_there.wait();
            if all.rank() == 0 {
                all.abort("on purpose");
            } else {
                sum(&all).unwrap_err();
            }
            let error = all.new_group(&[0, 1]).unwrap_err();
            let Error::Poisoned { cause, .. } = &error else { panic!("{error}") };
            assert!(matches!(&**cause, Cause::Aborted { peer, .. } if peer.rank == 0), "{cause}");
        }
        group.barrier().unwrap();
    });
}

/// Each would wait for the other if messages of a batch did not cross; these are longer than any pipe.
#[test]
fn messages_of_several_chunks_cross_over_the_host() {
    const LEN: usize = (9 << 20) + 3;
    run(&World::shm(), 3, |group| {
        let (all, rank) = (hybrid(&group, Fallback::Always), group.rank());
        let of = |from: usize, to: usize| {
            (0..LEN).map(move |i| (i * 13 + from * 7 + to) as u8).collect::<Vec<_>>()
        };
        let peers = [(rank + 1) % 3, (rank + 2) % 3];
        let sent = peers.map(|peer| on(&all, &of(rank, peer)));
        let mut received = peers.map(|_| on(&all, &vec![0u8; LEN]));
        let mut batch = all.batch();
        for ((peer, sent), received) in peers.iter().zip(&sent).zip(&mut received) {
            batch.send(sent, *peer).unwrap();
            batch.recv(received, *peer).unwrap();
        }
        all.launch(&batch).and_then(Work::wait).unwrap();
        for (peer, received) in peers.iter().zip(&received) {
            assert!(read(&all, received) == of(*peer, rank), "from {peer}");
        }
    });
}

/// The data is not there yet when the sum begins, and the next to use it, on another stream, comes when the sum is there.
#[test]
fn over_the_host_goes_what_the_callers_stream_has_done() {
    run(&World::thread(), 2, |group| {
        let all = hybrid(&group, Fallback::Always);
        let compute = Stream::new(all.device()).unwrap();
        let on_compute = all.on_stream(&compute).unwrap();
        for round in 1..4 {
            let mut owner = DeviceBuffer::<i64>::zeros(&compute, 3).unwrap();
            delay(&compute, Duration::from_millis(30));
            owner.copy_from_host(&compute, &[round; 3]).unwrap();
            // A tensor of another library: only its stream knows that it is being computed.
            // SAFETY: the owner lives until the host has read it.
            let mut tensor =
                unsafe { DeviceBuffer::<i64>::from_raw(&compute, owner.address(), owner.len()) }.unwrap();
            on_compute.all_reduce(&mut tensor, ReduceOp::Sum).and_then(Work::wait).unwrap();
            assert_eq!(tensor.to_host(all.stream(), LONG).unwrap(), [2 * round; 3]);
            tensor.order(&compute).unwrap();
            assert_eq!(owner.to_host(&compute, LONG).unwrap(), [2 * round; 3]);
        }
        let elsewhere = Stream::new(&device(7)).unwrap();
        assert!(matches!(all.on_stream(&elsewhere), Err(Error::Config { .. })));
        let mut elsewhere = DeviceBuffer::<i64>::zeros(&elsewhere, 1).unwrap();
        let error = all.all_reduce(&mut elsewhere, ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, Error::Misuse { .. }), "{error}");
        all.barrier().unwrap();
    });
}

#[test]
fn a_barrier_waits_for_all_hosts_and_all_devices() {
    const WORK: Duration = Duration::from_millis(200);
    for fallback in BOTH_WAYS {
        run(&World::thread(), 3, move |group| {
            let all = hybrid(&group, fallback);
            group.barrier().unwrap();
            let begun = Instant::now();
            group.barrier().unwrap();
            if group.rank() == 1 {
                delay(all.stream(), WORK);
            }
            all.barrier().unwrap();
            assert!(begun.elapsed() >= WORK, "{:?}", begun.elapsed());
            delay(all.stream(), WORK);
            let begun = Instant::now();
            all.synchronize().unwrap();
            assert!(begun.elapsed() >= WORK / 2, "{:?}", begun.elapsed());
        });
    }
}

/// The first chunks are of one length, so only the lengths of the whole calls tell them apart.
#[test]
fn calls_of_which_chunks_are_alike_are_told_apart() {
    const MIB: usize = 1 << 20;
    run(&World::thread().timeout(LONG), 2, |group| {
        let all = hybrid(&group, Fallback::Always);
        let mut buffer = on(&all, &vec![1u8; [4 * MIB, 5 * MIB][group.rank()]]);
        let error = all.all_reduce(&mut buffer, ReduceOp::Max).unwrap_err();
        let Error::Mismatch { left, right, .. } = &error else { panic!("{error}") };
        assert_eq!((left.1.count, right.1.count), (4 * MIB as u64, 5 * MIB as u64));
        assert!(matches!(all.host().barrier(), Err(Error::Mismatch { .. } | Error::Poisoned { .. })));
    });
}

/// The first chunk would do for the one who expects no more.
#[test]
fn messages_of_which_chunks_are_alike_are_told_apart() {
    const MIB: usize = 1 << 20;
    run(&World::thread(), 2, |group| {
        let all = hybrid(&group, Fallback::Always);
        let mut buffer = on(&all, &vec![1u8; [5 * MIB, 4 * MIB][group.rank()]]);
        let error = match group.rank() {
            0 => all.send(&buffer, 1).and_then(|_| all.barrier()),
            _ => all.recv(&mut buffer, 0).and_then(Work::wait),
        };
        let error = error.unwrap_err();
        assert!(matches!(error, Error::Protocol { ref peer, .. } if peer.rank == 0), "{error}");
        assert!(
            error.to_string().ends_with("it sends 5242880 elements, where 4194304 are expected here"),
            "{error}"
        );
    });
}

/// What fails one half, on which rank, and what the other says then.
fn fails(fallback: Fallback, fail: fn(&HybridGroup) -> Error, is_it: fn(&Cause) -> bool) {
    let all_is_well = Barrier::new(3);
    run(&World::thread().timeout(LONG), 3, move |group| {
        let all = hybrid(&group, fallback);
        assert_eq!(sum(&all).unwrap(), 6);
        all_is_well.wait();
        let first = fail(&all);
        assert!(!matches!(first, Error::Misuse { .. } | Error::Internal { .. }), "{first}");
        // Each half says why at its first call, and refuses the others.
        for call in [|all: &HybridGroup| all.host().barrier(), |all: &HybridGroup| sum(all).map(drop)] {
            let errors = [call(&all), call(&all)].map(Result::unwrap_err);
            assert!(!matches!(errors[0], Error::Misuse { .. }), "{}", errors[0]);
            let Error::Poisoned { cause, .. } = &errors[1] else { panic!("not poisoned: {}", errors[1]) };
            assert!(is_it(cause), "{cause}");
        }
        assert!(matches!(all.synchronize(), Err(Error::Poisoned { .. })));
        assert!(matches!(all.barrier(), Err(Error::Poisoned { .. })));
    });
}

#[test]
fn when_the_devices_fail_so_do_the_hosts() {
    for fallback in BOTH_WAYS {
        let mismatch = |all: &HybridGroup| {
            let mut buffer = on(all, &vec![1i64; if all.rank() == 1 { 3 } else { 4 }]);
            let first = all.all_reduce(&mut buffer, ReduceOp::Sum).and_then(Work::wait).unwrap_err();
            assert!(matches!(sum(all), Err(Error::Poisoned { .. })));
            first
        };
        fails(fallback, mismatch, |cause| matches!(cause, Cause::Mismatch { .. }));
    }
}

#[test]
fn when_the_hosts_fail_so_do_the_devices() {
    for fallback in BOTH_WAYS {
        let mismatch = |all: &HybridGroup| {
            let mut words = vec![1i64; if all.rank() == 1 { 3 } else { 4 }];
            all.all_reduce(&mut words[..], ReduceOp::Sum).and_then(Work::wait).unwrap_err()
        };
        fails(fallback, mismatch, |cause| matches!(cause, Cause::Mismatch { .. }));
    }
}

/// Rank 2 hears on the host of what nobody does on its device.
#[test]
fn what_is_on_its_way_on_a_device_ends_when_the_hosts_fail() {
    for fallback in BOTH_WAYS {
        let all_is_well = Barrier::new(3);
        run(&World::thread().timeout(LONG), 3, move |group| {
            let all = hybrid(&group, fallback);
            all_is_well.wait();
            let outcome = match group.rank() {
                2 => {
                    all.host().abort("enough");
                    sum(&all)
                }
                _ => sum(&all),
            };
            let error = outcome.unwrap_err();
            assert!(
                matches!(error, Error::Aborted { .. }) && error.to_string().ends_with("enough"),
                "{error}"
            );
        });
    }
}

/// Memory of the host here and of a device there is not one call, whatever its length and type.
#[test]
fn ranks_that_call_from_different_places_are_told_in_time() {
    for fallback in BOTH_WAYS {
        run(&World::thread(), 2, move |group| {
            let all = hybrid(&group, fallback).with_timeout(Duration::from_secs(1));
            let outcome = match group.rank() {
                0 => all.all_reduce(&mut [1i64][..], ReduceOp::Sum).map(|_| 0),
                _ => sum(&all),
            };
            let error = outcome.unwrap_err();
            let Error::Timeout { .. } = &error else { panic!("{error}") };
        });
    }
}

#[test]
fn over_the_host_who_does_not_come_is_named_by_all() {
    let over = Barrier::new(3);
    run(&World::thread(), 3, move |group| {
        let all = hybrid(&group, Fallback::Always).with_timeout(Duration::from_secs(1));
        let outcome = if group.rank() == 1 { Ok(0) } else { sum(&all) };
        over.wait();
        let error = outcome.and_then(|_| all.barrier()).unwrap_err();
        let Error::Timeout { missing, .. } = &error else { panic!("{error}") };
        assert_eq!(missing.iter().map(|peer| peer.rank).collect::<Vec<_>>(), [1], "{error}");
    });
}

/// The device of rank 1 does not come to it in time; its memory stays until it has.
#[test]
fn over_the_host_a_device_that_is_late_is_told_to_all() {
    const WORK: Duration = Duration::from_secs(2);
    run(&World::thread(), 2, |group| {
        let all = hybrid(&group, Fallback::Always).with_timeout(Duration::from_secs(1));
        if group.rank() == 1 {
            delay(all.stream(), WORK);
        }
        let mut buffer = on(&all, &[1i64; 100]);
        let begun = Instant::now();
        let error = all.all_reduce(&mut buffer, ReduceOp::Sum).unwrap_err();
        let Error::Timeout { missing, .. } = &error else { panic!("{error}") };
        assert_eq!(missing.iter().map(|peer| peer.rank).collect::<Vec<_>>(), [1], "{error}");
        assert!(error.to_string().contains("all_reduce"), "{error}");
        drop(buffer);
        let behind = all.stream().synchronize(LONG).unwrap();
        assert!(behind && (group.rank() == 0 || begun.elapsed() >= WORK / 2));
    });
}

/// Threads may share the group, if they agree on the order: here by which of them holds it.
#[test]
fn messages_go_beside_collectives() {
    run(&World::shm(), 2, |group| {
        let all = hybrid(&group, Fallback::Always);
        let (say, hear) = channel();
        std::thread::scope(|threads| {
            let other = all.clone();
            threads.spawn(move || {
                let mut buffer = on(&other, &[0i64]);
                if other.rank() == 0 {
                    other.recv(&mut buffer, 1).and_then(Work::wait).unwrap();
                } else {
                    hear.recv().unwrap();
                    let buffer = on(&other, &[5i64]);
                    other.send(&buffer, 0).and_then(Work::wait).unwrap();
                    return;
                }
                assert_eq!(read(&other, &buffer), [5]);
            });
            assert_eq!(sum(&all).unwrap(), 3);
            let _ = say.send(());
        });
    });
}
