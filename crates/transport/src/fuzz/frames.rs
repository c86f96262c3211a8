//! Frames from peers that know the secret: in any order, cut anywhere, and nonsense between them.

use crate::checksum::{self, BODY_SUM_LEN};
use crate::direction::Direction;
use crate::frame::{Channel, HEADER_LEN, Header, Key, SIGNATURE_LEN_MAX};
use crate::known_signatures::Mention;
use crate::transport::{LinkFault, Transport};
use crate::wait::Wait;
use crate::wire::{Arrival, AtOnce, Outbound, Wire, WireFault};
use arbitrary::{Result, Unstructured};
use std::collections::VecDeque;
use std::io::{IoSlice, Read};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const RANKS: usize = 3;
/// Little, so that it is soon full.
const ASIDE_MAX: usize = 8 << 10;
/// What is moved out of the way in one go; one such part and one frame may come on top.
const ASIDE_OVER: usize = 8 << 10;

/// The links of rank 0.
#[derive(Default)]
struct Pipes {
    incoming: [VecDeque<u8>; RANKS],
    outgoing: [Vec<u8>; RANKS],
    closed: [bool; RANKS],
    /// Most bytes that one call moves.
    grain: usize,
}

struct Links(Arc<Mutex<Pipes>>);

fn lock(pipes: &Arc<Mutex<Pipes>>) -> MutexGuard<'_, Pipes> {
    pipes.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Transport for Links {
    fn name(&self) -> &'static str {
        "fuzz"
    }

    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        RANKS
    }

    fn send(&mut self, peer: usize, bytes: &[IoSlice<'_>]) -> std::result::Result<usize, LinkFault> {
        let pipes = &mut *lock(&self.0);
        if pipes.closed[peer] {
            return Err(LinkFault::Closed);
        }
        let mut left = pipes.grain;
        for slice in bytes {
            let n = slice.len().min(left);
            pipes.outgoing[peer].extend_from_slice(&slice[..n]);
            left -= n;
        }
        Ok(pipes.grain - left)
    }

    fn recv(&mut self, peer: usize, buffer: &mut [u8]) -> std::result::Result<usize, LinkFault> {
        let pipes = &mut *lock(&self.0);
        let (grain, closed) = (pipes.grain, pipes.closed[peer]);
        let pipe = &mut pipes.incoming[peer];
        if pipe.is_empty() && closed {
            return Err(LinkFault::Closed);
        }
        let n = buffer.len().min(grain);
        Ok(pipe.read(&mut buffer[..n]).expect("memory can be read"))
    }

    fn is_linked(&mut self, peer: usize) -> bool {
        !lock(&self.0).closed[peer]
    }

    fn watch(&mut self, _peer: usize, _direction: Direction, _wait: &mut Wait) -> bool {
        true
    }
}

/// A frame that a peer has sent and nobody has read to its end.
struct Sent {
    header: Header,
    /// A bit of it changed on its way, which checksums must find.
    changed: bool,
    /// It is of a collective, and stands in the middle of another message of one.
    astray: bool,
    payload: Vec<u8>,
    read: usize,
}

/// What is known of one peer.
#[derive(Default)]
struct Peer {
    /// In the order of the link.
    unread: Vec<Sent>,
    /// Operation, ordinal and missing bytes of the collective's message that its latest frame left unfinished.
    unfinished: Option<(u64, u32, u64)>,
    /// It has sent a signature, which is known since.
    has_said: bool,
    /// It sent bytes of which nothing is known, or its link failed: nothing it says is foretold any more.
    wild: bool,
    /// The message that is being sent to it, and how much of that was taken.
    sending: Option<(Key, Vec<u8>, usize)>,
    /// The messages begun so far.
    begun: Vec<(Key, Vec<u8>)>,
}

struct World {
    wire: Wire,
    checked: bool,
    pipes: Arc<Mutex<Pipes>>,
    peers: [Peer; RANKS],
}

