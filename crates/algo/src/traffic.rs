//! The traffic of an algorithm without its schedules: what ranks and network cards of large worlds carry.
//!
//! A schedule has as many steps as its rank has messages, so those of ten thousand ranks on a ring are ten thousand times twenty thousand.
//! Here an algorithm says for one rank in a few words what it sends, in parts of the buffer. The tests hold that against the schedules of all
//! ranks of all worlds of 2 to 64.

use crate::Algorithm;
use crate::circulant_graph::{Circulant, pieces};
use crate::plan::ceil_log2;
use crate::power_of_two::core_of;

/// What an algorithm makes ranks and hosts carry. Lengths are parts of the whole buffer: 0.5 is half of it.
///
/// Exact where blocks are even. Where they are not, and where the buffer has fewer elements than blocks, each message may be an element
/// longer or shorter, and those of no elements are left out.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Traffic {
    /// The most that one rank sends.
    pub sent: f64,
    /// The most messages that one rank sends, or receives if that is more.
    pub messages: f64,
    /// The most that leaves one host, or arrives there if that is more: its network card carries both at once.
    pub card: f64,
}

/// What a rank sends to a peer in the course of a collective.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sent {
    to: To,
    messages: f64,
    /// Altogether, in parts of the whole buffer.
    share: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    Rank(usize),
    /// To each of the other ranks as much.
    Each,
}

impl Algorithm {
    /// What ranks, and hosts with `per_host` consecutive ranks each (the last one may have fewer), have to carry. Rank 0 is the root.
    ///
    /// # Cost
    /// Time in proportion to P log P at most, and to the ranks of a host where all ranks do alike.
    ///
    /// # Panics
    /// If there are no ranks, none on a host, or the algorithm does not [support](Self::supports) so many.
    ///
    /// # Examples
    /// ```
    /// use phalanx_algo::Algorithm;
    /// // Of 4 hosts with 2 ranks, a ring sends each block over each card once in each direction and round.
    /// let traffic = Algorithm::AllReduceRing.traffic(8, 2);
    /// assert_eq!((traffic.messages, traffic.sent, traffic.card), (14.0, 1.75, 1.75));
    /// ```
    pub fn traffic(self, world_size: usize, per_host: usize) -> Traffic {
        assert!(
            per_host > 0 && self.supports(world_size),
            "{self}: {world_size} ranks, {per_host} to a host"
        );
        if self == Self::BroadcastCirculant {
            // Each piece goes the way back that a reduction brings it, and the root sends in every round.
            let back = Self::ReduceCirculant.traffic(world_size, per_host);
            let pieces = pieces(world_size, usize::MAX).max(1) as f64;
            let rounds = f64::from(ceil_log2(world_size)) - 1.0 + pieces;
            return Traffic { sent: back.sent * rounds / pieces, ..back };
        }
        if self.is_circular() {
            circular(self, world_size, per_host)
        } else {
            any(self, world_size, per_host)
        }
    }

    /// Whether what rank r sends to rank s, rank r + 1 sends to rank s + 1, going round the circle: so one rank stands for all, and one host for
    /// all of its size.
    fn is_circular(self) -> bool {
        match self {
            Self::AllReduceRing
            | Self::AllReduceCirculant
            | Self::AllReducePairwise
            | Self::AllReduceGathered
            | Self::ReduceScatterRing
            | Self::ReduceScatterCirculant
            | Self::ReduceScatterPairwise
            | Self::AllGatherRing
            | Self::AllGatherBruck
            | Self::AllToAllPairwise
            | Self::BarrierDissemination => true,
            Self::AllReduceFlat
            | Self::AllReduceRecursiveDoubling
            | Self::AllReduceHalvingDoubling
            | Self::ReduceScatterHalving
            | Self::AllGatherRecursiveDoubling
            | Self::BroadcastFlat
            | Self::BroadcastBinomial
            | Self::BroadcastScatterAllGather
            | Self::BroadcastChain
            | Self::BroadcastCirculant
            | Self::ReduceBinomial
            | Self::ReduceReduceScatterGather
            | Self::ReduceFlat
            | Self::ReducePairwiseGather
            | Self::ReduceCirculant
            | Self::GatherFlat
            | Self::GatherBinomial
            | Self::ScatterFlat
            | Self::ScatterBinomial
            | Self::BarrierCentral => false,
        }
    }

