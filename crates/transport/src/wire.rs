//! Tagged messages over the byte pipes of a [`Transport`].
//!
//! Sending: a frame is begun only for bytes that are there already, so it never holds a link while its operation waits
//! for something else; until it is complete the link belongs to it. Receiving: who waits for a message reads
//! its peer's link; frames of other operations that stand before it are set aside (up to [`ASIDE_MAX`] bytes) for
//! whoever wants them.
//!
//! With checksums a frame is shorter, and counts as arrived when all of it is here and unchanged: no byte is used, or passed on to
//! another rank, before that.

use crate::checksum::{self, BODY_SUM_LEN, CHECKED_LEN_MAX};
#[cfg(feature = "sockets")]
use crate::direction::Direction;
use crate::frame::{Channel, FRAME_LEN_MAX, HEADER_LEN, Header, Key, SIGNATURE_LEN_MAX, decode_signature};
use crate::known_signatures::{KnownSignatures, Mention};
use crate::patience::Patience;
use crate::sabotage::{Mechanism, breaks};
use crate::tally::Tally;
use crate::transport::{LinkFault, Transport};
#[cfg(feature = "sockets")]
use crate::wait::Wait;
use crate::{WakeSource, Waker};
use phalanx_core::Signature;
use std::collections::{HashMap, VecDeque};
use std::io::IoSlice;
use std::sync::Arc;

mod at_once;

/// Most bytes of a frame before its payload: its header, the checksum of the rest, and the signature of the call.
pub const HEAD_LEN_MAX: usize = HEADER_LEN + BODY_SUM_LEN + SIGNATURE_LEN_MAX;

/// Bytes of unmatched messages kept in memory; beyond this, links are left unread and their senders wait.
const ASIDE_MAX: usize = 256 << 20;
/// The bytes that each frame set aside counts for besides its payload, about what it takes: empty ones use memory up too.
const ASIDE_COST: usize = 1 << 10;
/// Payloads up to this length are read together with the header that follows them.
const BUFFER_LEN: usize = 16 << 10;
/// Room for a checked frame and more, where there is one that does not fit into [`BUFFER_LEN`].
const CHECKED_BUFFER_LEN: usize = 4 * CHECKED_LEN_MAX;

/// A fault on a link, as the wire sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WireFault {
    /// The link is gone; `true` if the peer said farewell before.
    Gone(LinkFault, bool),
    /// The peer sent what no correct peer sends.
    Nonsense(String),
    /// The peer sent something for a collective that is over here: it took that one for another operation.
    /// Its place in the sequence, and what the peer called.
    Stale(u64, Option<Box<Signature>>),
}

/// The frame that stands first for some key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Its header.
    pub header: Header,
    /// Payload bytes of the frame not yet read.
    pub left: usize,
}

#[derive(Debug)]
struct Incoming {
    /// Empty before the first read: most ranks of a large group send to few others.
    buffer: Vec<u8>,
    /// Unread bytes are `buffer[start..end]`.
    start: usize,
    end: usize,
    /// The frame whose payload comes next.
    frame: Option<Arrival>,
    /// The signatures that have come, that of the frame among them if it is the first of its call.
    known: KnownSignatures,
    /// The message of a collective of which a frame has come, and not the last one.
    unfinished: Option<Unfinished>,
    farewell: bool,
}

/// A message whose next frame is the next one of any collective on its link.
#[derive(Debug, Clone, Copy)]
struct Unfinished {
    operation: u64,
    ordinal: u32,
    left: u64,
}

impl Unfinished {
    /// The message after a frame of it has come, if more of it is to come.
    fn after(header: &Header, left: u64) -> Option<Self> {
        let left = left.saturating_sub(header.frame_len.into());
        (left > 0).then_some(Self { operation: header.key.id, ordinal: header.ordinal, left })
    }
}

