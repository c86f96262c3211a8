//! Ranks that wait for each other, and what they are told.

use super::failure::{at_once, cause, failed};
use crate::World;
use phalanx_core::{Cause, Error, OpKind, Result};
use phalanx_group::{EAGER_LIMIT, ProcessGroup};
use std::time::Duration;

/// More than any transport takes without a receiver.
const LONG: usize = 64 << 20;
/// How long messages are waited for; collectives may take longer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A call that a rank makes; returns its outcome and its line.
type Call = fn(&ProcessGroup) -> (Result<()>, u32);

/// All ranks make the call; all hear who waits for whom, in these operations and on these lines.
fn in_a_circle(world: &World, circle: &[OpKind], call: Call) {
    let world_size = circle.len();
    let world = world.clone().timeout(4 * PATIENCE);
    let outcomes = world.run(world_size, move |group| {
        let (outcome, line) = call(&group);
        let error = failed(&group, outcome);
        assert!(matches!(error, Error::Deadlock { .. }), "{error}");
        (line, error.to_string(), cause(&group))
    });
    let Cause::Deadlock { waits } = &outcomes[0].2 else { panic!("{}", outcomes[0].2) };
    assert!(waits.iter().map(|wait| wait.call.op).eq(circle.iter().copied()), "{}", outcomes[0].2);
    for (i, wait) in waits.iter().enumerate() {
        assert_eq!((wait.peer.rank, wait.on), (i, (i + 1) % world_size), "{}", outcomes[0].2);
        assert_eq!(wait.call.site.line, outcomes[i].0, "{}", outcomes[0].2);
    }
    let words = format!("rank 0 waits in {}, which waits in ", waits[0]);
    for (_, error, theirs) in &outcomes {
        assert!(error.contains(&words), "{error}");
        assert_eq!(theirs, &outcomes[0].2);
    }
}

fn next(group: &ProcessGroup) -> usize {
    (group.rank() + 1) % group.world_size()
}

/// Two that both send what is too long to go without a receiver, or that both receive; and rings of them.
pub fn ranks_that_wait_for_each_other_are_named(world: &World) {
    let send: Call = |g| (g.with_timeout(PATIENCE).send(&vec![0u8; LONG], next(g), 3), line!());
    let recv: Call = |g| (g.with_timeout(PATIENCE).recv(&mut [0u8], next(g), 3), line!());
    let (sends, recvs) = ([OpKind::Send; 3], [OpKind::Recv; 3]);
    at_once(&[(&sends[..2], send), (&sends[..], send), (&recvs[..2], recv), (&recvs[..], recv)], |case| {
        in_a_circle(world, case.0, case.1);
    });
}

/// A collective to which one rank does not come, for it waits for a message of a rank that has.
pub fn a_collective_may_be_part_of_a_circle(world: &World) {
    in_a_circle(world, &[OpKind::Barrier, OpKind::Recv], |g| match g.rank() {
        0 => (g.barrier(), line!()),
        _ => (g.with_timeout(PATIENCE).recv(&mut [0u8], 0, 3), line!()),
    });
}

/// A receive in vain says what the sender was doing instead.
pub fn a_message_in_vain_says_what_its_other_end_does(world: &World) {
    let causes = world.clone().timeout(20 * PATIENCE).run(3, |group| {
        let outcome = match group.rank() {
            0 => group.with_timeout(PATIENCE).recv(&mut [0u8], 1, 5),
            1 => group.recv(&mut [0u8], 2, 6),
            _ => {
                while group.failure().is_none() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(())
            }
        };
        failed(&group, outcome);
        cause(&group)
    });
    let words = causes[0].to_string();
    assert!(words.contains("no such message came; meanwhile rank 1 ("), "{words}");
    assert!(words.contains(") was in recv from rank 2 with tag 6 ("), "{words}");
    assert!(words.contains("/circles.rs:") && !words.contains("not arrived"), "{words}");
    assert!(causes.iter().all(|cause| *cause == causes[0]));
}

/// Ranks that seem to wait for each other, and don't: a thread of theirs comes late, or they are only slow.
pub fn who_is_slow_is_in_no_circle(world: &World) {
    world.run(2, |group| {
        let (rank, peer) = (group.rank(), 1 - group.rank());
        // Both send first, and another thread receives when the senders have long told that they wait.
        std::thread::scope(|scope| {
            let receiver = &group;
            let received = scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(1500));
                let mut message = vec![0u8; LONG];
                receiver.recv(&mut message, peer, 1).map(|()| message)
            });
            group.send(&vec![rank as u8 + 1; LONG], peer, 1).unwrap();
            let message = received.join().expect("it does not panic").unwrap();
            assert!(message.iter().all(|&byte| byte == peer as u8 + 1));
        });
        // Each waits for the other now and then for longer than it takes to tell so.
        let mut message = vec![0u8; EAGER_LIMIT];
        for round in 0..3 {
            if rank == round % 2 {
                std::thread::sleep(Duration::from_millis(700));
                group.send(&message, peer, 2).unwrap();
                group.recv(&mut message, peer, 3).unwrap();
            } else {
                group.recv(&mut message, peer, 2).unwrap();
                std::thread::sleep(Duration::from_millis(700));
                group.send(&message, peer, 3).unwrap();
            }
        }
        group.barrier().unwrap();
    });
}
