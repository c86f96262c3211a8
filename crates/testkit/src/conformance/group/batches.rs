//! Messages that are performed together: whatever their order, and whatever the other ranks do, single calls or batches.

use super::failure::{at_once, cause, failed};
use crate::World;
use crate::oracle::Random;
use phalanx_core::{Cause, Error, Loss, Result};
use phalanx_group::{EAGER_LIMIT, ProcessGroup};
use std::sync::Barrier;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(2);
/// More than any transport takes without a receiver.
const LONG: usize = 8 << 20;

/// What a rank calls.
type Call = fn(&ProcessGroup) -> Result<()>;

/// The elements that `from` sends to `to`, unlike for each pair, tag and length.
fn content(from: usize, to: usize, tag: u64, len: usize) -> Vec<u32> {
    Random::new(((from * 64 + to) as u64) << 8 | tag).any(len)
}

/// Every rank sends to the next and receives from the one before: all send first, all receive first, or one of them does otherwise.
pub fn a_ring_needs_no_rank_that_receives_first(world: &World) {
    for world_size in 2..=4 {
        world.run(world_size, move |group| {
            let rank = group.rank();
            let (next, prev) = ((rank + 1) % world_size, (rank + world_size - 1) % world_size);
            for (len, order) in [(0, 1), (1, 0), (LONG / 4, 0), (LONG / 4, 1), (LONG / 4, 2)] {
                let mine = content(rank, next, 0, len);
                let mut theirs = vec![0; len];
                let sends_first = [true, false, rank == 0][order];
                let mut batch = group.batch();
                if sends_first {
                    batch.send(&mine, next, 0).unwrap();
                    batch.recv(&mut theirs, prev, 0).unwrap();
                } else {
                    batch.recv(&mut theirs, prev, 0).unwrap();
                    batch.send(&mine, next, 0).unwrap();
                }
                batch.perform().unwrap();
                assert!(theirs == content(prev, rank, 0, len), "{len} elements, order {order}");
            }
        });
    }
}

/// Everybody to everybody, several messages to each, of unlike lengths, types and tags, in an order of each rank's own.
pub fn a_batch_goes_to_everybody(world: &World) {
    const TAGS: [u64; 3] = [u64::MAX, 0, 7];
    let len = |from: usize, to: usize, tag: u64| (from * 5 + to * 3 + tag as usize % 4) * 1000;
    for world_size in 1..=5 {
        world.run(world_size, move |group| {
            let rank = group.rank();
            let peers: Vec<usize> = (1..world_size).map(|step| (rank + step) % world_size).collect();
            let ends: Vec<_> = peers.iter().flat_map(|&peer| TAGS.map(|tag| (peer, tag))).collect();
            let outgoing: Vec<_> =
                ends.iter().map(|&(to, tag)| content(rank, to, tag, len(rank, to, tag))).collect();
            let mut incoming: Vec<_> =
                ends.iter().map(|&(from, tag)| vec![0; len(from, rank, tag)]).collect();
            let (sign, mut signs) = ([rank as i8], vec![[-1i8]; world_size]);
            for _ in 0..2 {
                let mut batch = group.batch();
                for (&(to, tag), buffer) in ends.iter().zip(&outgoing) {
                    batch.send(buffer, to, tag).unwrap();
                }
                for (&(from, tag), buffer) in ends.iter().zip(&mut incoming).rev() {
                    batch.recv(buffer, from, tag).unwrap();
                }
                for (peer, theirs) in signs.iter_mut().enumerate().filter(|(peer, _)| *peer != rank) {
                    batch.recv(theirs, peer, 9).unwrap();
                    batch.send(&sign, peer, 9).unwrap();
                }
                batch.perform().unwrap();
                for (&(from, tag), buffer) in ends.iter().zip(&mut incoming) {
                    assert!(*buffer == content(from, rank, tag, len(from, rank, tag)), "{from}, tag {tag}");
                    buffer.fill(0);
                }
                assert!(peers.iter().all(|&peer| signs[peer] == [peer as i8]));
            }
        });
    }
}

