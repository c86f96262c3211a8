//! How a program divides its ranks into groups: all of them in one, or some after a split or a call of `new_group`.

use super::random::Random;
use crate::group::{new_group, split};
use phalanx_core::{GroupId, WORLD};

/// A group of a program.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) id: GroupId,
    /// Ranks of the job, in the order of the group.
    pub(super) members: Vec<usize>,
}

/// Groups that are made together. Each rank is in one of them, or in none.
#[derive(Debug)]
pub(super) struct Division {
    pub(super) groups: Vec<Group>,
    /// Which division was divided, and which of its splits this is, from 1; 0 for that of all ranks.
    pub(super) parent: usize,
    pub(super) number: u64,
    /// What each rank says in the split, color and key; nothing where there is none.
    pub(super) said: Vec<(Option<u32>, i64)>,
}

impl Division {
    pub(super) fn world(world_size: usize) -> Self {
        let all = Group { id: WORLD, members: (0..world_size).collect() };
        Self { groups: vec![all], parent: 0, number: 0, said: Vec::new() }
    }

    /// Split `number` of all groups of `parent`.
    pub(super) fn draw(
        random: &mut Random,
        (parent, divided): (usize, &Self),
        number: u64,
        world_size: usize,
    ) -> Self {
        let colors = 1 + random.below(3) as u32;
        let mut say = || {
            let color = (!random.chance(1, 6)).then(|| random.below(colors as usize) as u32);
            (color, random.below(3) as i64 - 1)
        };
        let said: Vec<_> = (0..world_size).map(|_| say()).collect();
        let mut groups = Vec::new();
        for Group { id, members } in &divided.groups {
            for color in 0..colors {
                let mut new: Vec<_> =
                    members.iter().copied().filter(|&rank| said[rank].0 == Some(color)).collect();
                // Stable: of equal keys, those come first that did before.
                new.sort_by_key(|&rank| said[rank].1);
                if !new.is_empty() {
                    groups.push(Group { id: split::name(*id, number, color), members: new });
                }
            }
        }
        Self { groups, parent, number, said }
    }

    /// A group that some of all ranks make, for the time `number` that they make one of just these.
    pub(super) fn of_some(members: Vec<usize>, number: u64) -> Self {
        let group = Group { id: new_group::name(WORLD, number, &members), members };
        Self { groups: vec![group], parent: 0, number, said: Vec::new() }
    }

    /// The place of the group in which `rank` is, if it is in one.
    pub(super) fn place_of(&self, rank: usize) -> Option<usize> {
        self.groups.iter().position(|group| group.members.contains(&rank))
    }

    pub(super) fn group_of(&self, rank: usize) -> Option<&Group> {
        self.groups.iter().find(|group| group.members.contains(&rank))
    }
}

impl Group {
    /// The rank in this group of a rank of the job that is in it.
    pub(super) fn rank_of(&self, of_job: usize) -> usize {
        self.members.iter().position(|&member| member == of_job).expect("it is a member")
    }
}
