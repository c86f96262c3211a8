//! Short messages of a caller that waits: tried at once, before they become messages that others wait behind.

use crate::engine::at_once::AT_ONCE_MAX;
use crate::engine::message::on_the_wire;
use crate::group::backend::Address;
use crate::host::scheduled::ScheduledBackend;
use crate::trace::clock;
use phalanx_core::{Envelope, Result};

impl ScheduledBackend {
    /// Sends a short message for which there is room, if it is the only one.
    pub(super) fn send_at_once(&self, to: &Address, bytes: &[u8]) -> Result<bool> {
        let Address { signature, peer, tag } = to;
        self.engine.health.check_message(signature, Some(*peer), *tag)?;
        let is_sent = self.engine.lock().send_at_once(signature, *peer, *tag, bytes);
        if is_sent {
            self.was_at_once(to);
        }
        Ok(is_sent)
    }

    /// Receives a short message that is here, or comes while there is nothing to be gained from doing anything but look for it.
    pub(super) fn recv_at_once(&self, from: &Address, bytes: &mut [u8]) -> Result<bool> {
        let Address { signature, peer, tag } = from;
        self.engine.health.check_message(signature, Some(*peer), *tag)?;
        if bytes.len() > AT_ONCE_MAX {
            return Ok(false);
        }
        let fingerprint = on_the_wire(signature).fingerprint();
        let is_here = self.engine.poll_awake(|core| core.recv_at_once(fingerprint, *peer, *tag, bytes));
        if is_here {
            self.was_at_once(from);
        }
        Ok(is_here)
    }

    fn was_at_once(&self, Address { signature, peer, tag }: &Address) {
        let health = &self.engine.health;
        let with = Envelope { peer: Some(health.members()[*peer]), tag: *tag };
        health.latch.messages.message_at_once(signature, with, clock::now);
    }
}