impl Incoming {
    fn new() -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            end: 0,
            frame: None,
            known: KnownSignatures::default(),
            unfinished: None,
            farewell: false,
        }
    }

    /// Moves the unread bytes to the front of the buffer.
    #[inline]
    fn move_to_front(&mut self) {
        if self.start < self.end && self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
        }
        (self.start, self.end) = (0, self.end - self.start);
    }

    /// The encoded signature of the call of the frame, if it is the first frame. No other has come since.
    fn signature(&self) -> &[u8] {
        self.frame.map_or(&[], |frame| self.known.at(frame.header.mention))
    }

    /// What is unfinished after the frame that begins here. The frames of a message stand in a row: one among them that says it is of
    /// another message would leave a gap in this one, which the next frame would fill.
    #[inline]
    fn follows(&self, header: &Header) -> Result<Option<Unfinished>, String> {
        let Header { key: Key { channel, id }, ordinal, message_len, .. } = *header;
        match (&self.unfinished, channel) {
            (None, Channel::Collective) => Ok(Unfinished::after(header, message_len)),
            (Some(message), Channel::Collective) if (message.operation, message.ordinal) == (id, ordinal) => {
                Ok(Unfinished::after(header, message.left))
            }
            (Some(Unfinished { operation, ordinal: began, left }), Channel::Collective) => Err(format!(
                "a frame of message {ordinal} of operation #{id}, where {left} bytes of message {began} of operation #{operation} were due"
            )),
            (unfinished, Channel::Message | Channel::Farewell) => Ok(*unfinished),
        }
    }
}

#[derive(Debug, Default)]
struct Outgoing {
    /// Header and signature not yet handed over.
    head: Vec<u8>,
    head_sent: usize,
    /// Payload bytes of the current frame not yet handed over.
    left: usize,
    owner: Option<Key>,
    known: KnownSignatures,
}

impl Outgoing {
    /// Makes the head of a frame of `message` with this payload, which [mentions](KnownSignatures::mention) its signature so. The other end knows that once the frame
    /// [was sent](KnownSignatures::sent).
    #[inline]
    fn begin(&mut self, message: &Outbound<'_>, mention: Mention, payload: &[u8], checked: bool) {
        let signature = if matches!(mention, Mention::New(_)) { message.signature } else { &[] };
        let mut encoded = message.header(mention, payload.len(), signature.len()).encode();
        self.head.clear();
        if checked {
            checksum::seal(&mut encoded);
            self.head.extend_from_slice(&encoded);
            self.head.extend_from_slice(&checksum::of_body(signature, payload));
        } else {
            self.head.extend_from_slice(&encoded);
        }
        self.head.extend_from_slice(signature);
    }
}

/// A frame that nobody wanted when it was read.
#[derive(Debug)]
struct Aside {
    frame: Arrival,
    signature: Vec<u8>,
    /// The part of its payload that has arrived and was not read yet.
    bytes: VecDeque<u8>,
    /// Payload bytes still on the link.
    missing: usize,
}

/// One operation's half of a message to send.
#[derive(Debug, Clone, Copy)]
pub struct Outbound<'a> {
    /// To whom.
    pub peer: usize,
    /// The operation or message that it belongs to.
    pub key: Key,
    /// Counts the operation's messages to this peer.
    pub ordinal: u32,
    /// The sender's signature fingerprint.
    pub fingerprint: u64,
    /// The [encoded](crate::encode_signature) signature, on the first message of an operation to this peer; else empty.
    pub signature: &'a [u8],
    /// Payload bytes of the whole message.
    pub message_len: u64,
}

impl Outbound<'_> {
    #[inline]
    fn header(&self, mention: Mention, frame_len: usize, signature_len: usize) -> Header {
        Header {
            mention,
            key: self.key,
            ordinal: self.ordinal,
            frame_len: frame_len as u32,
            message_len: self.message_len,
            fingerprint: self.fingerprint,
            signature_len: signature_len as u16,
        }
    }
}

/// The result of [`Wire::send`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Payload bytes taken.
    pub payload: usize,
    /// Whether the frame is complete, so that the link is free for others.
    pub complete: bool,
}

/// What came of an attempt to receive a message at once.
// Four bytes, as it is read: a read that is wider than the write just before it has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum AtOnce {
    /// It was received.
    Done,
    /// Nothing speaks against it, but not all of it is here yet.
    NotYet,
    /// What is here can't be received at once, or not for this call.
    Impossible,
}

