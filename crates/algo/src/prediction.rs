//! What operations would cost in a world that is not here: the price of every way, what it carries, and which one is taken.

use crate::{
    Algorithm, Cost, LevelsCall, LevelsWay, Link, MemoryCall, MemoryWay, Selector, SumKind, Traffic, Volume,
    Way,
};
use phalanx_core::OpKind;
use std::collections::BTreeMap;

/// A world of hosts with equally many ranks; the last one may have fewer.
///
/// Each rank has a core of its own. The ranks of a host are consecutive, share memory, and share one network card, which sends and
/// receives at the bandwidth of the network at the same time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct World {
    /// All ranks.
    pub ranks: usize,
    /// Ranks on each host but the last.
    pub per_host: usize,
    /// Prices of messages between hosts; the bandwidth is that of a card.
    pub network: Link,
    /// Prices of flags and copies inside a host.
    pub inside: Link,
}

/// What an operation would cost in one way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// The way.
    pub choice: Choice,
    /// Predicted time.
    pub seconds: f64,
    /// Most bytes that one rank sends, to ranks of its host and of others; in shared memory, and inside the hosts of a way of two levels,
    /// nothing is sent.
    pub sent: f64,
    /// Most messages that one rank sends, or receives if that is more.
    pub messages: f64,
    /// Most bytes that one host's card sends, or receives if that is more.
    pub card: f64,
    /// Transfers, and in shared memory exchanges of flags, that follow one another on the longest path.
    pub rounds: f64,
}

/// A way, and what is to be known besides to know what is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Choice {
    /// The way.
    pub way: Way,
    /// The algorithm between hosts, where there are two levels.
    pub across: Option<Algorithm>,
}

impl World {
    /// Hosts with at least one rank.
    ///
    /// # Examples
    /// ```
    /// use phalanx_algo::{Link, World};
    /// let world = World { ranks: 17, per_host: 8, network: Link::TCP, inside: Link::MEMORY };
    /// assert_eq!(world.hosts(), 3);
    /// ```
    pub fn hosts(&self) -> usize {
        self.ranks.div_ceil(self.per_host)
    }

    fn is_even(&self) -> bool {
        self.ranks.is_multiple_of(self.per_host)
    }

    fn has_levels(&self) -> bool {
        (2..self.ranks).contains(&self.hosts())
    }

    fn selector(&self) -> Selector {
        let link = if self.hosts() == 1 { self.inside } else { self.network };
        Selector { link, ..Selector::default() }
    }

    fn call(&self, op: OpKind, bytes: usize) -> LevelsCall {
        LevelsCall { is_even: self.is_even(), is_in_blocks: self.is_even(), ..LevelsCall::new(op, bytes) }
    }

    /// The way that a group takes for `op` on a buffer of `bytes` (all blocks together), if none is forced.
    ///
    /// # Panics
    /// If `op` is not a collective, or there are no ranks.
    ///
    /// # Examples
    /// ```
    /// use phalanx_algo::{Link, World};
    /// use phalanx_core::OpKind;
    /// let world = World { ranks: 10_000, per_host: 8, network: Link::TCP, inside: Link::MEMORY };
    /// let names = [64, 1 << 20].map(|bytes| world.choose(OpKind::AllReduce, bytes).way.name());
    /// assert_eq!(names, ["two_level/speakers", "two_level/slices"]);
    /// ```
    pub fn choose(&self, op: OpKind, bytes: usize) -> Choice {
        if self.hosts() == 1 && self.ranks > 1 {
            let way = Way::Memory(op, MemoryCall::new(op, bytes, self.ranks).recommended());
            return Choice { way, across: None };
        }
        if self.has_levels() {
            let way = self.call(op, bytes).recommended();
            if let Some(parts) = way.parts(op, (self.hosts(), self.per_host), bytes) {
                let across = Some(self.selector().select(parts.across.0, parts.across.1, self.hosts()));
                return Choice { way: Way::Levels(op, way), across };
            }
        }
        Choice { way: Way::Messages(self.selector().select(op, bytes, self.ranks)), across: None }
    }

