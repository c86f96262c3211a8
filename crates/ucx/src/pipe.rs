//! One link: how many bytes went, came, and may still go. Pure bookkeeping.

use crate::bytes::Bytes;
use phalanx_transport::LinkFault;
use std::collections::{BTreeMap, VecDeque};

/// Bytes that a link may hold which nobody has read, at most.
pub(crate) const WINDOW: u64 = 2 << 20;

/// Both directions of a link with one peer, seen from this rank.
#[derive(Default)]
pub(crate) struct Pipe {
    /// Whether this rank has told the peer that it uses the link.
    pub(crate) is_opened: bool,
    /// Whether either of them uses it.
    pub(crate) is_used: bool,
    /// Bytes that were sent.
    pub(crate) sent: u64,
    /// Bytes that the peer has made room for, beyond [`WINDOW`].
    granted: u64,
    /// What has arrived, in order, and how much of the first was read.
    bytes: VecDeque<Bytes>,
    at: usize,
    /// Where in the pipe what has arrived in order ends.
    arrived: u64,
    /// What has overtaken bytes before it, by its place.
    early: BTreeMap<u64, Bytes>,
    /// All that is kept, read in part or not.
    held: u64,
    /// Bytes that were read.
    read: u64,
    /// What the peer was told of `read`.
    told: u64,
    /// Where the peer has ended its side.
    end: Option<u64>,
    /// What came was not what a rank sends.
    nonsense: Option<LinkFault>,
}

impl Pipe {
    /// Bytes that may be sent now.
    pub(crate) fn room(&self) -> usize {
        (self.granted + WINDOW).saturating_sub(self.sent) as usize
    }

    /// The peer has read so many bytes.
    pub(crate) fn peer_has_read(&mut self, read: u64) {
        // No peer reads what was not sent.
        self.granted = self.granted.max(read.min(self.sent));
    }

    /// Takes bytes that stand at `offset`. Gives back what it does not keep.
    pub(crate) fn arrives(&mut self, offset: u64, bytes: Bytes) -> Option<Bytes> {
        let len = bytes.as_slice().len() as u64;
        if self.nonsense.is_some() || len == 0 {
            return Some(bytes);
        }
        let end = offset.saturating_add(len);
        if offset < self.arrived
            || end > self.told + WINDOW
            || self.held + len > WINDOW
            || self.end.is_some_and(|at| end > at)
        {
            let what = format!(
                "bytes {offset} to {end} of a link, where {} have arrived and {} were read",
                self.arrived, self.read
            );
            self.nonsense = Some(LinkFault::Nonsense(what));
            return Some(bytes);
        }
        self.held += len;
        if offset > self.arrived {
            let double = self.early.insert(offset, bytes);
            self.held -= double.as_ref().map_or(0, |bytes| bytes.as_slice().len() as u64);
            return double;
        }
        self.append(bytes);
        while let Some(entry) = self.early.first_entry().filter(|entry| *entry.key() == self.arrived) {
            let bytes = entry.remove();
            self.append(bytes);
        }
        None
    }

    fn append(&mut self, bytes: Bytes) {
        self.arrived += bytes.as_slice().len() as u64;
        self.bytes.push_back(bytes);
    }

    /// The peer has ended its side after so many bytes. Only the first end counts.
    pub(crate) fn ends(&mut self, end: u64) {
        self.end.get_or_insert(end);
    }

    /// Whether the peer has ended its side: it reads nothing any more either.
    pub(crate) fn has_end(&self) -> bool {
        self.end.is_some()
    }

    /// Why nothing more comes, once all that came was read.
    pub(crate) fn fault(&self) -> Option<LinkFault> {
        let is_at_end = self.end.is_some_and(|end| end <= self.arrived);
        self.nonsense.clone().or(is_at_end.then_some(LinkFault::Closed))
    }