    /// All that `rank` sends.
    fn sends(self, rank: usize, world_size: usize, to: &mut impl FnMut(Sent)) {
        let block = 1.0 / world_size as f64;
        let place = Place { rank, world_size };
        let others = world_size as f64 - 1.0;
        match self {
            Self::AllReduceFlat => {
                place.root_to_each(1.0, to);
                place.each_to_root(1.0, to);
            }
            Self::AllReduceRecursiveDoubling => place.folded(to, |core, to| {
                core.partners(|partner, _| to(Sent { to: partner, messages: 1.0, share: 1.0 }));
            }),
            Self::AllReduceHalvingDoubling => place.folded(to, |core, to| {
                let share = |distance| 2.0 * distance / core.world_size as f64;
                core.partners(|to_, distance| to(Sent { to: to_, messages: 2.0, share: share(distance) }));
            }),
            Self::AllReduceRing => place.ring(2.0 * others, 2.0 * others * block, to),
            Self::AllReduceCirculant => {
                place.circulant(block, 1, to);
                place.circulant(block, world_size - 1, to);
            }
            Self::AllReducePairwise => place.each(2.0, 2.0 * block, to),
            Self::AllReduceGathered => place.circulant(1.0, world_size - 1, to),
            Self::ReduceScatterRing | Self::AllGatherRing => place.ring(others, others * block, to),
            Self::ReduceScatterHalving | Self::AllGatherRecursiveDoubling => {
                place.partners(|to_, distance| to(Sent { to: to_, messages: 1.0, share: distance * block }));
            }
            Self::ReduceScatterCirculant => place.circulant(block, 1, to),
            Self::AllGatherBruck => place.circulant(block, world_size - 1, to),
            Self::ReduceScatterPairwise | Self::AllToAllPairwise => place.each(1.0, block, to),
            Self::BroadcastFlat => place.root_to_each(1.0, to),
            Self::BroadcastBinomial => place.down_the_tree(|_| 1.0, to),
            Self::BroadcastScatterAllGather => {
                place.down_the_tree(|size| size * block, to);
                place.circulant(block, world_size - 1, to);
            }
            Self::BroadcastChain if rank + 1 < world_size => {
                let pieces = crate::broadcast::chain::PIECES_A_RANK * world_size;
                to(Sent { to: To::Rank(rank + 1), messages: pieces as f64, share: 1.0 });
            }
            Self::BroadcastChain => {}
            Self::BroadcastCirculant => {
                let graph = Circulant::new(world_size);
                place.in_pieces(&graph, &graph.sent(rank), |k| graph.next(rank, k), |peer| peer > 0, to);
            }
            Self::ReduceCirculant => {
                let graph = Circulant::new(world_size);
                place.in_pieces(&graph, &graph.received(rank), |k| graph.previous(rank, k), |_| rank > 0, to);
            }
            Self::ReduceBinomial => place.up_the_tree(|_| 1.0, to),
            Self::ReduceReduceScatterGather => {
                place.circulant(block, 1, to);
                place.up_the_tree(|size| size * block, to);
            }
            Self::ReduceFlat => place.each_to_root(1.0, to),
            Self::ReducePairwiseGather => {
                place.each(1.0, block, to);
                place.each_to_root(block, to);
            }
            Self::GatherFlat => place.each_to_root(block, to),
            Self::GatherBinomial => place.up_the_tree(|size| size * block, to),
            Self::ScatterFlat => place.root_to_each(block, to),
            Self::ScatterBinomial => place.down_the_tree(|size| size * block, to),
            Self::BarrierCentral => {
                place.root_to_each(0.0, to);
                place.each_to_root(0.0, to);
            }
            Self::BarrierDissemination => place.circulant(0.0, 1, to),
        }
    }
}

/// A rank among all. Rank 0 is the root.
#[derive(Clone, Copy)]
struct Place {
    rank: usize,
    world_size: usize,
}

impl Place {
    fn ring(self, messages: f64, share: f64, to: &mut impl FnMut(Sent)) {
        if self.world_size > 1 {
            to(Sent { to: To::Rank((self.rank + 1) % self.world_size), messages, share });
        }
    }

    fn each(self, messages: f64, share: f64, to: &mut impl FnMut(Sent)) {
        to(Sent { to: To::Each, messages, share });
    }

    fn root_to_each(self, share: f64, to: &mut impl FnMut(Sent)) {
        if self.rank == 0 {
            self.each(1.0, share, to);
        }
    }