/// All links of one rank in one group, with their framing.
pub struct Wire {
    transport: Box<dyn Transport>,
    /// Whether frames have checksums.
    checked: bool,
    /// Most payload bytes of a frame that is sent.
    frame_len: usize,
    incoming: Vec<Incoming>,
    outgoing: Vec<Outgoing>,
    tally: Arc<Tally>,
    aside: HashMap<(usize, Key), VecDeque<Aside>>,
    /// Bytes set aside, with [`ASIDE_COST`] for each frame; at most [`ASIDE_MAX`].
    aside_len: usize,
    aside_max: usize,
    /// Other threads that sleep while this one reads links: they are woken when something was set aside.
    sleepers: Vec<Waker>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("transport", &self.transport.name()).finish_non_exhaustive()
    }
}

impl Wire {
    /// Frames over `transport`.
    pub fn new(transport: Box<dyn Transport>) -> Self {
        Self::with_checksums(transport, false)
    }

    /// Frames over `transport`, with checksums if they are `checked`: then a frame that changed on its way is
    /// [`Nonsense`](WireFault::Nonsense), before any of it was used. The same on both ends.
    ///
    /// # Cost
    /// At both ends, one pass over each frame; at the receiving end, a copy of it, and up to 256 KiB of memory for each peer.
    pub fn with_checksums(transport: Box<dyn Transport>, checked: bool) -> Self {
        let peers = 0..transport.world_size();
        let frame_len = transport.frame_len().min(FRAME_LEN_MAX);
        Self {
            frame_len: if checked { CHECKED_LEN_MAX } else { frame_len },
            incoming: peers.clone().map(|_| Incoming::new()).collect(),
            tally: Arc::new(Tally::new(peers.len())),
            outgoing: peers.map(|_| Outgoing::default()).collect(),
            aside: HashMap::new(),
            aside_len: 0,
            aside_max: ASIDE_MAX,
            sleepers: Vec::new(),
            transport,
            checked,
        }
    }

    /// As `new`, with another limit for what is set aside.
    #[cfg(feature = "__fuzz")]
    pub(crate) fn with_aside_max(transport: Box<dyn Transport>, checked: bool, aside_max: usize) -> Self {
        Self { aside_max, ..Self::with_checksums(transport, checked) }
    }

    /// Bytes set aside, and frames.
    #[cfg(feature = "__fuzz")]
    pub(crate) fn aside(&self) -> (usize, usize) {
        let frames = || self.aside.values().flatten();
        (frames().map(|aside| aside.bytes.len()).sum(), frames().count())
    }