/// One rank's batch meets the other's single calls, in the order in which its messages were added.
pub fn batches_meet_single_calls(world: &World) {
    const LENS: [usize; 3] = [LONG / 4, 3, EAGER_LIMIT];
    world.run(2, |group| {
        let (rank, peer) = (group.rank(), 1 - group.rank());
        for round in 0..4 {
            let outgoing = LENS.map(|len| content(rank, peer, len as u64 % 7, len));
            let mut incoming = LENS.map(|len| vec![0; len]);
            // Of one tag, so that their order matters.
            if rank == round % 2 {
                let mut batch = group.batch();
                for (mine, theirs) in outgoing.iter().zip(&mut incoming) {
                    batch.send(mine, peer, 3).unwrap();
                    batch.recv(theirs, peer, 3).unwrap();
                }
                batch.perform().unwrap();
            } else {
                for (mine, theirs) in outgoing.iter().zip(&mut incoming) {
                    group.recv(theirs, peer, 3).unwrap();
                    group.send(mine, peer, 3).unwrap();
                }
            }
            for (len, theirs) in LENS.into_iter().zip(incoming) {
                assert!(theirs == content(peer, rank, len as u64 % 7, len), "{len} elements");
            }
        }
    });
}

/// As single calls do: batches of short messages that are only sent end before anybody receives.
pub fn short_sends_of_a_batch_need_no_receiver(world: &World) {
    const COUNT: usize = 256;
    let all_have_sent = Barrier::new(3);
    world.run(3, move |group| {
        let rank = group.rank();
        let others = || (0..3).filter(move |&other| other != rank);
        for len in [0, 1 << 10] {
            let outgoing: Vec<_> = others().map(|to| content(rank, to, 0, len / 4)).collect();
            let mut batch = group.batch();
            for _ in 0..COUNT {
                for (to, buffer) in others().zip(&outgoing) {
                    batch.send(buffer, to, 1).unwrap();
                }
            }
            batch.perform().unwrap();
            all_have_sent.wait();
            for from in others() {
                for _ in 0..COUNT {
                    let mut theirs = vec![0; len / 4];
                    group.recv(&mut theirs, from, 1).unwrap();
                    assert!(theirs == content(from, rank, 0, len / 4));
                }
            }
            all_have_sent.wait();
        }
    });
}

/// Of a batch of which one message does not come, errors tell of that one.
pub fn a_batch_in_vain_names_its_message(world: &World) {
    let cases: [(Call, &str); 2] = [
        (
            |group| {
                let (mut comes, mut does_not) = ([0u8], [0u8]);
                let mut batch = group.batch();
                batch.recv(&mut comes, 0, 3)?;
                batch.recv(&mut does_not, 1, 7)?;
                batch.perform()
            },
            " in recv from rank 1 with tag 7 at ",
        ),
        (
            |group| {
                let (mut comes, long) = ([0u8], vec![0u8; LONG * 8]);
                let mut batch = group.batch();
                batch.send(&long, 1, 8)?;
                batch.recv(&mut comes, 0, 3)?;
                batch.perform()
            },
            " in send to rank 1 with tag 8 at ",
        ),
    ];
    at_once(&cases, |&(call, words)| {
        let causes = world.clone().timeout(LIMIT).run(3, move |group| {
            let outcome = match group.rank() {
                0 => group.send(&[1u8], 2, 3),
                1 => Ok(()),
                _ => call(&group),
            };
            while group.failure().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            let error = failed(&group, outcome);
            let Error::Timeout { missing, .. } = &error else { panic!("not a timeout: {error}") };
            assert_eq!(missing.iter().map(|peer| peer.rank).collect::<Vec<_>>(), [1], "{error}");
            cause(&group)
        });
        let told = causes[0].to_string();
        assert!(told.contains(words) && told.contains("/batches.rs:"), "{told}");
        assert!(causes.iter().all(|other| *other == causes[0]), "{causes:?}");
    });
}