    /// Whether bytes can be read.
    pub(crate) fn has_bytes(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Fills the front of `buffer`, and hands what was read to its end to `done`.
    pub(crate) fn read(&mut self, buffer: &mut [u8], mut done: impl FnMut(Bytes)) -> usize {
        let mut taken = 0;
        while taken < buffer.len()
            && let Some(first) = self.bytes.front()
        {
            let rest = &first.as_slice()[self.at..];
            let n = rest.len().min(buffer.len() - taken);
            buffer[taken..taken + n].copy_from_slice(&rest[..n]);
            taken += n;
            self.at += n;
            if n == rest.len() {
                self.held -= self.at as u64;
                self.at = 0;
                self.bytes.pop_front().map(&mut done);
            }
        }
        self.read += taken as u64;
        taken
    }

    /// How much was read, if the peer should hear of it.
    pub(crate) fn news_of_reading(&mut self) -> Option<u64> {
        // Only whole parts make room.
        let freed = self.arrived - self.held.min(self.arrived);
        (freed - self.told >= WINDOW / 2 && self.end.is_none()).then(|| {
            self.told = freed;
            freed
        })
    }

    /// All bytes that are still held.
    pub(crate) fn into_bytes(self) -> impl Iterator<Item = Bytes> {
        self.bytes.into_iter().chain(self.early.into_values())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(range: std::ops::Range<u8>) -> Bytes {
        Bytes::Copied(range.collect())
    }

    fn read(pipe: &mut Pipe) -> Vec<u8> {
        let mut buffer = [0; 64];
        let n = pipe.read(&mut buffer, drop);
        buffer[..n].to_vec()
    }

    #[test]
    fn what_overtakes_waits_for_what_stands_before_it() {
        let mut pipe = Pipe::default();
        for (offset, part) in [(10, 10..15), (4, 4..10), (15, 15..16)] {
            assert!(pipe.arrives(offset, bytes(part)).is_none());
            assert!(!pipe.has_bytes());
        }
        assert!(pipe.arrives(0, bytes(0..4)).is_none());
        assert_eq!(read(&mut pipe), (0..16).collect::<Vec<_>>());
        assert_eq!((pipe.held, pipe.read), (0, 16));
    }

    #[test]
    fn an_end_that_overtakes_waits_too() {
        let mut pipe = Pipe::default();
        pipe.ends(3);
        assert_eq!(pipe.fault(), None);
        pipe.arrives(0, bytes(0..3));
        assert_eq!((read(&mut pipe), pipe.fault()), (vec![0, 1, 2], Some(LinkFault::Closed)));
        pipe.ends(9);
        assert_eq!(pipe.fault(), Some(LinkFault::Closed), "only the first counts");
    }

    #[test]
    fn more_than_there_is_room_for_is_nonsense() {
        let full = || Bytes::Copied(vec![0; WINDOW as usize]);
        let mut twice = Pipe::default();
        twice.arrives(0, bytes(0..5));
        let mut far = Pipe::default();
        let mut crowded = Pipe::default();
        assert!(crowded.arrives(0, full()).is_none());
        let mut ended = Pipe::default();
        ended.ends(2);
        let mut overlapping = Pipe::default();
        assert!(overlapping.arrives(1, Bytes::Copied(vec![0; WINDOW as usize - 1])).is_none());
        for (mut pipe, offset, part) in [
            (twice, 3, bytes(3..6)),
            (far, WINDOW, bytes(0..1)),
            (crowded, WINDOW, bytes(0..1)),
            (ended, 0, bytes(0..3)),
            (overlapping, 2, full()),
        ] {
            assert!(pipe.arrives(offset, part).is_some(), "given back");
            assert!(matches!(pipe.fault(), Some(LinkFault::Nonsense(_))));
        }
        far = Pipe::default();
        assert!(far.arrives(u64::MAX, bytes(0..2)).is_some());
        assert!(far.fault().is_some());
    }

    #[test]
    fn reading_makes_room() {
        let (mut from, mut to) = (Pipe::default(), Pipe::default());
        let mut buffer = vec![0; 100_000];
        for _ in 0..500 {
            let n = from.room().min(70_000);
            assert!(n > 0 && to.arrives(from.sent, Bytes::Copied(vec![1; n])).is_none(), "{:?}", to.fault());
            from.sent += n as u64;
            while to.has_bytes() {
                to.read(&mut buffer, drop);
            }
            to.news_of_reading().into_iter().for_each(|read| from.peer_has_read(read));
        }
        assert!(from.sent > 10 * WINDOW);
        from.peer_has_read(u64::MAX);
        assert_eq!(from.room(), WINDOW as usize, "no peer makes more room than there is");
    }
}
