//! Messages that are over at once: a short one for which its link has room, or one that is here.
//!
//! They take no place in a queue and no look at the clock. Whatever is out of the ordinary is left as it is for a [`Message`](crate::message), which
//! finds it again.

use crate::core::Core;
use crate::message_queues::queue_key;
use phalanx_core::{OpKind, Signature};
use phalanx_transport::{AtOnce, Channel, Key, Outbound};

/// The longest message, in bytes, that is sent at once.
const SENT_AT_ONCE_MAX: usize = 64 << 10;
/// The longest message, in bytes, that is received at once. A longer one comes in pieces while it is sent, and its receiver prepares for them before they come.
pub const RECEIVED_AT_ONCE_MAX: usize = 16 << 10;

impl Core {
    /// Sends `bytes`, as a call of [`Send`](OpKind::Send) says, if no call is before it and the link takes all of it now.
    pub fn send_at_once(&mut self, call: &Signature, peer: usize, tag: u64, bytes: &[u8]) -> bool {
        if bytes.len() > SENT_AT_ONCE_MAX || !self.queues.is_free(queue_key(OpKind::Send, peer, tag)) {
            return false;
        }
        let (fingerprint, signature) = self.said.of(call);
        let key = Key { channel: Channel::Message, id: tag };
        let message_len = bytes.len() as u64;
        let message = Outbound { peer, key, ordinal: 0, fingerprint, signature, message_len };
        self.wire.send_at_once(&message, bytes).unwrap_or(false)
    }

    /// Receives the message that has this fingerprint [on the wire](crate::message::ON_THE_WIRE), if no call is before this one and all of it is here.
    pub fn recv_at_once(&mut self, fingerprint: u64, peer: usize, tag: u64, buffer: &mut [u8]) -> AtOnce {
        if !self.queues.is_free(queue_key(OpKind::Recv, peer, tag)) {
            return AtOnce::Impossible;
        }
        self.wire.recv_at_once(peer, tag, fingerprint, buffer).unwrap_or(AtOnce::Impossible)
    }
}