/// Bytes of a peer, in any splits, against a model of the frames, with checksums or without.
pub fn frames(data: &[u8], checked: bool) {
    let pipes = Arc::new(Mutex::new(Pipes { grain: 1 << 20, ..Pipes::default() }));
    let wire = Wire::with_aside_max(Box::new(Links(pipes.clone())), checked, ASIDE_MAX);
    let mut world = World { wire, checked, pipes, peers: Default::default() };
    let mut input = Unstructured::new(data);
    while !input.is_empty() {
        if world.step(&mut input).is_err() {
            break;
        }
        let (bytes, frames) = world.wire.aside();
        assert!(bytes <= ASIDE_MAX + ASIDE_OVER && frames <= ASIDE_MAX >> 10, "{bytes} in {frames} frames");
    }
    world.check_sent();
}

fn key(input: &mut Unstructured<'_>) -> Result<Key> {
    let byte: u8 = input.arbitrary()?;
    let channel = if byte & 1 == 0 { Channel::Collective } else { Channel::Message };
    Ok(Key { channel, id: u64::from(byte >> 1 & 7) })
}

fn bytes<'i>(input: &mut Unstructured<'i>) -> Result<&'i [u8]> {
    let len = usize::from(input.arbitrary::<u8>()?);
    input.bytes(len.min(input.len()))
}

impl World {
    fn step(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let what: u8 = input.arbitrary()?;
        let peer = 1 + usize::from(what >> 7);
        match what % 8 {
            0 | 1 => self.frame(peer, what & 0x78 == 0x78, what & 0x18 == 0x18, input)?,
            2 => {
                self.peers[peer].wild = true;
                lock(&self.pipes).incoming[peer].extend(bytes(input)?);
            }
            3 => self.send(peer, key(input)?, input.arbitrary::<u16>()?),
            4 if what & 0x70 == 0 => lock(&self.pipes).closed[peer] = true,
            4 => lock(&self.pipes).grain = 1 + usize::from(input.arbitrary::<u8>()?),
            5 => self.receive_at_once(peer, key(input)?.id),
            _ => self.receive(peer, key(input)?, usize::from(input.arbitrary::<u16>()?)),
        }
        Ok(())
    }