    fn each_to_root(self, share: f64, to: &mut impl FnMut(Sent)) {
        if self.rank > 0 {
            to(Sent { to: To::Rank(0), messages: 1.0, share });
        }
    }

    /// To the ranks at distance 1, 2, 4, …, which differ in one bit. For a power of two of ranks.
    fn partners(self, mut to: impl FnMut(To, f64)) {
        for round in 0..self.world_size.ilog2() {
            to(To::Rank(self.rank ^ (1 << round)), f64::from(1u32 << round));
        }
    }

    /// At distance 1, 2, 4, … that many blocks of length `block`, to the ranks after this one, or with `direction` P − 1 to those before.
    fn circulant(self, block: f64, direction: usize, to: &mut impl FnMut(Sent)) {
        let Self { rank, world_size } = self;
        let distances = std::iter::successors(Some(1), |distance| Some(2 * distance));
        for distance in distances.take_while(|distance| *distance < world_size) {
            let signed = if direction == 1 { distance } else { world_size - distance };
            let count = distance.min(world_size - distance) as f64;
            to(Sent { to: To::Rank((rank + signed) % world_size), messages: 1.0, share: count * block });
        }
    }

    /// Ranks beyond a power of two hand all they have to one of the first, and get all back.
    fn folded<F: FnMut(Sent)>(self, to: &mut F, core: impl FnOnce(Self, &mut F)) {
        let Self { rank, world_size } = self;
        let (core_size, _) = core_of(world_size);
        let whole = |peer| Sent { to: To::Rank(peer), messages: 1.0, share: 1.0 };
        if rank >= core_size {
            return to(whole(rank - core_size));
        }
        if rank + core_size < world_size {
            to(whole(rank + core_size));
        }
        core(Self { rank, world_size: core_size }, to);
    }

    /// Along a circulant graph: the pieces `blocks`, to those ranks among `peer`s that `takes` names.
    fn in_pieces(
        self,
        graph: &Circulant,
        blocks: &[isize],
        peer: impl Fn(usize) -> usize,
        takes: impl Fn(usize) -> bool,
        to: &mut impl FnMut(Sent),
    ) {
        let pieces = pieces(self.world_size, usize::MAX);
        if pieces == 0 {
            return;
        }
        let mut counts = vec![0.0; graph.q()];
        for (k, piece) in graph.rounds(pieces, blocks) {
            if piece.is_some() {
                counts[k] += 1.0;
            }
        }
        for (k, messages) in counts.into_iter().enumerate().filter(|(k, _)| takes(peer(*k))) {
            to(Sent { to: To::Rank(peer(k)), messages, share: messages / pieces as f64 });
        }
    }

    /// What this rank sends its children in the binomial tree; `share` of a subtree's size.
    fn down_the_tree(self, share: impl Fn(f64) -> f64, to: &mut impl FnMut(Sent)) {
        let Self { rank, world_size } = self;
        let reach = if rank == 0 { world_size } else { self.reach() };
        let distances = std::iter::successors(Some(1), |distance| Some(2 * distance));
        for distance in distances.take_while(|distance| *distance < reach && rank + distance < world_size) {
            let size = distance.min(world_size - rank - distance) as f64;
            to(Sent { to: To::Rank(rank + distance), messages: 1.0, share: share(size) });
        }
    }

    /// What this rank sends its parent there.
    fn up_the_tree(self, share: impl Fn(f64) -> f64, to: &mut impl FnMut(Sent)) {
        if self.rank > 0 {
            let reach = self.reach();
            let size = reach.min(self.world_size - self.rank) as f64;
            to(Sent { to: To::Rank(self.rank - reach), messages: 1.0, share: share(size) });
        }
    }

    /// The lowest bit of the rank: the distance to its parent.
    fn reach(self) -> usize {
        self.rank & self.rank.wrapping_neg()
    }
}

/// What one host with the ranks `first..end` sends to the others, and the sums of one rank, where all do alike.
fn circular(algorithm: Algorithm, world_size: usize, per_host: usize) -> Traffic {
    let mut traffic = Traffic::default();
    algorithm.sends(0, world_size, &mut |sent| {
        let peers = if sent.to == To::Each { world_size as f64 - 1.0 } else { 1.0 };
        traffic.messages += sent.messages * peers;
        traffic.sent += sent.share * peers;
    });
    let last = (world_size - 1) / per_host * per_host;
    for first in [0, last] {
        let end = (first + per_host).min(world_size);
        if end - first < world_size {
            traffic.card = traffic.card.max(leaves(algorithm, world_size, first, end));
        }
    }
    traffic
}

