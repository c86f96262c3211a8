//! recv_any: whose message it takes, and what is said where none comes.

use super::failure::{at_once, cause, failed};
use super::losses::panic_with;
use crate::World;
use crate::oracle::Random;
use phalanx_core::{Cause, Error, Loss, OpKind, ReduceOp};
use phalanx_group::{ProcessGroup, Work};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const DONE: u64 = 1;
const WORK: u64 = 2;
const END: u64 = u64::MAX;
/// How long a message is waited for that does not come.
const PATIENCE: Duration = Duration::from_secs(2);

/// Waits until another rank has failed the group.
fn until_others_fail(group: &ProcessGroup) -> Error {
    while group.failure().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    failed(group, Ok(()))
}

/// Rank 0 hands out work to whoever is done, and all add up what they have done.
pub fn work_goes_to_whoever_is_done(world: &World) {
    const TASKS: u64 = 60;
    for world_size in 2..=5 {
        world.run(world_size, move |group| {
            let mut done = [0u64];
            for round in 0..2 {
                if group.rank() == 0 {
                    let mut sum = 0;
                    for next in 0..TASKS + world_size as u64 - 1 {
                        let mut result = [0u64; 2];
                        let worker = group.recv_any(&mut result, DONE).unwrap();
                        assert_eq!(result[0], worker as u64, "whose result it is");
                        sum += result[1];
                        group.send(&[if next < TASKS { next } else { END }], worker, WORK).unwrap();
                    }
                    assert_eq!(sum, (0..TASKS).map(|n| n * n).sum::<u64>());
                } else {
                    let (mut result, mut work) = (0, [0]);
                    while work[0] != END {
                        group.send(&[group.rank() as u64, result], 0, DONE).unwrap();
                        group.recv(&mut work, 0, WORK).unwrap();
                        if work[0] != END {
                            // Each has its pace.
                            let pace = Random::new(work[0] * 7 + group.rank() as u64).below(300) as u64;
                            std::thread::sleep(Duration::from_micros(pace));
                            (result, done) = (work[0] * work[0], [done[0] + 1]);
                        }
                    }
                }
                let mut all = done;
                group.all_reduce(&mut all, ReduceOp::Sum).unwrap();
                assert_eq!(all, [TASKS * (round + 1)]);
            }
        });
    }
}

/// All others have sent hundreds of messages when rank 0 begins to receive: each has its turn, and the messages of each keep their order.
pub fn no_rank_is_left_out_in_a_flood(world: &World) {
    const EACH: usize = 120;
    world.run(4, |group| {
        let (flood, last) = (3, 4);
        if group.rank() > 0 {
            for i in 0..EACH {
                group.send(&[group.rank(), i].map(|n| n as u32), 0, flood).unwrap();
            }
            group.send(&[0u8], 0, last).unwrap();
        } else {
            for src in 1..4 {
                group.recv(&mut [0u8], src, last).unwrap();
            }
            let mut next = [0; 4];
            for taken in 0..3 * EACH {
                let mut message = [0u32; 2];
                let from = group.recv_any(&mut message, flood).unwrap();
                assert_eq!(message, [from, next[from]].map(|n| n as u32));
                next[from] += 1;
                if taken == 40 {
                    // One of two levels may have one rank alone.
                    assert!(next[1..].iter().all(|&n| n >= 8), "{next:?}");
                }
            }
            assert_eq!(next, [0, EACH, EACH, EACH]);
        }
        group.barrier().unwrap();
    });
}