    /// Whether `choice` can be the one for plain sums, and for what is no sum: some algorithms are only for half types, for sums in rank order, or for
    /// more ranks.
    ///
    /// # Examples
    /// ```
    /// use phalanx_algo::{Algorithm, Choice, Link, Way, World};
    /// let world = World { ranks: 8, per_host: 1, network: Link::TCP, inside: Link::MEMORY };
    /// let can = |algorithm| world.can_choose(&Choice { way: Way::Messages(algorithm), across: None });
    /// assert!(can(Algorithm::AllReduceRing) && !can(Algorithm::AllReduceGathered));
    /// ```
    pub fn can_choose(&self, choice: &Choice) -> bool {
        match choice.way {
            Way::Messages(algorithm) => SumKind::Plain.considers(algorithm, self.ranks),
            Way::Memory(..) | Way::Levels(..) => true,
        }
    }

    /// The sizes at which the choice changes, between the smallest and the largest of `sizes`, which ascend: what is taken for the smallest, then each
    /// size from which something else is. A choice that holds for less than the step from one size to the next may be left out.
    ///
    /// # Panics
    /// As [`choose`](Self::choose) does.
    ///
    /// # Examples
    /// ```
    /// use phalanx_algo::{Link, SLICED_BYTES_MIN, World};
    /// use phalanx_core::OpKind;
    /// let world = World { ranks: 64, per_host: 8, network: Link::TCP, inside: Link::MEMORY };
    /// let changes = world.changes(OpKind::AllReduce, &[4, 64 << 10]);
    /// assert!(changes.iter().any(|(bytes, choice)| *bytes == SLICED_BYTES_MIN && choice.way.name() == "two_level/slices"));
    /// ```
    pub fn changes(&self, op: OpKind, sizes: &[usize]) -> Vec<(usize, Choice)> {
        let mut changes: Vec<_> =
            sizes.first().map(|&bytes| (bytes, self.choose(op, bytes))).into_iter().collect();
        for pair in sizes.windows(2) {
            let mut from = pair[0];
            // Prices count whole bytes of a block, so near a border they may differ back and forth.
            for _ in 0..4 {
                let before = self.choose(op, from);
                if before == self.choose(op, pair[1]) {
                    break;
                }
                let (mut low, mut high) = (from, pair[1]);
                while high - low > 1 {
                    let middle = low + (high - low) / 2;
                    if self.choose(op, middle) == before { low = middle } else { high = middle }
                }
                changes.push((high, self.choose(op, high)));
                from = high;
            }
        }
        changes
    }
}

/// Predicts what the ways of a world cost, for one size after the other. It keeps what does not depend on the size.
#[derive(Debug, Clone)]
pub struct Predictor {
    world: World,
    traffic: BTreeMap<(Algorithm, usize), Traffic>,
}

impl Predictor {
    /// For a world.
    ///
    /// # Panics
    /// If there are no ranks, or none on a host.
    ///
    /// # Examples
    /// ```
    /// use phalanx_algo::{Link, Predictor, World};
    /// use phalanx_core::OpKind;
    /// let world = World { ranks: 10_000, per_host: 8, network: Link::TCP, inside: Link::MEMORY };
    /// let all = Predictor::new(world).predict(OpKind::AllReduce, 64 << 20);
    /// let ring = all.iter().find(|one| one.choice.way.name() == "ring").unwrap();
    /// assert_eq!((ring.messages, ring.rounds), (19_998.0, 19_998.0));
    /// ```
    pub fn new(world: World) -> Self {
        assert!(world.ranks > 0 && world.per_host > 0, "{world:?}");
        Self { world, traffic: BTreeMap::new() }
    }

