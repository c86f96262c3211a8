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
            }
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
