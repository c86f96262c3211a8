//! Records: how a sealed connection carries bytes.
//!
//! ```text
//!  0        2                     2 + n        2 + n + 16
//!  | n + 16 | n bytes, encrypted  | tag        |  next record
//! ```
//! The length is two bytes, little endian, so no record can announce more than 64 KiB. Record number k of one direction is
//! encrypted with the nonce k: one that is changed, left out, repeated or put elsewhere does not open. Each direction has a key
//! of its own, so neither do records that are sent back. What cannot be seen from records is where the last one is: a connection
//! that ends is for those above to judge, who say farewell inside.

use crate::keys::{Keys, not_authentic};
use std::fmt;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::ops::Range;

const HEADER: usize = 2;
const TAG: usize = 16;
/// Bytes in a full record. Little enough that a record is still in the cache of its core when it is sent.
const PLAIN_MAX: usize = 32 << 10;
/// A reader's first buffer. It grows to [`BUFFER_MAX`] where more comes: an arbiter has thousands of quiet lines.
const BUFFER_MIN: usize = 4 << 10;
/// Holds the longest record there can be, and begins the next.
const BUFFER_MAX: usize = 128 << 10;

/// The sending direction.
pub(crate) struct Sealing {
    keys: Keys,
    /// Records sealed so far.
    count: u64,
    /// The record that is being written.
    record: Vec<u8>,
    written: usize,
    /// Bytes of the caller in it.
    holds: usize,
    /// Bytes that the system has and that do not count as taken yet: fewer were offered when the last of their record went.
    ahead: usize,
    /// A buffer in which bytes that stand in several parts are put together.
    gathered: Vec<u8>,
}

impl Sealing {
    pub(crate) fn new(keys: Keys) -> Self {
        Self { keys, count: 0, record: Vec::new(), written: 0, holds: 0, ahead: 0, gathered: Vec::new() }
    }

