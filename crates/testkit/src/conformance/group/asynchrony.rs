//! Operations in flight: several at once, waited for in any order, beside blocking ones and on several threads.

use super::{assert_bits, inputs};
use crate::World;
use crate::oracle::{self, Random};
use phalanx_core::ReduceOp;
use phalanx_group::Work;
use std::sync::Barrier;

/// Each asynchronous operation computes what its blocking one does.
pub fn asynchronous_operations_compute_the_same(world: &World) {
    for world_size in [1, 2, 3, 8] {
        world.run(world_size, move |group| {
            let rank = group.rank();
            for len in [0, 1, world_size, 131] {
                let total = len * world_size;
                let inputs =
                    inputs(&group, total, |random: &mut Random, len| random.exact::<f32>(len, ReduceOp::Sum));
                let mine = || inputs[rank].clone();
                let mut registered = group.alloc::<f32>(total).unwrap();
                registered.copy_from_slice(&mine());
                let all_reduce = group.all_reduce_async(mine(), ReduceOp::Sum).unwrap();
                let registered = group.all_reduce_async(registered, ReduceOp::Sum).unwrap();
                let broadcast = group.broadcast_async(mine(), world_size - 1).unwrap();
                let all_gather = group.all_gather_async(&mine()).unwrap();
                let reduce_scatter = group.reduce_scatter_async(mine(), ReduceOp::Max).unwrap();
                let scan = group.scan_async(mine(), ReduceOp::Avg).unwrap();
                group.barrier_async().unwrap().wait().unwrap();
                assert_bits(
                    &all_reduce.wait().unwrap(),
                    &oracle::reduce(&inputs, ReduceOp::Sum),
                    "all_reduce_async",
                );
                assert_bits(
                    &registered.wait().unwrap(),
                    &oracle::reduce(&inputs, ReduceOp::Sum),
                    "all_reduce_async of a registered buffer",
                );
                assert_bits(&broadcast.wait().unwrap(), &inputs[world_size - 1], "broadcast_async");
                assert_bits(&all_gather.wait().unwrap(), &oracle::gather(&inputs), "all_gather_async");
                let blocks = oracle::blocks(&oracle::reduce(&inputs, ReduceOp::Max), &vec![len; world_size]);
                assert_bits(&reduce_scatter.wait().unwrap(), &blocks[rank], "reduce_scatter_async");
                let before = oracle::reduce(&inputs[..=rank], ReduceOp::Avg);
                assert_bits(&scan.wait().unwrap(), &before, "scan_async");
                // A rank may wait at once where others do not.
                let mut buffer = mine();
                match rank % 2 {
                    0 => group.scan(&mut buffer, ReduceOp::Avg).unwrap(),
                    _ => buffer = group.scan_async(buffer, ReduceOp::Avg).and_then(Work::wait).unwrap(),
                }
                assert_bits(&buffer, &before, "scan, here and there begun");
            }
        });
    }
}

/// Asynchronous operations on blocks, even and uneven, give what the blocking ones give. All are in flight together.
pub fn asynchronous_blocks_are_the_same(world: &World) {
    for world_size in [1, 2, 3, 5] {
        world.run(world_size, move |group| {
            let (rank, root) = (group.rank(), world_size / 2);
            let is_root = rank == root;
            // Uneven, and nothing from some.
            let counts: Vec<usize> = (0..world_size).map(|r| (r % 3) * 700).collect();
            let sum: usize = counts.iter().sum();
            let values = |len: usize| -> Vec<i32> { (0..len).map(|i| (i + 1000 * rank) as i32).collect() };
            let whole = values(world_size * 50);
            let uneven: Vec<usize> = (0..world_size).map(|r| (rank + 2 * r) % 4).collect();
            let from: Vec<usize> = (0..world_size).map(|r| (r + 2 * rank) % 4).collect();
            let (sent, received) = (uneven.iter().sum(), from.iter().sum());

            let reduce = group.reduce_async(values(33), ReduceOp::Sum, root).unwrap();
            let gather = group.gather_async(values(50), root).unwrap();
            let gather_v = group.gather_v_async(values(counts[rank]), &counts, root).unwrap();
            let scatter = group.scatter_async(is_root.then(|| whole.clone()), 50, root).unwrap();
            let scatter_v = group.scatter_v_async(is_root.then(|| values(sum)), &counts, root).unwrap();
            let all_to_all = group.all_to_all_async(whole.clone()).unwrap();
            let all_to_all_v = group.all_to_all_v_async(values(sent), &uneven, &from).unwrap();
            let all_gather_v = group.all_gather_v_async(values(counts[rank]), &counts).unwrap();
            let reduce_scatter_v = group.reduce_scatter_v_async(values(sum), &counts, ReduceOp::Max).unwrap();

            let mut expected = values(33);
            group.reduce(&mut expected, ReduceOp::Sum, root).unwrap();
            let reduced = reduce.wait().unwrap();
            assert!(!is_root || reduced == expected, "reduce_async");
            let mut expected = is_root.then(|| vec![0; world_size * 50]);
            group.gather(&values(50), expected.as_deref_mut(), root).unwrap();
            assert_eq!(gather.wait().unwrap(), expected, "gather_async");
            let mut expected = is_root.then(|| vec![0; sum]);
            group.gather_v(&values(counts[rank]), expected.as_deref_mut(), &counts, root).unwrap();
            assert_eq!(gather_v.wait().unwrap(), expected, "gather_v_async");
            let mut expected = vec![0; 50];
            group.scatter(is_root.then_some(&whole[..]), &mut expected, root).unwrap();
            assert_eq!(scatter.wait().unwrap(), expected, "scatter_async");
            let mut expected = vec![0; counts[rank]];
            group.scatter_v(is_root.then(|| values(sum)).as_deref(), &mut expected, &counts, root).unwrap();
            assert_eq!(scatter_v.wait().unwrap(), expected, "scatter_v_async");
            let mut expected = vec![0; whole.len()];
            group.all_to_all(&whole, &mut expected).unwrap();
            assert_eq!(all_to_all.wait().unwrap(), expected, "all_to_all_async");
            let mut expected = vec![0; received];
            group.all_to_all_v(&values(sent), &uneven, &mut expected, &from).unwrap();
            assert_eq!(all_to_all_v.wait().unwrap(), expected, "all_to_all_v_async");
            let mut expected = vec![0; sum];
            group.all_gather_v(&values(counts[rank]), &mut expected, &counts).unwrap();
            assert_eq!(all_gather_v.wait().unwrap(), expected, "all_gather_v_async");
            let mut expected = vec![0; counts[rank]];
            group.reduce_scatter_v(&values(sum), &mut expected, &counts, ReduceOp::Max).unwrap();
            assert_eq!(reduce_scatter_v.wait().unwrap(), expected, "reduce_scatter_v_async");
        });
    }
}

