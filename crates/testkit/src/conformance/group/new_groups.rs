//! Groups that only their members make.

use super::failure::at_once;
use super::subgroups::sums_its_members;
use crate::World;
use phalanx_core::{Cause, Error, GroupId, Loss};
use phalanx_group::ProcessGroup;
use std::collections::HashSet;
use std::sync::Barrier;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(4);

/// Every set of ranks there is. Ranks outside do not call, or call and get nothing.
pub fn a_group_is_made_by_its_members_alone(world: &World) {
    for world_size in 1..=4 {
        world.run(world_size, move |group| {
            let rank = group.rank();
            for set in 1..1usize << world_size {
                let members: Vec<usize> = (0..world_size).filter(|rank| set >> rank & 1 == 1).collect();
                // Each names them in another order.
                let mut named = members.clone();
                named.rotate_left(rank % members.len());
                if members.contains(&rank) {
                    let new = group.new_group(&named).unwrap().expect("a member");
                    assert_eq!((new.members(), new.members()[new.rank()]), (&members[..], rank));
                    sums_its_members(&new);
                } else if set % 2 == 0 {
                    assert!(group.new_group(&named).unwrap().is_none());
                }
            }
            sums_its_members(&group);
        });
    }
}

/// Sets that overlap, each several times, asked for by a thread each: every rank begins with another. Groups of groups too.
pub fn sets_that_overlap_are_not_mixed_up(world: &World) {
    const SETS: [&[usize]; 5] = [&[0, 1], &[1, 2], &[0, 2], &[0, 1, 2], &[0]];
    let ids = world.run(3, |group| {
        let rank = group.rank();
        // With names of its own in a group with the same members.
        let again = group.split(Some(0), 0).unwrap().expect("it gave a color");
        std::thread::scope(|scope| {
            let (group, again) = (&group, &again);
            let make = |i: usize| {
                let set = SETS[(i + rank) % SETS.len()];
                move || -> Vec<GroupId> {
                    let of = [group, again, group, group];
                    let made = of.map(|of| of.new_group(set).unwrap());
                    assert!(made.iter().all(|new| new.is_some() == set.contains(&rank)));
                    made.into_iter().flatten().inspect(sums_its_members).map(|new| new.id()).collect()
                }
            };
            let threads: Vec<_> = (0..SETS.len()).map(|i| scope.spawn(make(i))).collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().expect("it does not panic"))
                .collect::<Vec<_>>()
        })
    });
    let distinct: HashSet<GroupId> = ids.iter().flatten().copied().collect();
    assert_eq!(distinct.len(), 4 * SETS.len(), "{ids:?}");
}

/// A member that does not come within the limit. It is told when it comes; the group that was divided, and the next new one, work.
pub fn members_that_do_not_come_are_named(world: &World) {
    at_once(&[0, 1, 3], |&absent| {
        let (world, others_have_failed) = (world.clone().timeout(LIMIT), Barrier::new(4));
        let causes = world.run(4, move |group| {
            let new = |group: &ProcessGroup| group.new_group(&[3, 0, 1]).map(|new| new.expect("a member"));
            let patient = group.with_timeout(30 * LIMIT);
            // Those that come must come at the same time, or one of them is missing too.
            sums_its_members(&patient);
            let error = match group.rank() {
                2 => None,
                rank if rank == absent => {
                    others_have_failed.wait();
                    // Where all it waits for was sent long ago, it may be through before it is told.
                    Some(new(&patient).and_then(|new| new.barrier()).unwrap_err())
                }
                _ => {
                    let error = new(&group).unwrap_err();
                    let words = error.to_string();
                    assert!(words.contains("new_group") && words.contains("/new_groups.rs:"), "{words}");
                    Some(error)
                }
            };
            if group.rank() != absent {
                others_have_failed.wait();
            }
            sums_its_members(&patient);
            if group.rank() != 2 {
                sums_its_members(&new(&patient).unwrap());
            }
            error
        });
        for error in causes.iter().flatten() {
            let missing = match error {
                Error::Timeout { missing, .. } => missing,
                Error::Poisoned { cause, .. } => match &**cause {
                    Cause::TimedOut { missing, .. } => missing,
                    other => panic!("not a timeout: {other}"),
                },
                other => panic!("not a timeout: {other}"),
            };
            assert_eq!(missing.iter().map(|peer| peer.rank).collect::<Vec<_>>(), [absent], "{error}");
        }
    });
}

/// Ranks that mean to make one group and give unlike lists: both groups fail, and the errors say so.
pub fn lists_that_differ_make_no_group(world: &World) {
    let world = world.clone().timeout(LIMIT);
    world.run(3, |group| {
        let list: &[usize] = if group.rank() == 0 { &[0, 1] } else { &[0, 1, 2] };
        let error = group.new_group(list).unwrap_err();
        let words = error.to_string();
        match &error {
            Error::Deadlock { .. } => assert!(words.contains("their lists of ranks differ"), "{words}"),
            // Where threads of the process may still act, a circle is not believed before the time is over.
            Error::Timeout { .. } => assert!(words.contains("was in new_group #1 for rank "), "{words}"),
            other => panic!("{other}"),
        }
        assert!(words.contains("/new_groups.rs:"), "no call site: {words}");
        sums_its_members(&group.with_timeout(30 * LIMIT));
    });
}

/// A rank that has left the job, or a group that has failed.
pub fn no_group_is_made_with_who_is_gone(world: &World) {
    world.run(3, |group| {
        if group.rank() == 1 {
            return;
        }
        let error = group.new_group(&[0, 1, 2]).unwrap_err();
        let is_told = matches!(&error, Error::PeerLost { peer, how: Loss::Left, .. } if peer.rank == 1);
        assert!(is_told, "{error}");
    });
    world.run(3, |group| {
        // What one rank does not know, the other tells it.
        if group.rank() == 0 {
            group.abort("on purpose");
        }
        let error = group.new_group(&[0, 1, 2]).unwrap_err();
        let cause = match error {
            Error::Poisoned { cause, .. } => *cause,
            Error::Aborted { peer, reason, .. } => Cause::Aborted { peer, reason },
            other => panic!("{other}"),
        };
        assert!(matches!(&cause, Cause::Aborted { peer, .. } if peer.rank == 0), "{cause}");
    });
}