/// Messages of several frames, of which those of several ranks come at once; blocking, asynchronous, and with other threads.
pub fn every_message_is_received_once(world: &World) {
    let len = super::several_frames::<u16>();
    world.run(4, move |group| {
        let content = |from: usize, i: usize| Random::new((from * 100 + i) as u64).any::<u16>(len);
        if group.rank() > 0 {
            let sent: Vec<_> = (0..3).map(|i| group.send_async(content(group.rank(), i), 0, 5)).collect();
            sent.into_iter().for_each(|work| drop(work.and_then(Work::wait).unwrap()));
        } else {
            let begun = [(); 3].map(|()| group.recv_any_async(vec![0u16; len], 5).unwrap());
            let mut received: Vec<_> = std::thread::scope(|scope| {
                let receive = || {
                    let mut message = vec![0u16; len];
                    let from = group.recv_any(&mut message, 5).unwrap();
                    (message, from)
                };
                let threads = [(); 3].map(|()| scope.spawn(move || [receive(), receive()]));
                threads.into_iter().flat_map(|thread| thread.join().expect("it does not panic")).collect()
            });
            received.extend(begun.into_iter().map(|work| work.wait().unwrap()));
            for from in 1..4 {
                for i in 0..3 {
                    let expected = content(from, i);
                    let is_it = |(message, src): &(Vec<u16>, usize)| *src == from && *message == expected;
                    assert_eq!(received.iter().filter(|received| is_it(received)).count(), 1);
                }
            }
        }
        group.barrier().unwrap();
    });
}

/// What was called before gets the first message of its rank, and what is called later the next; other tags are left alone.
pub fn receives_keep_their_order_with_those_from_any(world: &World) {
    world.run(3, |group| {
        if group.rank() == 0 {
            let first = group.recv_async(vec![0u32], 1, 7).unwrap();
            let any = [(); 3].map(|()| group.recv_any_async(vec![0u32], 7).unwrap());
            let last = group.recv_async(vec![0u32], 1, 7).unwrap();
            group.all_reduce(&mut [1.0f32; 3], ReduceOp::Sum).unwrap();
            let mut received = any.map(|work| work.wait().unwrap());
            received.sort();
            assert_eq!(received, [(vec![11], 1), (vec![12], 1), (vec![20], 2)]);
            group.send(&[0u8], 1, 7).unwrap();
            assert_eq!([first.wait().unwrap(), last.wait().unwrap()], [[10], [13]]);
            group.recv(&mut [0u8], 2, 8).unwrap();
            assert_eq!(group.recv_object_any::<String>(9).unwrap(), ("from rank 2".to_owned(), 2));
        } else {
            group.all_reduce(&mut [1.0f32; 3], ReduceOp::Sum).unwrap();
            if group.rank() == 1 {
                for message in 10..13u32 {
                    group.send(&[message], 0, 7).unwrap();
                }
                group.recv(&mut [0u8], 0, 7).unwrap();
                group.send(&[13u32], 0, 7).unwrap();
            } else {
                group.send(&[0u8], 0, 8).unwrap();
                group.send(&[20u32], 0, 7).unwrap();
                group.send_object(&"from rank 2", 0, 9).unwrap();
            }
        }
        group.barrier().unwrap();
    });
}