/// Twenty in flight, of mixed lengths, waited for in reverse; some are never waited for.
pub fn operations_in_flight_may_be_waited_for_in_any_order(world: &World) {
    world.run(4, |group| {
        let begin = |i: u64| group.all_reduce_async(vec![i; 1 << (i % 17)], ReduceOp::Sum).unwrap();
        for _ in 0..3 {
            let works: Vec<(u64, Work<Vec<u64>>)> = (0..20).map(|i| (i, begin(i))).collect();
            for (i, work) in works.into_iter().rev() {
                if i % 5 == 3 {
                    drop(work); // it runs on, and the others with it
                } else {
                    assert_eq!(work.wait().unwrap(), vec![4 * i; 1 << (i % 17)]);
                }
            }
        }
    });
}

/// Blocking calls take their turn behind those in flight, and results may be taken on another thread.
pub fn blocking_calls_take_their_turn(world: &World) {
    world.run(3, |group| {
        for i in 0..40u32 {
            let first = group.all_reduce_async(vec![i; 5000], ReduceOp::Sum).unwrap();
            let mut blocking = [i + 1];
            group.all_reduce(&mut blocking, ReduceOp::Sum).unwrap();
            assert_eq!(blocking, [3 * (i + 1)]);
            let second = group.broadcast_async(vec![group.rank() as u32], 2).unwrap();
            group.barrier().unwrap();
            let taken = std::thread::spawn(move || (first.wait(), second.wait()));
            let (first, second) = taken.join().expect("waiting does not panic");
            assert_eq!((first.unwrap(), second.unwrap()), (vec![3 * i; 5000], vec![2]));
        }
    });
}

/// `is_done` is false while a rank is missing, and becomes true without anybody waiting.
pub fn is_done_tells_when_there_is_nothing_to_wait_for(world: &World) {
    let looked = Barrier::new(2);
    world.run(2, move |group| {
        if group.rank() == 0 {
            let work = group.all_reduce_async(vec![1u8], ReduceOp::Sum).unwrap();
            assert!(!work.is_done());
            looked.wait();
            while !work.is_done() {
                std::thread::yield_now();
            }
            assert_eq!(work.wait().unwrap(), [2]);
        } else {
            looked.wait();
            group.all_reduce(&mut [1u8], ReduceOp::Sum).unwrap();
        }
    });
}

/// One thread of each rank performs collectives while two exchange messages over the same links.
pub fn messages_flow_beside_collectives(world: &World) {
    world.run(2, |group| {
        let peer = 1 - group.rank();
        let content = |i: usize, from: usize| Random::new((2 * i + from) as u64).any::<u8>(i * 977 % 70_000);
        let (sender, receiver, me) = (group.clone(), group.clone(), group.rank());
        let sends = std::thread::spawn(move || {
            (0..200).for_each(|i| sender.send(&content(i, me), peer, i as u64 % 3).unwrap());
        });
        let receives = std::thread::spawn(move || {
            for i in 0..200 {
                let expected = content(i, peer);
                let mut message = vec![0; expected.len()];
                receiver.recv(&mut message, peer, i as u64 % 3).unwrap();
                assert!(message == expected, "message {i} arrived changed");
            }
        });
        for i in 0..200u64 {
            let mut sum = vec![i; i as usize * 331 % 40_000];
            group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert!(sum.iter().all(|&s| s == 2 * i));
        }
        sends.join().expect("sending does not panic");
        receives.join().expect("receiving does not panic");
    });
}