/// A message of another type, or of another length, among others that fit.
pub fn another_message_in_a_batch_is_a_mismatch(world: &World) {
    at_once(&[true, false], |&other_type| {
        let causes = world.run(2, move |group| {
            let peer = 1 - group.rank();
            let (mut words, mut floats, mut more) = ([0u32; 3], [0f32; 3], [0u32; 4]);
            let sent = [group.rank() as u32; 3];
            let mut batch = group.batch();
            batch.send(&sent, peer, 1).unwrap();
            batch.send(&sent, peer, 2).unwrap();
            batch.recv(&mut words, peer, 1).unwrap();
            if group.rank() == 0 && other_type {
                batch.recv(&mut floats, peer, 2).unwrap();
            } else {
                batch.recv(&mut more[..3 + peer], peer, 2).unwrap();
            }
            let error = failed(&group, batch.perform());
            assert!(matches!(error, Error::Mismatch { .. }), "{error}");
            cause(&group)
        });
        let told = causes[0].to_string();
        assert!(told.starts_with("ranks disagree on the message with tag 2: rank 0 "), "{told}");
        assert!(told.contains("/batches.rs:") && causes[0] == causes[1], "{told}");
    });
}

/// How many messages each rank sends to each other one in a batch. One of them is received.
const MANY: u64 = 50;

/// A rank that leaves while others wait for it in a batch, beside messages that come.
pub fn a_rank_that_leaves_a_batch_alone_is_named(world: &World) {
    for who in 0..3 {
        let causes = world.run(3, move |group| {
            let rank = group.rank();
            if rank == who {
                drop(group);
                return None;
            }
            let mut theirs = [[0u8; 100]; 3];
            let mut batch = group.batch();
            for (peer, buffer) in theirs.iter_mut().enumerate().filter(|(peer, _)| *peer != rank) {
                // So many that one has failed, very likely, before the last of them begins.
                (0..MANY).for_each(|tag| batch.send(&[1u8; 100], peer, tag).unwrap());
                batch.recv(buffer, peer, MANY - 1).unwrap();
            }
            let error = failed(&group, batch.perform());
            let is_told = matches!(&error, Error::PeerLost { peer, how: Loss::Left, .. } if peer.rank == who);
            assert!(is_told, "rank {who}: {error}");
            Some(cause(&group))
        });
        let told: Vec<&Cause> = causes.iter().flatten().collect();
        assert!(told.len() == 2 && told[0] == told[1], "{told:?}");
    }
}

/// Ranks whose batches wait for each other for good.
pub fn batches_that_wait_for_each_other_are_named(world: &World) {
    let causes = world.clone().timeout(4 * LIMIT).run(3, |group| {
        let rank = group.rank();
        let (next, prev) = ((rank + 1) % 3, (rank + 2) % 3);
        let (mine, mut comes, mut does_not) = ([rank as u8], [0u8], [0u8]);
        let mut batch = group.batch();
        batch.recv(&mut does_not, next, 1).unwrap();
        batch.send(&mine, next, 2).unwrap();
        batch.recv(&mut comes, prev, 2).unwrap();
        let error = failed(&group, batch.perform());
        assert!(matches!(error, Error::Deadlock { .. }), "{error}");
        cause(&group)
    });
    let Cause::Deadlock { waits } = &causes[0] else { panic!("{}", causes[0]) };
    let circle: Vec<_> = waits.iter().map(|wait| (wait.peer.rank, wait.on)).collect();
    assert_eq!(circle, [(0, 1), (1, 2), (2, 0)], "{}", causes[0]);
    assert!(causes.iter().all(|other| *other == causes[0]), "{causes:?}");
}

/// A call that is refused leaves the batch as it was.
pub fn a_wrong_message_hurts_no_batch(world: &World) {
    world.run(2, |group| {
        let (peer, mut theirs, mut other) = (1 - group.rank(), [0u16; 2], [0u16]);
        let mut batch = group.batch();
        batch.recv(&mut theirs, peer, 0).unwrap();
        for (refused, why) in [
            (batch.send(&[1u16], 2, 0), "send: rank 2 is out of range"),
            (batch.recv(&mut other, group.rank(), 0), "recv: the source is this rank"),
        ] {
            let error = refused.unwrap_err();
            let words = error.to_string();
            assert!(words.contains(why) && words.contains("/batches.rs:"), "{words}");
            assert!(error.group_is_usable());
        }
        batch.send(&[5u16, 6], peer, 0).unwrap();
        batch.perform().unwrap();
        assert_eq!(theirs, [5, 6]);
    });
}
