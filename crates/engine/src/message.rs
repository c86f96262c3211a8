//! Point-to-point: one tagged message to or from one peer.
//!
//! Messages to one peer leave in the order of the calls; messages with one tag from one peer are matched in the
//! order of the calls that await them.

use crate::collective::POLL_BYTES;
use crate::core::{Core, Fault, Progress};
use crate::message_queues::{QueueKey, Ticket};
use phalanx_core::{OpKind, Signature};
use phalanx_transport::{Channel, Direction, Key, Outbound, encode_signature};

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
    peer: usize,
    tag: u64,
    ticket: Ticket,
    signature: Signature,
    /// As the other side must see it: a send is a send from both ends.
    fingerprint: u64,
    encoded: Vec<u8>,
    len: usize,
    done: usize,
    begun: bool,
    /// Nobody waits for it, and it has [room](crate::eager) until it is sent.
    eager: bool,
}

impl Message {
    /// Of `len` bytes to or from `peer`, as the signature says, with a place in its [queue](queue_key).
    pub fn new(peer: usize, tag: u64, ticket: Ticket, signature: Signature, len: usize) -> Self {
        let on_the_wire = Signature { op: OpKind::Send, ..signature.clone() };
        Self {
            peer,
            tag,
            ticket,
            fingerprint: on_the_wire.fingerprint(),
            encoded: encode_signature(&on_the_wire),
            signature,
            len,
            done: 0,
            begun: false,
            eager: false,
        }
    }

    fn key(&self) -> Key {
        Key { channel: Channel::Message, id: self.tag }
    }

    /// Does all that can be done now.
    pub fn poll(&mut self, core: &mut Core, payload: &mut Payload<'_>) -> Result<Progress, Fault> {
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
        core.queues.leave(self.queue(), self.ticket);
        core.wire.wake_sleepers();
    }

    fn queue(&self) -> QueueKey {
        queue_key(self.signature.op, self.peer, self.tag)
    }

    /// Whether no call before it has the same queue.
    pub fn is_due(&self, core: &Core) -> bool {
        core.queues.is_first(self.queue(), self.ticket)
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
                    .read(peer, key, &mut bytes[self.done..self.done + left])
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
        if self.is_due(core) {
            wants.push((self.peer, self.queue().0));
        }
    }

    /// Whether any byte of it was seen: it can't be withdrawn.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun
    }

    /// What was called.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The other end, as a rank of the group, and the tag.
    pub fn ends(&self) -> (usize, u64) {
        (self.peer, self.tag)
    }

    /// Payload bytes received, and all there are to receive.
    pub fn bytes(&self) -> (u64, u64) {
        match self.signature.op {
            OpKind::Recv => (self.done as u64, self.len as u64),
            _ => (0, 0),
        }
    }
}

/// The line in which a call waits: sends to one peer are one line, receives one for each peer and tag.
pub fn queue_key(op: OpKind, peer: usize, tag: u64) -> QueueKey {
    match op {
        OpKind::Recv => (Direction::Recv, peer, tag),
        _ => (Direction::Send, peer, 0),
    }
}
