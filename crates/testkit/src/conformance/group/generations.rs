//! Going on after a loss: the survivors make a new group, which works as any other.

use super::failure::at_once;
use super::losses::{panic_with, until_failure};
use crate::World;
use phalanx_core::{Error, ReduceOp};
use phalanx_group::ProcessGroup;
use std::sync::Barrier;

/// The sum of what the ranks are called, from the group under test.
fn sum(group: &ProcessGroup, name: u64) -> u64 {
    let mut sum = vec![name; 10_000];
    group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    assert!(sum.iter().all(|s| *s == sum[0]));
    sum[0]
}

/// Of four ranks one is lost, then another: the others go on each time, in their old order, with right results.
pub fn survivors_go_on_in_a_smaller_group(world: &World) {
    at_once(&[(0, 1), (0, 3), (3, 0), (1, 2)], |&(first, second)| {
        // So that nobody is lost before the others have their sums.
        let together = [Barrier::new(4), Barrier::new(3)];
        world.run(4, move |group| {
            let name = group.rank();
            let bit = |rank: usize| 1u64 << (4 * rank);
            let (mut group, mut left) = (group, vec![0, 1, 2, 3]);
            for (generation, lost) in [first, second].into_iter().enumerate() {
                assert_eq!(sum(&group, bit(name)), left.iter().map(|r| bit(*r)).sum::<u64>());
                together[generation].wait();
                if name == lost {
                    return panic_with(group);
                }
                until_failure(&group);
                group = group.shrink().unwrap();
                left.retain(|r| *r != lost);
                assert_eq!((group.generation(), group.world_size()), (generation as u64 + 1, left.len()));
                assert_eq!(left.get(group.rank()), Some(&name), "ranks keep their order");
            }
            assert_eq!(sum(&group, bit(name)), left.iter().map(|r| bit(*r)).sum::<u64>());
            let alone = group.split(Some(group.rank() as u32), 0).unwrap().unwrap();
            assert_eq!(sum(&alone, bit(name)), bit(name));
            group.finalize().unwrap();
        });
    });
}

/// Nobody is lost, or all are told to begin anew.
pub fn a_group_is_made_anew_without_a_loss(world: &World) {
    for aborted in [false, true] {
        world.run(3, move |group| {
            if aborted {
                let told = if group.rank() == 1 {
                    group.abort("to begin anew");
                    group.barrier()
                } else {
                    Err(until_failure(&group))
                };
                assert!(told.is_err());
            }
            let again = group.shrink().unwrap();
            assert_eq!((again.rank(), again.world_size()), (group.rank(), 3));
            drop(group);
            assert_eq!(sum(&again, 1), 3);
            again.finalize().unwrap();
        });
    }
}

/// Only the group of all ranks knows how these came together; and nobody replaces anybody here.
pub fn a_subgroup_cannot_be_made_anew(world: &World) {
    world.run(2, |group| {
        let part = group.split(Some(0), 0).unwrap().unwrap();
        let refused = part.shrink().unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        let refused = group.rejoin().unwrap_err();
        assert!(matches!(refused, Error::Misuse { .. }), "{refused}");
        assert_eq!(sum(&part, 1), 2);
        group.finalize().unwrap();
    });
}