    /// Every way of `op` on a buffer of `bytes` (all blocks together, evenly dealt) that can be taken there: by messages among all ranks, in shared memory
    /// where there is one host, on two levels where there are several of several ranks. Rank 0 is the root.
    ///
    /// # Cost
    /// For the first size time in proportion to P log P, for others to the number of ways.
    ///
    /// # Panics
    /// If `op` is not a collective.
    ///
    /// # Examples
    /// As of [`new`](Self::new).
    pub fn predict(&mut self, op: OpKind, bytes: usize) -> Vec<Prediction> {
        let world = self.world;
        let mut all = Vec::new();
        for way in Way::of(op) {
            match way {
                Way::Messages(algorithm) if algorithm.supports(world.ranks) => {
                    all.push(self.by_messages(algorithm, bytes));
                }
                Way::Memory(op, way) if world.hosts() == 1 && world.ranks > 1 => {
                    if MemoryCall::new(op, bytes, world.ranks).obstacle(way).is_none() {
                        all.push(in_memory(op, way, bytes, &world));
                    }
                }
                Way::Levels(op, way)
                    if world.has_levels() && world.call(op, bytes).obstacle(way).is_none() =>
                {
                    all.extend(self.on_two_levels(op, way, bytes));
                }
                Way::Messages(_) | Way::Memory(..) | Way::Levels(..) => {}
            }
        }
        all
    }

    /// Messages among all ranks.
    pub(crate) fn by_messages(&mut self, algorithm: Algorithm, bytes: usize) -> Prediction {
        let World { ranks, per_host, .. } = self.world;
        let choice = Choice { way: Way::Messages(algorithm), across: None };
        self.messages(choice, algorithm, (ranks, per_host), bytes, 1)
    }

    /// `None` for [`LevelsWay::Direct`], which is one of messages.
    pub(crate) fn on_two_levels(&mut self, op: OpKind, way: LevelsWay, bytes: usize) -> Option<Prediction> {
        let world = self.world;
        let hosts = world.hosts();
        let parts = way.parts(op, (hosts, world.per_host), bytes)?;
        let (across_op, across_bytes) = parts.across;
        let algorithm = world.selector().select(across_op, across_bytes, hosts);
        let choice = Choice { way: Way::Levels(op, way), across: Some(algorithm) };
        let mut prediction = self.messages(choice, algorithm, (hosts, 1), across_bytes, parts.at_once);
        for (op, bytes, times) in parts.inside {
            let way = MemoryCall::new(op, bytes, world.per_host).recommended();
            prediction.seconds += times * way.seconds(op, world.per_host, bytes, &world.inside);
            prediction.rounds += times * way.cost(op, volume(world.per_host, bytes)).rounds;
        }
        Some(prediction)
    }

    /// Messages among `ranks`, of which `per_host` share a card with each other, and with those of `at_once` − 1 others who do the same.
    fn messages(
        &mut self,
        choice: Choice,
        algorithm: Algorithm,
        (ranks, per_host): (usize, usize),
        bytes: usize,
        at_once: usize,
    ) -> Prediction {
        let traffic =
            *self.traffic.entry((algorithm, ranks)).or_insert_with(|| algorithm.traffic(ranks, per_host));
        let len = bytes as f64;
        let cost = algorithm.cost(volume(ranks, bytes));
        let card = traffic.card * len * at_once as f64;
        let link = self.world.selector().link;
        // What ranks and their card do one after the other takes as long as whichever has more to carry.
        let shared = Cost { moved: cost.moved.max(card), ..cost };
        Prediction {
            choice,
            seconds: link.seconds(ranks, &shared),
            sent: traffic.sent * len,
            messages: traffic.messages,
            card,
            rounds: cost.rounds,
        }
    }
}

fn in_memory(op: OpKind, way: MemoryWay, bytes: usize, world: &World) -> Prediction {
    Prediction {
        choice: Choice { way: Way::Memory(op, way), across: None },
        seconds: way.seconds(op, world.ranks, bytes, &world.inside),
        sent: 0.0,
        messages: 0.0,
        card: 0.0,
        rounds: way.cost(op, volume(world.ranks, bytes)).rounds,
    }
}