    /// The transport's name.
    pub fn name(&self) -> &'static str {
        self.transport.name()
    }

    /// The count of bytes that have moved, for other threads.
    pub fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    /// Sends more of a message: a frame of `payload` (what is ready of the message, from the first byte not yet taken), or
    /// the rest of the frame begun before. An empty message still sends a frame.
    ///
    /// # Errors
    /// The link is gone.
    pub fn send(&mut self, message: &Outbound<'_>, payload: &[u8]) -> Result<Sent, WireFault> {
        let out = &mut self.outgoing[message.peer];
        match out.owner {
            None => {
                out.left = payload.len().min(self.frame_len);
                let mention = out.known.mention(message.signature);
                out.begin(message, mention, &payload[..out.left], self.checked);
                out.known.sent(mention, message.signature);
                out.head_sent = 0;
                out.owner = Some(message.key);
                self.tally_begun(message);
            }
            Some(owner) if owner == message.key => {}
            Some(_) => return Ok(Sent { payload: 0, complete: false }),
        }
        let mut taken = 0;
        loop {
            let out = &mut self.outgoing[message.peer];
            let head = &out.head[out.head_sent..];
            let body = &payload[taken..taken + out.left];
            if head.is_empty() && body.is_empty() {
                out.owner = None;
                return Ok(Sent { payload: taken, complete: true });
            }
            let n = match self.transport.send(message.peer, &[IoSlice::new(head), IoSlice::new(body)]) {
                Ok(0) => return Ok(Sent { payload: taken, complete: false }),
                Ok(n) => n,
                Err(fault) => return Err(self.last_words(message.peer, fault)),
            };
            self.tally.moved(n);
            let of_head = n.min(head.len());
            out.head_sent += of_head;
            out.left -= n - of_head;
            taken += n - of_head;
        }
    }

    /// Counts a message of which a frame was begun, if that is its first.
    #[inline]
    fn tally_begun(&self, message: &Outbound<'_>) {
        // The first frame of a message, and only that, has a signature.
        if message.key.channel == Channel::Message && !message.signature.is_empty() {
            self.tally.message_begins(message.peer);
        }
    }

    /// Tells `peer`, if there is a link and it can be told without waiting, that nothing more follows.
    pub fn farewell(&mut self, peer: usize) {
        if !self.is_linked(peer) {
            return;
        }
        let key = Key { channel: Channel::Farewell, id: 0 };
        let message = Outbound { peer, key, ordinal: 0, fingerprint: 0, signature: &[], message_len: 0 };
        let _ = self.send(&message, &[]);
    }

    /// Whether the link with `peer` stands.
    pub fn is_linked(&mut self, peer: usize) -> bool {
        self.transport.is_linked(peer)
    }

    /// The first unread frame from `peer` for `key`, if it has arrived. Reads the link as far as needed.
    ///
    /// # Errors
    /// The link is gone and nothing for `key` is left, or the peer sends nonsense.
    pub fn arrival(&mut self, peer: usize, key: Key) -> Result<Option<Arrival>, WireFault> {
        loop {
            if !self.aside.is_empty()
                && let Some(aside) = self.aside.get(&(peer, key)).and_then(VecDeque::front)
                && (aside.missing == 0 || !aside.bytes.is_empty())
            {
                return Ok(Some(aside.frame));
            }
            if self.incoming[peer].frame.is_none() && !self.read_head(peer)? {
                return Ok(None);
            }
            let frame = self.incoming[peer].frame.expect("a head was read");
            let begun_aside = self
                .aside
                .get(&(peer, frame.header.key))
                .and_then(VecDeque::back)
                .is_some_and(|a| a.missing > 0);
            if (frame.header.key == key || breaks(Mechanism::Tag)) && !begun_aside {
                return Ok(Some(frame));
            }
            let theirs = frame.header.key;
            if key.channel == Channel::Collective
                && theirs.channel == Channel::Collective
                && theirs.id < key.id
            {
                return Err(WireFault::Stale(theirs.id, decode_signature(self.incoming[peer].signature())));
            }
            if !self.set_aside(peer)? {
                return Ok(None);
            }
        }
    }

    /// The signature that came with the frame that [`arrival`](Self::arrival) returned.
    pub fn signature(&self, peer: usize, key: Key) -> Option<Box<Signature>> {
        let aside = self.aside.get(&(peer, key)).and_then(VecDeque::front);
        decode_signature(aside.map_or_else(|| self.incoming[peer].signature(), |a| &a.signature))
    }

    /// Reads payload of the frame that [`arrival`](Self::arrival) returned, at most to its end; 0 means none now.
    ///
    /// # Errors
    /// The link is gone.
    pub fn read(&mut self, peer: usize, key: Key, buffer: &mut [u8]) -> Result<usize, WireFault> {
        self.read_part(peer, key, buffer, buffer.len())
    }

    /// As [`read`](Self::read), where the bytes stay in `buffer`, which is a part of the place of a message of `whole` bytes.
    ///
    /// # Errors
    /// The link is gone.
    pub fn read_part(
        &mut self,
        peer: usize,
        key: Key,
        buffer: &mut [u8],
        whole: usize,
    ) -> Result<usize, WireFault> {
        if !self.aside.is_empty()
            && let Some(n) = self.read_aside(peer, key, buffer)
        {
            return Ok(n);
        }
        let n = self.read_payload(peer, buffer, whole)?;
        let frame = self.incoming[peer].frame.as_mut().expect("arrival came first");
        frame.left -= n;
        Ok(n)
    }

    /// Done with a frame whose payload was read to the end.
    pub fn finish(&mut self, peer: usize, key: Key) {
        if let Some(frames) = self.aside.get_mut(&(peer, key)) {
            frames.pop_front();
            self.aside_len -= ASIDE_COST;
            if frames.is_empty() {
                self.aside.remove(&(peer, key));
            }
        } else {
            let frame = self.incoming[peer].frame.take();
            debug_assert!(
                frame.is_some_and(|f| f.left == 0 && (f.header.key == key || breaks(Mechanism::Tag))),
                "a frame is read to its end"
            );
        }
    }

    /// Adds to `wait` what ends when bytes can move on the link; true if they can already.
    #[cfg(feature = "sockets")]
    pub fn watch(&mut self, peer: usize, direction: Direction, wait: &mut Wait) -> bool {
        self.transport.watch(peer, direction, wait)
    }

    /// The operations of this rank have failed: their memory is their callers' again once this returns.
    pub fn withdraw(&mut self) {
        self.transport.withdraw();
    }

    /// How long calls of the transport may wait for a peer that is copying into their buffers.
    pub fn wait_with(&mut self, patience: Arc<dyn Patience>) {
        self.transport.wait_with(patience);
    }

    /// The transport's, on which the wakers of all waits must be.
    pub fn wake_source(&self) -> Option<Arc<dyn WakeSource>> {
        self.transport.wake_source()
    }

    /// Wakes `waker` when a thread sets aside something another may wait for.
    pub fn add_sleeper(&mut self, waker: &Waker) {
        self.sleepers.push(waker.clone());
    }

    /// Undoes [`add_sleeper`](Self::add_sleeper).
    pub fn remove_sleeper(&mut self, waker: &Waker) {
        self.sleepers.retain(|b| !b.is(waker));
    }

    /// Wakes all sleepers and forgets them.
    pub fn wake_sleepers(&mut self) {
        self.sleepers.drain(..).for_each(|waker| waker.wake());
    }

    fn gone(&self, peer: usize, fault: LinkFault) -> WireFault {
        WireFault::Gone(fault, self.incoming[peer].farewell)
    }

    /// The link takes nothing any more; what the peer said before that may end with a farewell.
    fn last_words(&mut self, peer: usize, fault: LinkFault) -> WireFault {
        loop {
            let head = if self.incoming[peer].frame.is_some() { Ok(true) } else { self.read_head(peer) };
            match head.and_then(|ready| Ok(ready && self.set_aside(peer)?)) {
                Ok(true) => {}
                Ok(false) => return self.gone(peer, fault),
                Err(end) => return end,
            }
        }
    }

    /// Reads until a whole header (and signature) stands in the buffer, and takes it. If frames are checked, the payload stands
    /// there as well, and is what was sent.
    fn read_head(&mut self, peer: usize) -> Result<bool, WireFault> {
        loop {
            let link = &mut self.incoming[peer];
            let ready = &link.buffer[link.start..link.end];
            if let Some(head) = ready.first_chunk::<HEADER_LEN>() {
                let mut head = *head;
                if self.checked && !checksum::unseal(&mut head) {
                    return Err(WireFault::Nonsense("a header with a wrong checksum".into()));
                }
                let header = Header::decode(&head).map_err(WireFault::Nonsense)?;
                if link.farewell {
                    return Err(WireFault::Nonsense("a frame after its farewell".into()));
                }
                let unfinished = link.follows(&header).map_err(WireFault::Nonsense)?;
                let sum_len = if self.checked { BODY_SUM_LEN } else { 0 };
                let body = HEADER_LEN + sum_len;
                let whole = body + usize::from(header.signature_len);
                let needed = if self.checked { whole + header.frame_len as usize } else { whole };
                if ready.len() >= needed {
                    if self.checked {
                        check(&header, &ready[HEADER_LEN..needed]).map_err(WireFault::Nonsense)?;
                    }
                    link.known.mentioned(header.mention, &ready[body..whole]).map_err(WireFault::Nonsense)?;
                    link.start += whole;
                    link.unfinished = unfinished;
                    if header.key.channel == Channel::Farewell {
                        link.farewell = true;
                        continue;
                    }
                    if header.key.channel == Channel::Message && header.mention != Mention::Nothing {
                        self.tally.message_arrives(peer);
                    }
                    link.frame = Some(Arrival { header, left: header.frame_len as usize });
                    return Ok(true);
                }
                if needed > link.buffer.len() {
                    link.buffer.resize(needed.max(CHECKED_BUFFER_LEN), 0);
                }
            }
            if !self.refill(peer)? {
                return Ok(false);
            }
        }
    }

    /// Reads more bytes behind those in the buffer.
    #[inline]
    fn refill(&mut self, peer: usize) -> Result<bool, WireFault> {
        let link = &mut self.incoming[peer];
        link.move_to_front();
        if link.buffer.is_empty() {
            link.buffer = vec![0; BUFFER_LEN];
        }
        match self.transport.recv(peer, &mut link.buffer[link.end..]) {
            Ok(n) => {
                self.tally.moved(n);
                link.end += n;
                Ok(n > 0)
            }
            Err(fault) => Err(self.gone(peer, fault)),
        }
    }

    /// Reads payload of the current frame of a link: from the buffer, or straight from the link if it is long.
    fn read_payload(&mut self, peer: usize, buffer: &mut [u8], whole: usize) -> Result<usize, WireFault> {
        let left = self.incoming[peer].frame.map_or(0, |f| f.left);
        let want = left.min(buffer.len());
        if want == 0 {
            return Ok(0);
        }
        if self.incoming[peer].start == self.incoming[peer].end {
            if want >= BUFFER_LEN {
                let read = self.transport.recv_part(peer, &mut buffer[..want], whole);
                self.tally.moved(*read.as_ref().unwrap_or(&0));
                return read.map_err(|fault| self.gone(peer, fault));
            }
            if !self.refill(peer)? {
                return Ok(0);
            }
        }
        let link = &mut self.incoming[peer];
        let n = want.min(link.end - link.start);
        buffer[..n].copy_from_slice(&link.buffer[link.start..link.start + n]);
        link.start += n;
        Ok(n)
    }

    /// Moves what has arrived of the current frame of a link out of the way; true if the whole frame is.
    fn set_aside(&mut self, peer: usize) -> Result<bool, WireFault> {
        let frame = self.incoming[peer].frame.expect("only a frame can be set aside");
        let slot = (peer, frame.header.key);
        if self.aside.get(&slot).and_then(VecDeque::back).is_none_or(|aside| aside.missing == 0) {
            if self.aside_len >= self.aside_max {
                return Ok(false);
            }
            self.aside_len += ASIDE_COST;
            let missing = frame.left;
            let signature = self.incoming[peer].signature().to_vec();
            let queue = self.aside.entry(slot).or_default();
            queue.push_back(Aside { frame, signature, bytes: VecDeque::new(), missing });
        }
        let mut part = [0; 8 << 10];
        let mut moved = false;
        let whole = loop {
            let missing = self.aside[&slot].back().map_or(0, |a| a.missing);
            if missing == 0 {
                self.incoming[peer].frame = None;
                break true;
            }
            if self.aside_len >= self.aside_max {
                break false;
            }
            let n = self.read_payload(peer, &mut part, 0)?;
            if n == 0 {
                break false;
            }
            let frame = self.incoming[peer].frame.as_mut().expect("still being read");
            frame.left -= n;
            let aside = self.aside.get_mut(&slot).and_then(VecDeque::back_mut).expect("was just made");
            aside.bytes.extend(&part[..n]);
            aside.missing -= n;
            self.aside_len += n;
            moved = true;
        };
        if moved || whole {
            self.wake_sleepers();
        }
        Ok(whole)
    }

    fn read_aside(&mut self, peer: usize, key: Key, buffer: &mut [u8]) -> Option<usize> {
        let aside = self.aside.get_mut(&(peer, key))?.front_mut()?;
        let n = buffer.len().min(aside.bytes.len());
        let (front, back) = aside.bytes.as_slices();
        let of_front = n.min(front.len());
        buffer[..of_front].copy_from_slice(&front[..of_front]);
        buffer[of_front..n].copy_from_slice(&back[..n - of_front]);
        aside.bytes.drain(..n);
        aside.frame.left -= n;
        self.aside_len -= n;
        Some(n)
    }
}

/// Whether checksum, signature and payload of a frame belong together; an error says which frame.
fn check(header: &Header, body: &[u8]) -> Result<(), String> {
    let (sum, body) = body.split_at(BODY_SUM_LEN);
    let (signature, payload) = body.split_at(usize::from(header.signature_len));
    if sum == checksum::of_body(signature, payload) {
        return Ok(());
    }
    let Header { key, ordinal, frame_len, message_len, .. } = header;
    let of = match key.channel {
        Channel::Collective => format!("operation #{}", key.id),
        Channel::Message => format!("the message with tag {}", key.id),
        Channel::Farewell => "a farewell".to_owned(),
    };
    Err(format!(
        "a frame of {of} changed on its way: its checksum is wrong ({frame_len} bytes of the {message_len} of message {ordinal})"
    ))
}
