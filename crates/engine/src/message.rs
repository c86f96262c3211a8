//! Point-to-point: one tagged message to or from one peer.
//!
//! Messages to one peer leave in the order of the calls; messages with one tag from one peer are matched in the
//! order of the calls that await them.

use crate::any_peer::AnyPeer;
use crate::collective::POLL_BYTES;
use crate::core::{Core, Fault, Progress};
use crate::message_queues::{QueueKey, Ticket, queue_key};
use phalanx_control::group_health::{ErrorContext, GroupHealth};
use phalanx_core::{Error, OpKind, Signature};
use phalanx_transport::{Channel, Direction, Key, Outbound, encode_signature};
use std::time::Duration;

/// What a receive does when no message has begun to arrive within its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTimeout {
    /// It fails the group.
    FailGroup,
    /// It returns [`NoMessage`](phalanx_core::Error::NoMessage), and the group lives on.
    ReturnNoMessage,
}

/// Where a message's bytes are.
#[derive(Debug)]
pub enum Payload<'a> {
    /// To send.
    Out(&'a [u8]),
    /// To receive into.
    In(&'a mut [u8]),
}

impl Payload<'_> {
    /// Bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Out(bytes) => bytes.len(),
            Self::In(bytes) => bytes.len(),
        }
    }

    /// Whether the message is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A message in progress. Its bytes are lent to it for each poll.
#[derive(Debug)]
pub struct Message {
    /// While any of several may send it, one of them.
    peer: usize,
    /// Those that may send it, until one has.
    any: Option<Box<AnyPeer>>,
    tag: u64,
    ticket: Ticket,
    signature: Signature,
    /// As the other side must see it.
    fingerprint: u64,
    /// Of a send.
    encoded: Vec<u8>,
    len: usize,
    done: usize,
    begun: bool,
    /// Nobody waits for it, and it has [room](crate::eager) until it is sent.
    eager: bool,
}

/// The operation of a message's signature as the other side must see it: a send is a send from both ends.
pub const ON_THE_WIRE: OpKind = OpKind::Send;

fn on_the_wire(call: &Signature) -> Signature {
    Signature { op: ON_THE_WIRE, ..call.clone() }
}

impl Message {
    /// Of `len` bytes to or from `peer`, as the signature says, with a place in its [queue](queue_key).
    pub fn new(peer: usize, tag: u64, ticket: Ticket, signature: Signature, len: usize) -> Self {
        let on_the_wire = on_the_wire(&signature);
        let sends = queue_key(signature.op, peer, tag).0 == Direction::Send;
        Self {
            peer,
            any: None,
            tag,
            ticket,
            fingerprint: on_the_wire.fingerprint(),
            encoded: if sends { encode_signature(&on_the_wire) } else { Vec::new() },
            signature,
            len,
            done: 0,
            begun: false,
            eager: false,
        }
    }

    /// Of `len` bytes from any of `peers`, in whose queues it takes a place, with this tag and its number in the log of messages. There is
    /// at least one peer.
    pub fn from_any(
        peers: Vec<usize>,
        (tag, number): (u64, u64),
        signature: Signature,
        len: usize,
        core: &mut Core,
    ) -> Self {
        let any = AnyPeer::new(peers, (tag, number), core);
        let message = Self::new(any.open()[0], tag, any.ticket(), signature, len);
        Self { any: Some(Box::new(any)), ..message }
    }

    /// The peer whose message has come, of one that any may send. It is not taken yet.
    pub fn find(&mut self, core: &mut Core) -> Result<Option<usize>, Fault> {
        self.any.as_mut().map_or(Ok(None), |any| any.find(core))
    }

    /// Takes the message of this peer, which was [found](Self::find): from now on it is an ordinary receive.
    pub fn take(&mut self, peer: usize, core: &mut Core) {
        if let Some(any) = self.any.take() {
            any.take(peer, core);
            self.peer = peer;
        }
    }

    /// The peers that may send it, while any may.
    pub fn any_peer(&self) -> Option<&AnyPeer> {
        self.any.as_deref()
    }

    fn key(&self) -> Key {
        Key { channel: Channel::Message, id: self.tag }
    }

    /// Does all that can be done now.
    pub fn poll(&mut self, core: &mut Core, payload: &mut Payload<'_>) -> Result<Progress, Fault> {
        if self.any.is_some() {
            match self.find(core)? {
                Some(peer) => self.take(peer, core),
                None => return Ok(Progress::Idle),
            }
        }
        if !self.is_due(core) {
            return Ok(Progress::Idle);
        }
        let progress = match payload {
            Payload::Out(bytes) => self.poll_send(core, bytes)?,
            Payload::In(bytes) => self.poll_recv(core, bytes)?,
        };
        if matches!(progress, Progress::Finished) {
            self.step_aside(core);
            if self.eager {
                core.eager.release(self.peer, self.len);
            }
        }
        Ok(progress)
    }