fn volume(world_size: usize, bytes: usize) -> Volume {
    let len = bytes as f64;
    Volume { world_size, len, block: (len / world_size as f64).ceil() }
}

impl Choice {
    /// Its name among those of its operation: `ring`, `two_level/slices over circulant`.
    ///
    /// # Examples
    /// ```
    /// use phalanx_algo::{Algorithm, Choice, Way};
    /// assert_eq!(Choice { way: Way::Messages(Algorithm::AllReduceRing), across: None }.name(), "ring");
    /// ```
    pub fn name(&self) -> String {
        match self.across {
            None => self.way.name(),
            Some(algorithm) => format!("{} over {}", self.way.name(), algorithm.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world(ranks: usize, per_host: usize) -> World {
        World { ranks, per_host, network: Link::TCP, inside: Link::MEMORY }
    }

    #[test]
    fn what_is_chosen_is_among_what_is_predicted() {
        for (ranks, per_host) in
            [(1, 1), (1, 8), (2, 1), (8, 8), (9, 8), (16, 8), (63, 7), (100, 8), (100, 1)]
        {
            let mut predictor = Predictor::new(world(ranks, per_host));
            let ops: std::collections::BTreeSet<_> = Algorithm::ALL.iter().map(|a| a.op()).collect();
            for op in ops {
                for bytes in [1, 1000, 1 << 20] {
                    let (all, chosen) =
                        (predictor.predict(op, bytes), world(ranks, per_host).choose(op, bytes));
                    assert!(
                        all.iter().any(|one| one.choice == chosen),
                        "{op} {ranks} {per_host}: {chosen:?}"
                    );
                    assert!(all.iter().all(|one| one.seconds.is_finite() && one.seconds >= 0.0), "{all:?}");
                    assert!(all.iter().all(|one| one.card == 0.0 || ranks > per_host), "{all:?}");
                }
            }
        }
    }

    #[test]
    fn ranks_of_a_host_share_its_card() {
        let seconds = |per_host: usize, name: &str| {
            let all = Predictor::new(world(1024, per_host)).predict(OpKind::AllToAll, 1 << 30);
            all.iter().find(|one| one.choice.way.name() == name).unwrap().seconds
        };
        let (alone, eight) = (seconds(1, "pairwise"), seconds(8, "pairwise"));
        assert!(eight > 1.5 * alone, "{eight} {alone}");
        // Each host's sum crosses its card once, whether one rank sends it or each a slice.
        let all = Predictor::new(world(1024, 8)).predict(OpKind::AllReduce, 64 << 20);
        let card = |name: &str| all.iter().find(|one| one.choice.way.name() == name).unwrap().card;
        assert_eq!(card("two_level/slices"), 2.0 * 127.0 / 128.0 * f64::from(64 << 20));
        assert_eq!(card("ring"), 2.0 * 1023.0 / 1024.0 * f64::from(64 << 20));
        assert!(card("halving_doubling") > 7.0 * card("ring"), "{}", card("halving_doubling"));
    }

    #[test]
    fn a_change_is_named_with_the_first_size_behind_it() {
        let world = world(1000, 1);
        let sizes: Vec<_> = (2..=28).step_by(2).map(|shift| 1 << shift).collect();
        for op in [OpKind::AllReduce, OpKind::Broadcast, OpKind::Gather] {
            let changes = world.changes(op, &sizes);
            assert!(changes.len() > 1, "{op}: {changes:?}");
            for pair in changes.windows(2) {
                assert!(pair[0].0 < pair[1].0 && pair[0].1 != pair[1].1);
                let at = pair[1].0;
                assert_eq!((world.choose(op, at - 1), world.choose(op, at)), (pair[0].1, pair[1].1));
            }
        }
    }
}
