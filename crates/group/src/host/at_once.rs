//! Short messages of a caller that waits: tried at once, before they become messages that others wait behind.

use crate::engine::at_once::RECEIVED_AT_ONCE_MAX;
use crate::engine::message::ON_THE_WIRE;
use crate::group::backend::Address;
use crate::host::scheduled::ScheduledBackend;
use crate::trace::clock;
use phalanx_core::{Envelope, Result};
use phalanx_trace::is_precise;
use phalanx_transport::AtOnce;
use std::ops::ControlFlow;
use std::time::Duration;

impl ScheduledBackend {
    /// Sends a short message for which there is room, if it is the only one. If that can't be, returns the number that it has in the log, if it has one already.
    pub(super) fn send_at_once(&self, to: &Address, bytes: &[u8]) -> Result<ControlFlow<(), Option<u64>>> {
        let Address { signature, peer, tag } = to;
        self.engine.health.check_message(signature, Some(*peer), *tag)?;
        let number = self.log_if_precise(to);
        if !self.engine.lock().send_at_once(signature, *peer, *tag, bytes) {
            return Ok(ControlFlow::Continue(number));
        }
        self.was_at_once(to, number);
        Ok(ControlFlow::Break(()))
    }

    /// Receives a short message that is here, or comes while there is nothing to be gained from doing anything but look for it. If it does not, returns
    /// the number that it has in the log, if it has one already.
    pub(super) fn recv_at_once(
        &self,
        from: &Address,
        bytes: &mut [u8],
        timeout: Duration,
    ) -> Result<ControlFlow<(), Option<u64>>> {
        let Address { signature, peer, tag } = from;
        self.engine.health.check_message(signature, Some(*peer), *tag)?;
        if bytes.len() > RECEIVED_AT_ONCE_MAX {
            return Ok(ControlFlow::Continue(None));
        }
        let fingerprint = signature.fingerprint_as(ON_THE_WIRE);
        let mut number = self.log_if_precise(from);
        let is_here = self.engine.poll_awake(|core| {
            core.polled_with(timeout);
            let polled = core.recv_at_once(fingerprint, *peer, *tag, bytes);
            if polled == AtOnce::NotYet && number.is_none() {
                // While it waits that costs nothing.
                number = Some(self.log(from));
            }
            polled
        });
        if !is_here {
            return Ok(ControlFlow::Continue(number));
        }
        self.was_at_once(from, number);
        Ok(ControlFlow::Break(()))
    }

    /// A message that is long enough for its time to be told begins before anything is done for it.
    fn log_if_precise(&self, address: &Address) -> Option<u64> {
        is_precise(&address.signature).then(|| self.log(address))
    }

    /// A message begins; it gets a number in the log.
    pub(super) fn log(&self, address: &Address) -> u64 {
        let messages = &self.engine.health.latch.messages;
        messages.begin_message(&address.signature, self.envelope(address), clock::now)
    }

    fn envelope(&self, Address { peer, tag, .. }: &Address) -> Envelope {
        Envelope { peer: Some(self.engine.health.members()[*peer]), tag: *tag }
    }

    /// A message has ended, which has this number if it has one already.
    fn was_at_once(&self, address: &Address, number: Option<u64>) {
        let (messages, signature) = (&self.engine.health.latch.messages, &address.signature);
        match number {
            None => messages.message_at_once(signature, self.envelope(address), clock::now),
            Some(number) => messages.end_message_at_once(number, signature, clock::now),
        }
    }
}
