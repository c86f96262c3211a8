//! Whose turn it is among peers of which any may send: after one whose message was taken, the next ones are looked at first.
//!
//! Each tag has turns of its own, for the peers that send one need not be those that send another.

use std::collections::VecDeque;

/// Tags that are remembered. A program that receives more of them from any rank at the same time begins anew with some.
const TAGS_MAX: usize = 64;

/// The peer from which a message was taken last, for each of the tags that were in use lately. Takes memory when it is first asked.
#[derive(Debug, Default)]
pub struct Turns(VecDeque<(u64, usize)>);

impl Turns {
    /// The first of `peers`, in ascending order, whose turn it is for this tag.
    pub fn first(&self, tag: u64, peers: &[usize]) -> usize {
        let last = self.0.iter().find(|(of, _)| *of == tag).map(|(_, peer)| *peer);
        last.map_or(0, |last| peers.partition_point(|&peer| peer <= last))
    }

    /// A message with this tag was taken from `peer`.
    pub fn taken(&mut self, tag: u64, peer: usize) {
        self.0.retain(|(of, _)| *of != tag);
        if self.0.len() == TAGS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((tag, peer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_peer_has_its_turn_whatever_comes_with_other_tags() {
        let (mut turns, peers) = (Turns::default(), [1, 2, 4]);
        let mut take = |tag, ready: &[usize]| {
            let first = turns.first(tag, &peers);
            let in_turn = peers[first..].iter().chain(&peers[..first]);
            let peer = *in_turn.clone().find(|peer| ready.contains(peer)).unwrap();
            turns.taken(tag, peer);
            peer
        };
        let taken: Vec<_> = (0..7).map(|_| (take(0, &[1, 2, 4]), take(1, &[1, 2]))).collect();
        assert_eq!(taken, [(1, 1), (2, 2), (4, 1), (1, 2), (2, 1), (4, 2), (1, 1)]);
        assert_eq!([take(0, &[1, 4]), take(0, &[1, 4]), take(0, &[4])], [4, 1, 4]);
    }

    #[test]
    fn no_more_tags_are_remembered_than_are_in_use() {
        let mut turns = Turns::default();
        (0..1000).for_each(|tag| turns.taken(tag, 2));
        assert_eq!(
            (turns.0.len(), turns.first(999, &[1, 2, 3]), turns.first(0, &[1, 2, 3])),
            (TAGS_MAX, 2, 0)
        );
    }
}
