//! Which members of a group share a host.

use crate::group::backend::counted;
use std::ops::Range;

/// The hosts of a group, in the order of their first members. Members are ranks of the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hosts {
    /// The members on each host, in group order.
    members: Vec<Vec<usize>>,
    /// For each member its host and its place there.
    places: Vec<(usize, usize)>,
}

impl Hosts {
    /// The hosts of `members` (ranks of the job), as `host_of` names them; a rank of which it knows none has a host of its own.
    pub(crate) fn of<'h>(members: &[usize], host_of: impl Fn(usize) -> Option<&'h str>) -> Self {
        let mut names: Vec<Option<&str>> = Vec::new();
        let mut hosts = Self { members: Vec::new(), places: Vec::new() };
        for (rank, &member) in members.iter().enumerate() {
            let name = host_of(member);
            let known = names.iter().position(|known| name.is_some() && *known == name);
            let host = known.unwrap_or_else(|| {
                names.push(name);
                hosts.members.push(Vec::new());
                names.len() - 1
            });
            hosts.places.push((host, hosts.members[host].len()));
            hosts.members[host].push(rank);
        }
        hosts
    }

    /// Several hosts, at least one of them with several members.
    pub(crate) fn is_worth_two_levels(&self) -> bool {
        (2..self.places.len()).contains(&self.len())
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// The host of a member, and its place among those there.
    pub(crate) fn place(&self, rank: usize) -> (usize, usize) {
        self.places[rank]
    }

    /// The members on one host.
    pub(crate) fn members(&self, host: usize) -> &[usize] {
        &self.members[host]
    }

    /// Members on the host that has most.
    pub(crate) fn most_members(&self) -> usize {
        self.members.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Members on each host, if all have equally many.
    pub(crate) fn per_host(&self) -> Option<usize> {
        let most = self.most_members();
        self.members.iter().all(|m| m.len() == most).then_some(most)
    }

    /// Members on each host, if all have equally many and each host's stand together in the group.
    pub(crate) fn in_blocks_of(&self) -> Option<usize> {
        self.places.is_sorted().then(|| self.per_host())?
    }

    /// The members at one place on each host that has one, in the order of the hosts.
    pub(crate) fn counterparts(&self, index: usize) -> Vec<usize> {
        self.members.iter().filter_map(|members| members.get(index).copied()).collect()
    }

    /// How many members where.
    pub(crate) fn describe(&self) -> String {
        let (ranks, hosts) = (self.places.len(), counted(self.len(), "host"));
        match self.per_host() {
            Some(each) => format!("{hosts} x {}", counted(each, "rank")),
            None => format!("{} on {hosts}", counted(ranks, "rank")),
        }
    }
}

/// The ranks of host `host` where each has `per_host`, one after the other.
pub(crate) fn block_of(host: usize, per_host: usize) -> Range<usize> {
    host * per_host..(host + 1) * per_host
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(names: &[&str]) -> Hosts {
        let members: Vec<usize> = (0..names.len()).collect();
        Hosts::of(&members, |member| Some(names[member]).filter(|name| !name.is_empty()))
    }

    #[test]
    fn equal_hosts_one_after_the_other() {
        let hosts = hosts(&["a", "a", "b", "b", "c", "c"]);
        assert_eq!((hosts.len(), hosts.per_host(), hosts.in_blocks_of()), (3, Some(2), Some(2)));
        assert_eq!(
            (hosts.place(3), hosts.members(2), hosts.counterparts(1)),
            ((1, 1), &[4, 5][..], vec![1, 3, 5])
        );
        assert!(hosts.is_worth_two_levels());
        assert_eq!(hosts.describe(), "3 hosts x 2 ranks");
    }

    #[test]
    fn ranks_dealt_round() {
        let hosts = hosts(&["a", "b", "a", "b"]);
        assert_eq!((hosts.per_host(), hosts.in_blocks_of()), (Some(2), None));
        assert_eq!((hosts.members(1), hosts.counterparts(0)), (&[1, 3][..], vec![0, 1]));
    }

    #[test]
    fn unlike_hosts() {
        let hosts = hosts(&["a", "a", "b"]);
        assert_eq!((hosts.per_host(), hosts.in_blocks_of(), hosts.most_members()), (None, None, 2));
        assert!(hosts.is_worth_two_levels());
        assert_eq!(hosts.describe(), "3 ranks on 2 hosts");
    }

    #[test]
    fn two_levels_need_two_of_both() {
        assert!(!hosts(&["a", "a", "a"]).is_worth_two_levels());
        assert!(!hosts(&["a", "b", "c"]).is_worth_two_levels());
        assert!(!hosts(&["", "", ""]).is_worth_two_levels(), "hosts without a name are not one");
        assert!(!hosts(&["a"]).is_worth_two_levels());
    }
}