    /// A whole frame, well made: what is in it may be foretold. It goes on with an unfinished message of a collective, or may go `astray`.
    fn frame(
        &mut self,
        peer: usize,
        changed: bool,
        astray: bool,
        input: &mut Unstructured<'_>,
    ) -> Result<()> {
        let (mut key, len, more): (_, u16, u8) = (key(input)?, input.arbitrary()?, input.arbitrary()?);
        // Messages are often whole, as they are when they are received at once.
        let more = if key.channel == Channel::Message && more.is_multiple_of(4) { 0 } else { more };
        let mut ordinal = more.into();
        let collective = key.channel == Channel::Collective;
        let unfinished = self.peers[peer].unfinished.filter(|_| collective);
        if let Some((operation, began, _)) = unfinished.filter(|_| !astray) {
            (key.id, ordinal) = (operation, began);
        }
        let signature = bytes(input)?;
        // Seldom more than a link's buffer holds: that takes its time.
        let frame_len = u32::from(len) & if more.is_multiple_of(8) { 0xffff } else { 0x3ff };
        let header = Header {
            key,
            ordinal,
            frame_len,
            message_len: u64::from(frame_len) + u64::from(if frame_len > 0 { more } else { 0 }),
            fingerprint: len.into(),
            signature_len: signature.len() as u16,
            mention: match self.peers[peer].has_said {
                _ if !signature.is_empty() => Mention::New(0),
                true if more == 0 => Mention::Known(0),
                _ => Mention::Nothing,
            },
        };
        self.peers[peer].has_said |= !signature.is_empty();
        assert_eq!(Header::decode(&header.encode()), Ok(header), "a header is not what it was");
        let start = self.peers[peer].unread.len() as u8;
        let payload: Vec<u8> = (0..frame_len).map(|i| (i as u8).wrapping_mul(7) ^ start ^ more).collect();
        let (mut head, mut sum) = (header.encode(), Vec::new());
        if self.checked {
            checksum::seal(&mut head);
            sum.extend(checksum::of_body(signature, &payload));
        }
        let mut frame = [&head[..], &sum, signature, &payload].concat();
        let changed = self.checked && changed;
        if changed {
            let bit = usize::from(input.arbitrary::<u16>()?) % (8 * frame.len());
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        lock(&self.pipes).incoming[peer].extend(frame);
        let astray = unfinished.is_some_and(|(operation, began, _)| (operation, began) != (key.id, ordinal));
        let known = &mut self.peers[peer];
        if collective {
            let due = unfinished.map_or(header.message_len, |(.., left)| left);
            let left = due.saturating_sub(frame_len.into());
            known.unfinished = (left > 0).then_some((key.id, ordinal, left));
        }
        known.unread.push(Sent { header, changed, astray, payload, read: 0 });
        Ok(())
    }

    /// Waits for the next frame of `key` without any patience, and reads of it what fits into `room`.
    fn receive(&mut self, peer: usize, key: Key, room: usize) {
        let place = self.peers[peer].unread.iter().position(|sent| sent.header.key == key);
        match self.wire.arrival(peer, key) {
            Ok(Some(arrival)) => self.arrived(peer, key, place, arrival, room),
            Ok(None) => {
                let full = self.wire.aside();
                let full = full.0 + (full.1 << 10) >= ASIDE_MAX;
                assert!(
                    full || self.peers[peer].wild || place.is_none(),
                    "{key:?} has come, but is not seen"
                );
            }
            Err(fault) => self.fault(peer, key, place, &fault),
        }
    }

    /// Receives the next message with this tag, if it is here, as somebody does who knows how long it is.
    fn receive_at_once(&mut self, peer: usize, tag: u64) {
        let key = Key { channel: Channel::Message, id: tag };
        let known = &self.peers[peer];
        let place = known.unread.iter().position(|sent| sent.header.key == key);
        let next = place.map(|place| &known.unread[place]);
        let (fingerprint, len) = next.map_or((0, 0), |sent| (sent.header.fingerprint, sent.payload.len()));
        let mut buffer = vec![0; len];
        match self.wire.recv_at_once(peer, tag, fingerprint, &mut buffer) {
            Ok(AtOnce::Done) if self.peers[peer].wild => {}
            Ok(AtOnce::Done) => {
                let sent =
                    self.peers[peer].unread.remove(place.expect("a message has come that nobody sent"));
                assert!(!sent.changed && sent.read == 0, "what changed or was read is taken");
                assert_eq!((sent.header.message_len, sent.payload), (len as u64, buffer));
            }
            Ok(AtOnce::NotYet | AtOnce::Impossible) => {}
            Err(fault) => self.fault(peer, key, place, &fault),
        }
    }

    fn arrived(&mut self, peer: usize, key: Key, place: Option<usize>, arrival: Arrival, room: usize) {
        assert!(arrival.header.key == key && arrival.left <= arrival.header.frame_len as usize);
        let _ = self.wire.signature(peer, key);
        let mut buffer = vec![0; room.min(arrival.left)];
        let Ok(n) = self.wire.read(peer, key, &mut buffer) else {
            self.peers[peer].wild = true;
            return assert!(lock(&self.pipes).closed[peer], "a link that stands has failed");
        };
        assert!(n <= buffer.len());
        if arrival.left == n {
            self.wire.finish(peer, key);
        }
        let known = &mut self.peers[peer];
        if known.wild {
            return;
        }
        let place = place.expect("a frame has come that nobody sent");
        let sent = &mut known.unread[place];
        assert!(!sent.changed, "what changed on its way is taken");
        assert!(!sent.astray, "a frame is taken in the middle of another message");
        assert_eq!((sent.header, sent.payload.len() - sent.read), (arrival.header, arrival.left));
        assert_eq!(buffer[..n], sent.payload[sent.read..][..n], "other bytes have come than were sent");
        sent.read += n;
        if arrival.left == n {
            known.unread.remove(place);
        }
    }

    fn fault(&mut self, peer: usize, key: Key, place: Option<usize>, fault: &WireFault) {
        let known = &mut self.peers[peer];
        match fault {
            WireFault::Stale(id, _) => {
                let old = |sent: &Sent| sent.header.key == Key { channel: Channel::Collective, id: *id };
                assert!(key.channel == Channel::Collective && *id < key.id);
                assert!(known.wild || known.unread.iter().any(old), "nobody sent what is called stale");
                return;
            }
            WireFault::Gone(..) => {
                assert!(lock(&self.pipes).closed[peer], "a link that stands is called gone");
                assert!(known.wild || place.is_none(), "what came before the end is lost");
            }
            WireFault::Nonsense(_) => {
                let bad = known.wild || known.unread.iter().any(|sent| sent.changed || sent.astray);
                assert!(bad, "good frames are called nonsense");
            }
        }
        known.wild = true;
    }

    /// Sends more of the message to `peer`, or begins one of `len` bytes.
    fn send(&mut self, peer: usize, key: Key, len: u16) {
        let known = &mut self.peers[peer];
        let fresh = known.sending.is_none();
        let (owner, payload, taken) =
            known.sending.get_or_insert_with(|| (key, (0..len).map(|i| i as u8).collect(), 0));
        let message = Outbound {
            peer,
            key,
            ordinal: 1,
            fingerprint: 2,
            signature: &[3; SIGNATURE_LEN_MAX],
            message_len: payload.len() as u64,
        };
        match self.wire.send(&message, &payload[*taken..]) {
            Ok(sent) if *owner != key => assert_eq!((sent.payload, sent.complete), (0, false)),
            Ok(sent) => {
                if fresh {
                    known.begun.push((key, payload.clone()));
                }
                *taken += sent.payload;
                assert!(!sent.complete || *taken == payload.len(), "a frame is complete before its end");
                if sent.complete {
                    known.sending = None;
                }
            }
            Err(_) => {
                known.wild = true;
                lock(&self.pipes).closed[peer] = true;
            }
        }
    }

    /// What stands on the links are the messages that were sent, whole but for the last.
    fn check_sent(self) {
        for (peer, known) in self.peers.iter().enumerate() {
            let mut link = &lock(&self.pipes).outgoing[peer][..];
            for (key, payload) in &known.begun {
                let Some((head, mut rest)) = link.split_first_chunk::<HEADER_LEN>() else { break };
                let mut head = *head;
                assert!(!self.checked || checksum::unseal(&mut head), "our own header has a wrong checksum");
                let header = Header::decode(&head).expect("our own header");
                assert_eq!((header.key, header.frame_len as usize), (*key, payload.len()));
                if self.checked {
                    let Some((sum, body)) = rest.split_first_chunk::<BODY_SUM_LEN>() else { break };
                    let whole = usize::from(header.signature_len) + payload.len();
                    if let Some((signature, payload)) =
                        body.get(..whole).map(|body| body.split_at(header.signature_len.into()))
                    {
                        assert_eq!(checksum::of_body(signature, payload), *sum, "a checksum of our own");
                    }
                    rest = body;
                }
                link = &rest[rest.len().min(header.signature_len.into())..];
                let here = link.len().min(payload.len());
                assert_eq!(link[..here], payload[..here]);
                link = &link[here..];
            }
            assert!(link.len() < HEADER_LEN || known.begun.is_empty(), "more was sent than messages");
        }
    }
}