    /// As [`Write::write_vectored`], with one difference: bytes count as taken when the system has all of their record. Those of
    /// a record that it has a part of are not, and must stand in front at the next call, all of them or some. So nothing is ever held back here
    /// that nobody would come to flush.
    pub(crate) fn write(&mut self, mut stream: impl Write, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let offered: usize = parts.iter().map(|part| part.len()).sum();
        let mut taken = std::mem::take(&mut self.ahead);
        loop {
            if taken >= offered {
                self.ahead = taken - offered;
                return Ok(offered);
            }
            if self.record.is_empty() && !self.seal_next(parts, taken)? {
                return Ok(taken);
            }
            match stream.write(&self.record[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.written += n,
                Err(_) if taken > 0 => return Ok(taken),
                Err(error) => return Err(error),
            }
            if self.written == self.record.len() {
                taken += self.holds;
                self.record.clear();
            }
        }
    }

    /// Makes a record of what comes after the first `skip` bytes; false if nothing does.
    fn seal_next(&mut self, parts: &[IoSlice<'_>], mut skip: usize) -> io::Result<bool> {
        self.gathered.clear();
        let mut plain: &[u8] = &[];
        for part in parts {
            let rest = &part[skip.min(part.len())..];
            skip -= part.len() - rest.len();
            if plain.is_empty() {
                plain = rest;
            } else if !rest.is_empty() && plain.len() < PLAIN_MAX {
                // Only a record over the border of two parts is copied together.
                if self.gathered.is_empty() {
                    self.gathered.extend_from_slice(plain);
                }
                let room = PLAIN_MAX - self.gathered.len();
                self.gathered.extend_from_slice(&rest[..rest.len().min(room)]);
            }
        }
        if !self.gathered.is_empty() {
            plain = &self.gathered;
        }
        let plain = &plain[..plain.len().min(PLAIN_MAX)];
        if plain.is_empty() {
            return Ok(false);
        }
        let len = plain.len() + TAG;
        self.record.extend_from_slice(&(len as u16).to_le_bytes());
        self.record.resize(HEADER + len, 0);
        self.keys.seal(self.count, plain, &mut self.record[HEADER..])?;
        (self.count, self.written, self.holds) = (self.count + 1, 0, plain.len());
        Ok(true)
    }
}

/// The receiving direction.
pub(crate) struct Opening {
    keys: Keys,
    /// Records opened so far.
    count: u64,
    buffer: Vec<u8>,
    /// The range of the buffer that has come and is not opened.
    sealed: Range<usize>,
    /// An opened record that its reader had no room for.
    plain: Vec<u8>,
    /// The range of `plain` that was opened and is not read.
    opened: Range<usize>,
}

impl Opening {
    pub(crate) fn new(keys: Keys) -> Self {
        Self { keys, count: 0, buffer: Vec::new(), sealed: 0..0, plain: Vec::new(), opened: 0..0 }
    }

    /// As [`Read::read`]. Reads the stream once at most, so that a time limit on that is one on this:
    /// [`Interrupted`](ErrorKind::Interrupted) where that gave no whole record. [`InvalidData`](ErrorKind::InvalidData) for
    /// what is no record of the other end.
    pub(crate) fn read(&mut self, mut stream: impl Read, out: &mut [u8]) -> io::Result<usize> {
        if self.opened.is_empty() {
            if self.record_len().is_none() && self.fill(&mut stream)? == 0 {
                return Ok(0);
            }
            let len = self.record_len().ok_or(ErrorKind::Interrupted)?;
            if out.len() >= len {
                return self.open(len, out);
            }
            let mut plain = std::mem::take(&mut self.plain);
            plain.resize(plain.len().max(len), 0);
            let opened = self.open(len, &mut plain);
            self.plain = plain;
            self.opened = 0..opened?;
        }
        let n = out.len().min(self.opened.len());
        out[..n].copy_from_slice(&self.plain[self.opened.start..][..n]);
        self.opened.start += n;
        Ok(n)
    }

    /// Whether the next read needs nothing of the stream.
    pub(crate) fn is_ready(&self) -> bool {
        !self.opened.is_empty() || self.record_len().is_some()
    }

    /// The length behind the header of the next record, if all of it is in the buffer.
    fn record_len(&self) -> Option<usize> {
        let sealed = &self.buffer[self.sealed.clone()];
        let len = usize::from(u16::from_le_bytes(*sealed.first_chunk::<HEADER>()?));
        (sealed.len() >= HEADER + len).then_some(len)
    }

    fn fill(&mut self, stream: &mut impl Read) -> io::Result<usize> {
        self.buffer.copy_within(self.sealed.clone(), 0);
        self.sealed = 0..self.sealed.len();
        if self.sealed.end == self.buffer.len() {
            let len = (2 * self.buffer.len()).clamp(BUFFER_MIN, BUFFER_MAX);
            self.buffer.resize(len, 0);
        }
        let n = stream.read(&mut self.buffer[self.sealed.end..])?;
        self.sealed.end += n;
        Ok(n)
    }

    /// Opens the next record, `len` bytes behind its header, to the front of `out`, which has at least as many.
    fn open(&mut self, len: usize, out: &mut [u8]) -> io::Result<usize> {
        // An empty record says nothing: only who wants to keep us busy sends one.
        if len <= TAG {
            return Err(not_authentic());
        }
        let n = self.keys.open(self.count, &self.buffer[self.sealed.start + HEADER..][..len], out)?;
        self.count += 1;
        self.sealed.start += HEADER + len;
        Ok(n)
    }
}

// What they carry is nobody's business.
impl fmt::Debug for Sealing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealing").field("count", &self.count).finish_non_exhaustive()
    }
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opening").field("count", &self.count).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{self, Agreement};
    use proptest::prelude::*;

    /// The keys of a dialer and of its acceptor.
    fn keys() -> (Keys, Keys) {
        let (psk, prologue) = ([7; 32], b"who and what for");
        let (agreement, message) = Agreement::begin(&psk, prologue).unwrap();
        let (theirs, answer) = keys::agree(&psk, prologue, &message).unwrap();
        (agreement.finish(&answer).unwrap(), theirs)
    }