/// What leaves the ranks `first..end` for others. As much arrives, where all ranks do alike.
fn leaves(algorithm: Algorithm, world_size: usize, first: usize, end: usize) -> f64 {
    let outside = world_size - (end - first);
    let mut card = 0.0;
    for rank in first..end {
        algorithm.sends(rank, world_size, &mut |sent| match sent.to {
            To::Each => card += sent.share * outside as f64,
            To::Rank(peer) if !(first..end).contains(&peer) => card += sent.share,
            To::Rank(_) => {}
        });
    }
    card
}

/// As [`circular`], for any algorithm: all ranks are asked what they send.
fn any(algorithm: Algorithm, world_size: usize, per_host: usize) -> Traffic {
    /// In this direction and in that.
    #[derive(Clone, Copy, Default)]
    struct Both {
        out: f64,
        into: f64,
    }
    let hosts = world_size.div_ceil(per_host);
    let mut messages = vec![Both::default(); world_size];
    let mut cards = vec![Both::default(); hosts];
    // What each rank sends to every other is added at the end.
    let (mut each_messages, mut each_share, mut each_of_host) = (0.0, 0.0, vec![0.0; hosts]);
    let mut sent_max = 0.0f64;
    for rank in 0..world_size {
        let host = rank / per_host;
        let first = host * per_host;
        let end = (first + per_host).min(world_size);
        let mut total = 0.0;
        algorithm.sends(rank, world_size, &mut |sent| match sent.to {
            To::Each => {
                let peers = world_size as f64 - 1.0;
                total += sent.share * peers;
                messages[rank].out += sent.messages * peers;
                messages[rank].into -= sent.messages;
                cards[host].out += sent.share * (world_size - (end - first)) as f64;
                each_messages += sent.messages;
                each_share += sent.share;
                each_of_host[host] += sent.share;
            }
            To::Rank(peer) => {
                total += sent.share;
                messages[rank].out += sent.messages;
                messages[peer].into += sent.messages;
                if !(first..end).contains(&peer) {
                    cards[host].out += sent.share;
                    cards[peer / per_host].into += sent.share;
                }
            }
        });
        sent_max = sent_max.max(total);
    }
    for (host, card) in cards.iter_mut().enumerate() {
        let members = per_host.min(world_size - host * per_host) as f64;
        card.into += members * (each_share - each_of_host[host]);
    }
    let busier = |both: &Both, each: f64| both.out.max(both.into + each);
    Traffic {
        sent: sent_max,
        messages: messages.iter().map(|both| busier(both, each_messages)).fold(0.0, f64::max),
        card: cards.iter().map(|both| busier(both, 0.0)).fold(0.0, f64::max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Job, Volume};
    use phalanx_core::{Layout, OpKind};

    /// Messages and elements from each rank to each.
    type Table = Vec<Vec<(f64, f64)>>;

    fn of_schedules(algorithm: Algorithm, world_size: usize, len: usize) -> Table {
        let len = if algorithm.op() == OpKind::Barrier { 0 } else { len };
        let mut table = vec![vec![(0.0, 0.0); world_size]; world_size];
        let schedules = Job::new(algorithm.op(), Layout::even(world_size, len), 0).schedules(algorithm);
        for (rank, steps) in schedules.iter().enumerate() {
            for send in steps.iter().filter_map(|step| step.send.as_ref()) {
                let (messages, elements) = &mut table[rank][send.peer];
                *messages += 1.0;
                *elements += send.span.len() as f64;
            }
        }
        table
    }

    fn of_model(algorithm: Algorithm, world_size: usize, len: usize) -> Table {
        let mut table = vec![vec![(0.0, 0.0); world_size]; world_size];
        for (rank, row) in table.iter_mut().enumerate() {
            algorithm.sends(rank, world_size, &mut |sent| {
                let peers = match sent.to {
                    To::Rank(peer) => peer..peer + 1,
                    To::Each => 0..world_size,
                };
                for peer in peers.filter(|peer| *peer != rank) {
                    row[peer].0 += sent.messages;
                    row[peer].1 += sent.share * len as f64;
                }
            });
        }
        table
    }

    fn is_near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 1e-9 * a.abs().max(1.0)
    }

    fn every_case(mut case: impl FnMut(Algorithm, usize)) {
        for &algorithm in Algorithm::ALL {
            (2..=64).filter(|&world| algorithm.supports(world)).for_each(|world| case(algorithm, world));
        }
    }

    /// A length that all algorithms deal out evenly.
    fn even_len(world_size: usize) -> usize {
        6 * ceil_log2(world_size) as usize * world_size * core_of(world_size).0
    }

    #[test]
    fn every_rank_sends_each_peer_what_the_schedules_say() {
        every_case(|algorithm, world_size| {
            let len = even_len(world_size);
            let (found, said) =
                (of_schedules(algorithm, world_size, len), of_model(algorithm, world_size, len));
            for (rank, (found, said)) in found.iter().zip(&said).enumerate() {
                for (peer, (found, said)) in found.iter().zip(said).enumerate() {
                    assert!(
                        found.0 == said.0 && is_near(found.1, said.1),
                        "{algorithm}, {world_size} ranks, {rank} to {peer}: {found:?}, the model says {said:?}"
                    );
                }
            }
        });
    }

    #[test]
    fn ranks_and_cards_carry_what_the_schedules_make_them_carry() {
        every_case(|algorithm, world_size| {
            let len = even_len(world_size);
            let table = of_schedules(algorithm, world_size, len);
            let sum = |of: &dyn Fn(usize, usize) -> f64| {
                (0..world_size)
                    .flat_map(|a| (0..world_size).map(move |b| (a, b)))
                    .map(|(a, b)| of(a, b))
                    .sum::<f64>()
            };
            let most = |of: &dyn Fn(usize) -> f64| (0..world_size).map(of).fold(0.0, f64::max);
            let sent = most(&|rank| table[rank].iter().map(|cell| cell.1).sum());
            let out = most(&|rank| table[rank].iter().map(|cell| cell.0).sum());
            let into = most(&|rank| table.iter().map(|row| row[rank].0).sum());
            for per_host in [1, 2, 3, 5, 8, world_size / 2, world_size - 1, world_size] {
                let per_host = per_host.max(1);
                let said = algorithm.traffic(world_size, per_host);
                let host = |rank: usize| rank / per_host;
                let card = |this: usize| {
                    let leaves =
                        sum(&|a, b| if host(a) == this && host(b) != this { table[a][b].1 } else { 0.0 });
                    let arrives =
                        sum(&|a, b| if host(b) == this && host(a) != this { table[a][b].1 } else { 0.0 });
                    leaves.max(arrives)
                };
                let card = (0..world_size.div_ceil(per_host)).map(card).fold(0.0, f64::max);
                let at = format!("{algorithm}, {world_size} ranks, {per_host} to a host: {said:?}");
                assert!(is_near(said.sent * len as f64, sent), "{at}: a rank sends {sent} of {len}");
                assert_eq!(said.messages, out.max(into), "{at}");
                assert!(is_near(said.card * len as f64, card), "{at}: a card carries {card} of {len}");
            }
        });
    }

    #[test]
    fn uneven_buffers_differ_by_an_element_a_message() {
        every_case(|algorithm, world_size| {
            for len in [1, 131, 1009] {
                let (found, said) =
                    (of_schedules(algorithm, world_size, len), of_model(algorithm, world_size, len));
                for (found, said) in found.iter().flatten().zip(said.iter().flatten()) {
                    assert!(found.0 <= said.0, "{algorithm}, {world_size} ranks, {len}: {found:?}, {said:?}");
                    // A message of c blocks begins and ends within an element of where it would if they were even.
                    let off = (found.1 - said.1).abs();
                    assert!(
                        off <= said.0 + 1e-9,
                        "{algorithm}, {world_size} ranks, {len}: {found:?}, {said:?}"
                    );
                }
            }
        });
    }

    #[test]
    fn the_busiest_rank_is_that_of_the_cost_formulas() {
        every_case(|algorithm, world_size| {
            let len = even_len(world_size) as f64;
            let cost = algorithm.cost(Volume { world_size, len, block: len / world_size as f64 });
            let len = if algorithm.op() == OpKind::Barrier { 0.0 } else { len };
            let sent = algorithm.traffic(world_size, 1).sent * len;
            assert!(is_near(cost.sent, sent), "{algorithm}, {world_size} ranks: {} and {sent}", cost.sent);
        });
    }
}