/// Nothing within the time is no failure, and says who is still there; the message still arrives, for the next call.
pub fn nothing_from_any_is_no_failure(world: &World) {
    world.run(3, |group| {
        let mut message = [0u32; 2];
        if group.rank() == 1 {
            for limit in [Duration::ZERO, Duration::from_millis(80)] {
                match group.recv_any_timeout(&mut message, 3, limit) {
                    Err(error @ Error::NoMessage { tag: 3, .. }) => {
                        let Error::NoMessage { from, waited, .. } = &error else { unreachable!() };
                        assert!(from.iter().map(|peer| peer.rank).eq([0, 2]) && *waited >= limit, "{error}");
                        let words = error.to_string();
                        assert!(
                            words.contains("recv_any with tag 3 at ") && error.group_is_usable(),
                            "{words}"
                        );
                        assert!(words.contains("no rank sent such a message within "), "{words}");
                        assert!(words.contains("; still here: rank 0 ("), "{words}");
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        group.barrier().unwrap();
        if group.rank() == 2 {
            group.send(&[1u32, 2], 1, 8).unwrap();
            group.send(&[3u32, 4], 1, 3).unwrap();
        } else if group.rank() == 1 {
            assert_eq!(group.recv_any_timeout(&mut message, 3, Duration::from_secs(30)).unwrap(), 2);
            assert_eq!(message, [3, 4]);
            // It is here already: time is not needed.
            assert_eq!(group.recv_any_timeout(&mut message, 8, Duration::ZERO).unwrap(), 2);
            assert_eq!(message, [1, 2]);
        }
        group.barrier().unwrap();
    });
}

/// A message in vain that any rank might have sent is nobody's fault.
pub fn nobody_is_blamed_who_might_have_sent(world: &World) {
    let causes = world.clone().timeout(20 * PATIENCE).run(3, |group| {
        let error = match group.rank() {
            0 => failed(&group, group.with_timeout(PATIENCE).recv_any(&mut [0u8; 10], 7).map(drop)),
            _ => until_others_fail(&group),
        };
        let Error::Timeout { missing, .. } = &error else { panic!("{error}") };
        assert!(missing.is_empty(), "{error}");
        cause(&group)
    });
    let words = causes[0].to_string();
    assert!(words.contains("s in recv_any with tag 7 at ") && words.contains("/any_source.rs:"), "{words}");
    assert!(words.contains(", but no rank sent such a message; still here: rank 1 ("), "{words}");
    assert!(words.contains("), rank 2 (") && causes[0].culprit().is_none(), "{words}");
    assert!(causes.iter().all(|cause| *cause == causes[0]));
}

/// A rank that waits for one in a receive from any hears that, and a rank that sends nothing is not blamed.
pub fn who_receives_from_any_is_late_itself(world: &World) {
    let causes = world.clone().timeout(20 * PATIENCE).run(3, |group| {
        let error = match group.rank() {
            0 => failed(&group, group.recv_any(&mut [0u8; 10], 7).map(drop)),
            1 => failed(&group, group.with_timeout(PATIENCE).recv(&mut [0u8], 0, 5)),
            _ => until_others_fail(&group),
        };
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        cause(&group)
    });
    assert!(matches!(causes[0].culprit(), Some(peer) if peer.rank == 0), "{}", causes[0]);
    let words = causes[0].to_string();
    assert!(
        words.contains("; meanwhile rank 0 (") && words.contains(" was in recv_any with tag 7, from rank "),
        "{words}"
    );
    assert!(causes.iter().all(|cause| *cause == causes[0]));
}

/// Ranks that wait for each other, of which one would take a message of any: all are in the circle, and nobody else.
pub fn a_receive_from_any_may_be_part_of_a_circle(world: &World) {
    for world_size in [2, 3] {
        let causes = world.clone().timeout(4 * PATIENCE).run(world_size, |group| {
            let error = match group.rank() {
                0 => failed(&group, group.with_timeout(PATIENCE).recv_any(&mut [0u8], 3).map(drop)),
                _ => failed(&group, group.with_timeout(PATIENCE).recv(&mut [0u8], 0, 3)),
            };
            assert!(matches!(error, Error::Deadlock { .. }), "{error}");
            cause(&group)
        });
        let Cause::Deadlock { waits } = &causes[0] else { panic!("{}", causes[0]) };
        let ops: Vec<_> = waits.iter().map(|wait| (wait.peer.rank, wait.call.op)).collect();
        assert!(ops[0] == (0, OpKind::RecvAny) && ops[1].1 == OpKind::Recv, "{}", causes[0]);
        let words = format!("rank 0 waits in recv_any with tag 3, from rank {} as from any (", ops[1].0);
        assert!(causes[0].to_string().starts_with(&words), "{}", causes[0]);
    }
    // One that is slow is in no circle.
    world.run(3, |group| {
        match group.rank() {
            0 => {
                assert_eq!(group.recv_any(&mut [0u8], 3).unwrap(), 2);
                group.send(&[0u8], 1, 3).unwrap();
            }
            1 => group.recv(&mut [0u8], 0, 3).unwrap(),
            _ => {
                std::thread::sleep(Duration::from_millis(1500));
                group.send(&[0u8], 0, 3).unwrap();
            }
        }
        group.barrier().unwrap();
    });
}

/// The first message that comes is another than the receiver expects: both lines are named, and nothing is taken for something else.
pub fn another_message_from_any_is_a_mismatch(world: &World) {
    type Receive = fn(&ProcessGroup) -> phalanx_core::Result<()>;
    let receives: [Receive; 3] = [
        |group| group.recv_any(&mut [0u32; 5], 1).map(drop),
        |group| group.recv_any(&mut [0f32; 4], 1).map(drop),
        |group| group.recv_any_async(vec![0u32; 0], 1).and_then(Work::wait).map(drop),
    ];
    at_once(&receives, |&receive| {
        let causes = world.run(3, move |group| {
            let outcome = match group.rank() {
                0 => receive(&group),
                2 => group.send(&[7u32; 4], 0, 1),
                _ => Ok(()),
            };
            let error = failed(&group, outcome);
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            cause(&group)
        });
        let Cause::Mismatch { left, right, tag: Some(1), .. } = &causes[0] else { panic!("{}", causes[0]) };
        assert_eq!(
            [(left.0.rank, left.1.op), (right.0.rank, right.1.op)],
            [(0, OpKind::RecvAny), (2, OpKind::Send)]
        );
        assert!(
            [left, right].iter().all(|(_, call)| call.site.file.ends_with("any_source.rs")),
            "{}",
            causes[0]
        );
        assert!(causes.iter().all(|cause| *cause == causes[0]));
    });
}

/// A rank is lost while others may still send: that ends a receive from any as every operation, and names it.
pub fn a_loss_ends_a_receive_from_any(world: &World) {
    for who in [1, 2] {
        let causes = world.run(3, move |group| {
            if group.rank() == who {
                std::thread::sleep(Duration::from_millis(300));
                panic_with(group);
                return None;
            }
            let error = match group.rank() {
                0 => failed(&group, group.recv_any(&mut [0u8], 1).map(drop)),
                _ => until_others_fail(&group),
            };
            let is_told = |peer: usize, how: &Loss| peer == who && *how == Loss::Panicked;
            assert!(
                matches!(&error, Error::PeerLost { peer, how, .. } if is_told(peer.rank, how)),
                "{error}"
            );
            Some(cause(&group))
        });
        let told: Vec<_> = causes.iter().flatten().collect();
        assert!(told.len() == 2 && told[0] == told[1]);
    }
}

/// A rank that has left in order is missed by nobody, and what it sent before still comes; when all have left, that is said.
pub fn who_has_left_is_not_waited_for(world: &World) {
    for first in [1, 2] {
        let goes = Arc::new(AtomicBool::new(false));
        world.run(3, move |group| {
            if group.rank() == first {
                group.send(&[first as u8], 0, 1).unwrap();
                return;
            }
            if group.rank() != 0 {
                while !goes.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                // Longer than a farewell may be on its way.
                std::thread::sleep(Duration::from_millis(1800));
                group.send(&[group.rank() as u8], 0, 1).unwrap();
                return;
            }
            let mut message = [0u8];
            assert_eq!(group.recv_any(&mut message, 1).unwrap(), first);
            goes.store(true, Ordering::Release);
            assert_eq!(group.recv_any(&mut message, 1).unwrap(), 3 - first);
            assert_eq!(message, [3 - first as u8]);
            let error = group.recv_any(&mut message, 1).unwrap_err();
            let Error::PeerLost { peer, how: Loss::LeftLast, .. } = &error else { panic!("{error}") };
            assert_eq!(peer.rank, 3 - first, "{error}");
            assert!(error.to_string().contains("the last of those that could send a message"), "{error}");
        });
    }
}

/// A call that makes no sense is refused, and the group works on.
pub fn nobody_sends_to_a_rank_that_is_alone(world: &World) {
    world.run(1, |group| {
        let refused = [
            group.recv_any(&mut [0u8], 1).unwrap_err(),
            group.recv_any_async(vec![0u8], 1).map(drop).unwrap_err(),
        ];
        for error in refused {
            assert!(matches!(error, Error::Misuse { .. }) && error.group_is_usable(), "{error}");
            assert!(
                error.to_string().contains("alone in its group")
                    && error.to_string().contains("/any_source.rs:")
            );
        }
        group.barrier().unwrap();
    });
}
