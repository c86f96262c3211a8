//! split, and groups that work side by side.

use super::WORLDS;
use crate::World;
use phalanx_core::ReduceOp;
use phalanx_group::ProcessGroup;
use std::collections::HashSet;

/// Odd and even ranks part, in reversed order; a rank without a color stays out. All groups go on working.
pub fn ranks_are_divided_by_color_and_ordered_by_key(world: &World) {
    for world_size in WORLDS {
        world.run(world_size, move |group| {
            let rank = group.rank();
            let halves =
                group.split(Some(rank as u32 % 2), -(rank as i64)).unwrap().expect("it gave a color");
            let members: Vec<usize> = (0..world_size).rev().filter(|r| r % 2 == rank % 2).collect();
            assert_eq!(halves.members(), members);
            assert_eq!(members[halves.rank()], rank);
            sums_its_members(&halves);

            let without_me = group.split((rank != 0).then_some(7), 0).unwrap();
            assert_eq!(without_me.is_none(), rank == 0);
            if let Some(others) = without_me {
                assert_eq!(
                    others.members(),
                    (1..world_size).collect::<Vec<_>>(),
                    "equal keys keep the order"
                );
                sums_its_members(&others);
            }
            sums_its_members(&group);
        });
    }
}

/// Groups of groups name their members by their ranks in the job, and no two groups have the same name.
pub fn groups_divide_again(world: &World) {
    let ids = world.run(8, |group| {
        let rank = group.rank();
        let four = group.split(Some((rank / 4) as u32), 0).unwrap().expect("it gave a color");
        let two = four.split(Some((rank % 2) as u32), -(rank as i64)).unwrap().expect("it gave a color");
        let again = four.split(Some((rank % 2) as u32), -(rank as i64)).unwrap().expect("it gave a color");
        let low = rank / 4 * 4 + rank % 2;
        assert_eq!(two.members(), [low + 2, low]);
        [&group, &four, &two, &again].into_iter().for_each(sums_its_members);
        [group.id(), four.id(), two.id(), again.id()]
    });
    let distinct: HashSet<_> = ids.iter().flatten().collect();
    assert_eq!(distinct.len(), 1 + 2 + 4 + 4, "{ids:?}");
}

/// Rows and columns of a square of ranks: some ranks begin with one, some with the other, and the same tags are
/// used in both.
pub fn groups_work_at_the_same_time_in_different_orders(world: &World) {
    world.run(4, |group| {
        let rank = group.rank();
        let row = group.split(Some(rank as u32 / 2), 0).unwrap().expect("it gave a color");
        let column = group.split(Some(rank as u32 % 2), 0).unwrap().expect("it gave a color");
        for round in 0..50u64 {
            let begin = |of: &ProcessGroup| of.all_reduce_async(vec![rank as u64; 3], ReduceOp::Sum).unwrap();
            let (in_row, in_column) = match (rank as u64 + round) % 3 {
                0 => (begin(&row), begin(&column)),
                _ => {
                    let in_column = begin(&column);
                    (begin(&row), in_column)
                }
            };
            for (of, base) in [(&row, 100), (&column, 200)] {
                let work = of.send_async(vec![base + rank as u64], 1 - of.rank(), round).unwrap();
                let mut from = [0];
                of.recv(&mut from, 1 - of.rank(), round).unwrap();
                assert_eq!(from, [base + of.members()[1 - of.rank()] as u64]);
                work.wait().unwrap();
            }
            assert_eq!(in_column.wait().unwrap(), [2 * (rank as u64 % 2) + 2; 3]);
            assert_eq!(in_row.wait().unwrap(), [4 * (rank as u64 / 2) + 1; 3]);
        }
    });
}

/// Two threads of each rank use one group at the same time: their collectives take turns, and each gets its own messages.
pub fn threads_of_a_rank_take_turns(world: &World) {
    world.run(3, |group| {
        let (next, previous) = ((group.rank() + 1) % 3, (group.rank() + 2) % 3);
        std::thread::scope(|threads| {
            for thread in 0..2 {
                let group = &group;
                threads.spawn(move || {
                    for round in 0..50 {
                        // Whichever of its threads a rank is here with.
                        let mut ones = [1; 100];
                        group.all_reduce(&mut ones, ReduceOp::Sum).unwrap();
                        assert_eq!(ones, [3; 100]);
                        let work = group.send_async(vec![thread, round], next, thread).unwrap();
                        let mut got = [0; 2];
                        group.recv(&mut got, previous, thread).unwrap();
                        assert_eq!(got, [thread, round]);
                        work.wait().unwrap();
                    }
                });
            }
        });
        sums_its_members(&group);
    });
}

/// A group that fails takes no other with it: the rest of the job works on.
pub fn a_group_fails_alone(world: &World) {
    world.run(4, |group| {
        let pair = group.split(Some(group.rank() as u32 / 2), 0).unwrap().expect("it gave a color");
        // An abort also ends what rank 1 is in, and it may still be in `split`.
        group.barrier().unwrap();
        if group.rank() == 0 {
            pair.abort("enough");
        }
        if group.rank() < 2 {
            while pair.barrier().is_ok() {}
        } else {
            sums_its_members(&pair);
        }
        sums_its_members(&group);
    });
}

pub(super) fn sums_its_members(group: &ProcessGroup) {
    let mut sum = [group.members()[group.rank()] as u64; 5];
    group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
    assert_eq!(sum, [group.members().iter().sum::<usize>() as u64; 5]);
}
