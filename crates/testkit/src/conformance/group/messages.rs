//! send and recv: tags, order, waiting, and many at once.

use crate::World;
use crate::oracle::Random;
use phalanx_core::Error;
use phalanx_group::EAGER_LIMIT;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// A receiver takes tags in whatever order it likes; messages of one tag keep theirs.
pub fn tags_may_be_received_in_any_order(world: &World) {
    world.run(2, |group| {
        let tags = [5, 0, u64::MAX, 1 << 40];
        if group.rank() == 0 {
            for round in 0..3u64 {
                for tag in tags {
                    group.send(&[tag, round], 1, tag).unwrap();
                }
            }
        } else {
            for tag in tags.into_iter().rev() {
                for round in 0..3 {
                    let mut message = [0; 2];
                    group.recv(&mut message, 0, tag).unwrap();
                    assert_eq!(message, [tag, round]);
                }
            }
        }
    });
}

/// Thousands of small messages from everybody to everybody, of every length from none to some.
pub fn many_small_messages_arrive(world: &World) {
    world.run(4, |group| {
        let (rank, world_size) = (group.rank(), group.world_size());
        let peers = || (1..world_size).map(move |step| (rank + step) % world_size);
        for round in 0..500usize {
            let content =
                |from: usize| Random::new((round * world_size + from) as u64).any::<u16>(round % 40);
            for to in peers() {
                group.send(&content(rank), to, 9).unwrap();
            }
            for from in peers() {
                let mut message = vec![0; round % 40];
                group.recv(&mut message, from, 9).unwrap();
                assert_eq!(message, content(from));
            }
        }
    });
}

/// Both ranks begin to receive before they begin to send; then both send first.
pub fn both_sides_may_begin_with_the_same_half(world: &World) {
    world.run(2, |group| {
        let (rank, peer) = (group.rank() as u8, 1 - group.rank());
        let incoming = group.recv_async(vec![0u8; 3_000_000], peer, 1).unwrap();
        let outgoing = group.send_async(vec![rank; 3_000_000], peer, 1).unwrap();
        assert_eq!(outgoing.wait().unwrap().len(), 3_000_000, "the buffer comes back");
        assert!(incoming.wait().unwrap().iter().all(|&b| b == peer as u8));

        let outgoing = group.send_async(vec![rank; 3_000_000], peer, 2).unwrap();
        let incoming = group.recv_async(vec![0u8; 3_000_000], peer, 2).unwrap();
        assert!(incoming.wait().unwrap().iter().all(|&b| b == peer as u8));
        outgoing.wait().unwrap();
    });
}

/// All ranks send before any receives: as much as needs no receiver, in one message and in many.
pub fn short_messages_need_no_receiver(world: &World) {
    for world_size in [2, 3] {
        let all_have_sent = Barrier::new(world_size);
        world.run(world_size, move |group| {
            let (rank, next) = (group.rank(), (group.rank() + 1) % world_size);
            let prev = (rank + world_size - 1) % world_size;
            for (count, len) in [(1, EAGER_LIMIT), (256, 1 << 10), (5, EAGER_LIMIT / 5), (256, 0)] {
                let content = |from: usize, i: usize| Random::new((from * 1000 + i) as u64).any::<u8>(len);
                for i in 0..count {
                    group.send(&content(rank, i), next, 3).unwrap();
                }
                all_have_sent.wait();
                let mut message = vec![0; len];
                for i in 0..count {
                    group.recv(&mut message, prev, 3).unwrap();
                    assert!(message == content(prev, i), "message {i} of {count}");
                }
            }
            // Collectives come between.
            const LONG: usize = EAGER_LIMIT - 1024;
            group.send(&[rank as u8; LONG], next, 4).unwrap();
            group.barrier().unwrap();
            group.send(&[rank as u16], next, 5).unwrap();
            let (mut long, mut short) = (vec![0u8; LONG], [0u16]);
            group.recv(&mut long, prev, 4).unwrap();
            group.recv(&mut short, prev, 5).unwrap();
            assert!(long.iter().all(|&b| b == prev as u8) && short == [prev as u16]);
        });
    }
}

/// 16 MiB each way at once, with blocking calls on both sides: one sends while the other sends.
pub fn large_messages_cross(world: &World) {
    const LEN: usize = (16 << 20) / 8;
    world.run(2, |group| {
        let (rank, peer) = (group.rank(), 1 - group.rank());
        let content = |from: usize| Random::new(from as u64).any::<u64>(LEN);
        let receiver = group.clone();
        let incoming = std::thread::spawn(move || {
            let mut message = vec![0u64; LEN];
            receiver.recv(&mut message, peer, 4).map(|()| message)
        });
        group.send(&content(rank), peer, 4).unwrap();
        let message = incoming.join().expect("it does not panic").unwrap();
        assert!(message == content(peer), "the content arrived changed");
    });
}

/// Nothing within the time is no failure; the message still arrives, for the next call, and others are not disturbed.
pub fn waiting_in_vain_is_no_failure(world: &World) {
    world.run(2, |group| {
        let mut message = [0u32; 2];
        if group.rank() == 1 {
            for limit in [Duration::ZERO, Duration::from_millis(80)] {
                let begun = Instant::now();
                match group.recv_timeout(&mut message, 0, 3, limit) {
                    Err(Error::NoMessage { from, tag, waited, .. }) => {
                        assert_eq!((from[0].rank, tag), (0, 3));
                        assert!(waited >= limit && begun.elapsed() >= limit);
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert!(
                group.recv_timeout(&mut message, 0, 3, Duration::ZERO).is_err_and(|e| e.group_is_usable())
            );
        }
        group.barrier().unwrap();
        if group.rank() == 0 {
            group.send(&[1u32, 2], 1, 8).unwrap();
            group.send(&[3u32, 4], 1, 3).unwrap();
        } else {
            group.recv_timeout(&mut message, 0, 3, Duration::from_secs(30)).unwrap();
            assert_eq!(message, [3, 4]);
            // It is here already: time is not needed.
            group.recv_timeout(&mut message, 0, 8, Duration::ZERO).unwrap();
            assert_eq!(message, [1, 2]);
        }
        group.barrier().unwrap();
    });
}

/// Threads of one rank await different tags at once; a ring of messages needs them all.
pub fn threads_share_a_group(world: &World) {
    world.run(3, |group| {
        let (next, prev) = ((group.rank() + 1) % 3, (group.rank() + 2) % 3);
        let threads: Vec<_> = (0..4u64)
            .map(|tag| {
                let group = group.clone();
                std::thread::spawn(move || {
                    for round in 0..100u64 {
                        // Half the threads receive first.
                        let send = || group.send(&[tag, round], next, tag);
                        let mut message = [0; 2];
                        if group.rank() == 0 || tag % 2 == 0 {
                            send().unwrap();
                            group.recv(&mut message, prev, tag).unwrap();
                        } else {
                            group.recv(&mut message, prev, tag).unwrap();
                            send().unwrap();
                        }
                        assert_eq!(message, [tag, round]);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("the thread does not panic"));
    });
}
