//! Which host a rank runs on: pure.
//!
//! Each host has as many places as its command was given (`-n`). Ranks take them in the order of the hosts. In an elastic job there may be more
//! places than ranks: a rank whose host is lost takes one of those that are free.

use std::net::IpAddr;

/// A host that takes part in a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) name: String,
    /// How many ranks it has room for.
    pub(crate) places: usize,
    pub(crate) cores: usize,
    /// The address at which its ranks reach the launcher's servers.
    pub(crate) leader: IpAddr,
}

/// What a host has for ranks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) places: usize,
    pub(crate) cores: usize,
}

/// A place for a rank: on which host, and the number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) node: usize,
    pub(crate) local: usize,
}

/// The places of `ranks` ranks on these hosts, in rank order; `None` if there are too few.
pub(crate) fn places(hosts: &[(usize, Host)], ranks: usize) -> Option<Vec<Place>> {
    let all: Vec<Place> = every(hosts).take(ranks).collect();
    (all.len() == ranks).then_some(all)
}

/// Where a rank may be started anew whose process was at `before`: there, if that host is still here; else at a place that none of `taken` has.
pub(crate) fn next(
    hosts: &[(usize, Host)],
    before: Place,
    taken: impl Iterator<Item = Place> + Clone,
) -> Option<Place> {
    let is_free = |place: &Place| taken.clone().all(|other| other != *place);
    let mut free = every(hosts).filter(is_free);
    let again = every(hosts).find(|place| *place == before).filter(is_free);
    again.or_else(|| free.next())
}

fn every(hosts: &[(usize, Host)]) -> impl Iterator<Item = Place> {
    hosts.iter().flat_map(|(node, host)| (0..host.places).map(|local| Place { node: *node, local }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(places: &[(usize, usize)]) -> Vec<(usize, Host)> {
        let host = |places| Host { name: "h".into(), places, cores: 2, leader: IpAddr::from([127, 0, 0, 1]) };
        places.iter().map(|&(node, places)| (node, host(places))).collect()
    }

    const fn at(node: usize, local: usize) -> Place {
        Place { node, local }
    }

    #[test]
    fn hosts_may_have_different_numbers_of_ranks() {
        assert_eq!(places(&hosts(&[(0, 3), (1, 1)]), 4).unwrap(), [at(0, 0), at(0, 1), at(0, 2), at(1, 0)]);
        assert_eq!(places(&hosts(&[(0, 3), (1, 1)]), 5), None);
    }

    #[test]
    fn a_rank_goes_on_where_it_was_or_where_there_is_room() {
        let all = hosts(&[(0, 2), (1, 2), (2, 1)]);
        let taken = [at(0, 0), at(0, 1), at(1, 1)];
        assert_eq!(next(&all, at(1, 0), taken.into_iter()), Some(at(1, 0)));
        let left = hosts(&[(0, 2), (2, 1)]);
        assert_eq!(next(&left, at(1, 0), taken.into_iter()), Some(at(2, 0)));
        assert_eq!(next(&left, at(1, 1), [at(0, 0), at(0, 1), at(2, 0)].into_iter()), None);
    }
}