    /// A stream that takes and gives some bytes at a time, and has nothing now and then.
    struct Pipe<'a> {
        bytes: &'a mut Vec<u8>,
        step: usize,
        busy: &'a mut bool,
    }

    impl Pipe<'_> {
        fn turn(&mut self) -> io::Result<()> {
            *self.busy = !*self.busy;
            if *self.busy { Err(ErrorKind::WouldBlock.into()) } else { Ok(()) }
        }
    }

    impl Write for Pipe<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.turn()?;
            let n = bytes.len().min(self.step);
            self.bytes.extend_from_slice(&bytes[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Read for Pipe<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            self.turn()?;
            let n = out.len().min(self.step).min(self.bytes.len());
            out[..n].copy_from_slice(&self.bytes[..n]);
            self.bytes.drain(..n);
            Ok(n)
        }
    }

    /// What one end sends when it sends these, each as a record of its own.
    fn records(keys: Keys, messages: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut sealing = Sealing::new(keys);
        let seal = |message: &&[u8]| {
            let mut record = Vec::new();
            assert_eq!(sealing.write(&mut record, &[IoSlice::new(message)]).unwrap(), message.len());
            record
        };
        messages.iter().map(seal).collect()
    }

    /// What the other end reads from these bytes before their end, or an error.
    fn read_all(keys: Keys, bytes: &[u8]) -> (Vec<u8>, io::Result<()>) {
        let (mut opening, mut stream, mut got) = (Opening::new(keys), bytes, Vec::new());
        let mut buffer = [0; 100];
        loop {
            match opening.read(&mut stream, &mut buffer) {
                Ok(0) => return (got, Ok(())),
                Ok(n) => got.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(error) => return (got, Err(error)),
            }
        }
    }

    proptest! {
        #[test]
        fn bytes_arrive_however_they_are_cut(
            parts in prop::collection::vec((any::<u8>(), 0..3 * PLAIN_MAX), 1..4),
            written in 1..200_000usize,
            read in 1..200_000usize,
            room in 1..100_000usize,
        ) {
            let (ours, theirs) = keys();
            let parts: Vec<Vec<u8>> = parts.into_iter()
                .map(|(seed, len)| (0..len).map(|i| seed.wrapping_add((i % 251) as u8)).collect())
                .collect();
            let sent = parts.concat();
            let (mut sealing, mut opening) = (Sealing::new(ours), Opening::new(theirs));
            let (mut stream, mut busy, mut taken) = (Vec::new(), false, 0);
            while taken < sent.len() {
                let mut skip = taken;
                let rest: Vec<IoSlice<'_>> = parts.iter().map(|part| {
                    let rest = &part[skip.min(part.len())..];
                    skip -= part.len() - rest.len();
                    IoSlice::new(rest)
                }).collect();
                match sealing.write(Pipe { bytes: &mut stream, step: written, busy: &mut busy }, &rest) {
                    Ok(n) => taken += n,
                    Err(error) => prop_assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
                prop_assert!(taken <= sent.len());
            }
            let (mut got, mut buffer) = (Vec::new(), vec![0; room]);
            while got.len() < sent.len() {
                match opening.read(Pipe { bytes: &mut stream, step: read, busy: &mut busy }, &mut buffer) {
                    Ok(n) => { prop_assert!(n > 0); got.extend_from_slice(&buffer[..n]); }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Interrupted),
                }
            }
            prop_assert!(got == sent);
            prop_assert!(!opening.is_ready() && stream.is_empty());
        }
    }

    #[test]
    fn who_offers_less_than_before_is_told_of_no_more_than_that() {
        let (ours, theirs) = keys();
        let bytes: Vec<u8> = (0..100).collect();
        let (mut sealing, mut stream, mut busy) = (Sealing::new(ours), Vec::new(), true);
        let mut write = |sealing: &mut Sealing, offered: &[u8], step| {
            sealing.write(Pipe { bytes: &mut stream, step, busy: &mut busy }, &[IoSlice::new(offered)])
        };
        // All hundred are in a record of which the system takes a part.
        assert_eq!(write(&mut sealing, &bytes, 10).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(write(&mut sealing, &bytes[..40], 1000).unwrap(), 40);
        assert_eq!(write(&mut sealing, &bytes[40..50], 1000).unwrap(), 10);
        assert_eq!(write(&mut sealing, &[], 1000).unwrap(), 0);
        assert_eq!(write(&mut sealing, &bytes[50..], 1000).unwrap(), 50);
        let (got, ended) = read_all(theirs, &stream);
        assert_eq!(got, bytes);
        ended.unwrap();
    }

    #[test]
    fn what_a_small_reader_leaves_is_ready() {
        let (ours, theirs) = keys();
        let stream = records(ours, &[b"first", b"second"]).concat();
        let (mut opening, mut stream) = (Opening::new(theirs), &stream[..]);
        assert!(!opening.is_ready());
        let mut out = [0; 3];
        for (expected, ready) in [(&b"fir"[..], true), (b"st", true), (b"sec", true), (b"ond", false)] {
            let n = opening.read(&mut stream, &mut out).unwrap();
            assert_eq!((&out[..n], opening.is_ready()), (expected, ready));
        }
    }

    #[test]
    fn no_bit_can_be_changed() {
        let (ours, theirs) = keys();
        let record = records(ours, &[b"gradients"]).concat();
        for bit in 0..record.len() * 8 {
            let mut changed = record.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let (got, end) = read_all(theirs.clone(), &changed);
            assert_eq!(got, b"", "bit {bit}");
            // One that announces more than comes is not complete, and no more is read of it than of nothing.
            assert!(end.is_err_and(|e| e.to_string().contains("authenticate")) || bit < 16, "bit {bit}");
        }
    }

    #[test]
    fn no_record_can_be_moved_repeated_left_out_or_sent_back() {
        let (ours, theirs) = keys();
        let records = records(ours.clone(), &[b"one", b"two", b"three"]);
        let told = |order: &[usize]| {
            let stream: Vec<u8> = order.iter().flat_map(|&i| records[i].clone()).collect();
            let (got, end) = read_all(theirs.clone(), &stream);
            (String::from_utf8(got).unwrap(), end.map_err(|e| e.kind()))
        };
        let refused = Err(ErrorKind::InvalidData);
        assert_eq!(told(&[0, 1, 2]), ("onetwothree".into(), Ok(())));
        assert_eq!(told(&[1, 0, 2]), ("".into(), refused));
        assert_eq!(told(&[0, 0, 1]), ("one".into(), refused));
        assert_eq!(told(&[0, 2]), ("one".into(), refused));
        let (got, end) = read_all(ours, &records[0]);
        assert_eq!((got, end.map_err(|e| e.kind())), (Vec::new(), refused));
    }

    #[test]
    fn what_no_end_would_send_is_refused_at_once() {
        for len in [0, 1, TAG] {
            let mut stream = (len as u16).to_le_bytes().to_vec();
            stream.resize(HEADER + len, 0);
            let (_, end) = read_all(keys().1, &stream);
            assert_eq!(end.unwrap_err().kind(), ErrorKind::InvalidData, "{len}");
        }
    }

    #[test]
    fn keys_change_on_both_ends_alike() {
        let (ours, theirs) = keys();
        // Several keys in each direction, and neither waits for the other.
        let messages: Vec<Vec<u8>> = (0..100u8).map(|i| vec![i; 3]).collect();
        let messages: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
        for (from, to) in [(ours.clone(), theirs.clone()), (theirs, ours)] {
            let (got, end) = read_all(to, &records(from, &messages).concat());
            end.unwrap();
            assert_eq!(got, messages.concat());
        }
    }
}