    /// The same message, for which there is room until it is sent.
    pub fn eager(self) -> Self {
        Self { eager: true, ..self }
    }

    /// Leaves the line, done or not.
    pub fn step_aside(&self, core: &mut Core) {
        if let Some(any) = &self.any {
            return any.leave(None, core);
        }
        core.queues.leave(self.queue(), self.ticket);
        core.wire.wake_sleepers();
    }

    fn queue(&self) -> QueueKey {
        queue_key(self.signature.op, self.peer, self.tag)
    }

    /// Whether no call before it has the same queue. What any may send waits for nobody else.
    pub fn is_due(&self, core: &Core) -> bool {
        self.any.is_some() || core.queues.is_first(self.queue(), self.ticket)
    }

    fn poll_send(&mut self, core: &mut Core, bytes: &[u8]) -> Result<Progress, Fault> {
        let (mut moved, before) = (false, self.done);
        loop {
            if self.done - before >= POLL_BYTES {
                return Ok(Progress::Moved);
            }
            let message = Outbound {
                peer: self.peer,
                key: self.key(),
                ordinal: 0,
                fingerprint: self.fingerprint,
                signature: if self.done == 0 { &self.encoded } else { &[] },
                message_len: self.len as u64,
            };
            let sent = core.wire.send(&message, &bytes[self.done..]).map_err(|f| (self.peer, f))?;
            self.done += sent.payload;
            self.begun = true;
            moved |= sent.payload > 0;
            if !sent.complete {
                return Ok(if moved { Progress::Moved } else { Progress::Idle });
            }
            if self.done == self.len {
                return Ok(Progress::Finished);
            }
        }
    }

    fn poll_recv(&mut self, core: &mut Core, bytes: &mut [u8]) -> Result<Progress, Fault> {
        let (peer, key) = (self.peer, self.key());
        let (mut moved, before) = (false, self.done);
        loop {
            if self.done - before >= POLL_BYTES {
                return Ok(Progress::Moved);
            }
            let Some(arrival) = core.wire.arrival(peer, key).map_err(|f| (peer, f))? else {
                return Ok(if moved { Progress::Moved } else { Progress::Idle });
            };
            self.begun = true;
            if arrival.header.fingerprint != self.fingerprint || arrival.header.message_len != self.len as u64
            {
                let theirs = core.wire.signature(peer, key);
                let (ours, tag) = (Box::new(self.signature.clone()), Some(self.tag));
                return Err(Fault::Mismatch { peer, seq: 0, tag, ours, theirs });
            }
            let due = self.len - self.done;
            if arrival.left > due {
                let what = format!("in {}: {} bytes where {due} were due", self.signature, arrival.left);
                return Err(Fault::Nonsense { peer, what });
            }
            let n = match arrival.left {
                0 => 0,
                left => core
                    .wire
                    .read_part(peer, key, &mut bytes[self.done..self.done + left], self.len)
                    .map_err(|f| (peer, f))?,
            };
            self.done += n;
            if n == arrival.left {
                core.wire.finish(peer, key);
                if self.done == self.len {
                    return Ok(Progress::Finished);
                }
            } else if n == 0 {
                return Ok(if moved { Progress::Moved } else { Progress::Idle });
            }
            moved = true;
        }
    }

    /// Nothing yet, while it waits in line.
    pub fn wants(&self, core: &Core, wants: &mut Vec<(usize, Direction)>) {
        if let Some(any) = &self.any {
            any.wants(core, wants);
        } else if self.is_due(core) {
            wants.push((self.peer, self.queue().0));
        }
    }

    /// Whether any byte of it was seen: it can't be withdrawn.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun
    }

    /// The error of a receive in vain that is no failure of the group.
    pub fn in_vain(&self, health: &GroupHealth, waited: Duration) -> Error {
        let (from, tag) = self.ends();
        let (signature, message) = (self.signature(), Some((from, tag)));
        let told = ErrorContext { signature, seq: 0, message, bytes: (0, 0), elapsed: waited };
        let at = Box::new(health.context(told));
        let from = from.map_or_else(|| health.others_here(), |from| vec![health.peer(from)]);
        Error::NoMessage { from, tag, waited, at }
    }

    /// What was called.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The other end, as a rank of the group, or `None` while any may send it; and the tag.
    pub fn ends(&self) -> (Option<usize>, u64) {
        (self.any.is_none().then_some(self.peer), self.tag)
    }

    /// The other end; while any may send it, one of them.
    pub(crate) fn peer(&self) -> usize {
        self.peer
    }

    /// Payload bytes received, and all there are to receive.
    pub fn bytes(&self) -> (u64, u64) {
        match self.signature.op {
            OpKind::Recv | OpKind::RecvAny => (self.done as u64, self.len as u64),
            _ => (0, 0),
        }
    }
}
