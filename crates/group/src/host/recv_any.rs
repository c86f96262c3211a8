//! A receive from any peer of one engine.

use super::scheduled::ScheduledBackend;
use crate::engine::attempt::Attempt;
use crate::engine::batch::{Batch, Borrowed};
use crate::engine::message::Message;
use crate::engine::task::Task;
use crate::group::backend::{OnTimeout, Payload};
use crate::group::memory::{Extent, OwnedBuffer};
use crate::group::pending::{Bytes, Pending};
use crate::host::workspace::Workspace;
use crate::progress::progress_thread;
use crate::trace::clock;
use phalanx_core::{Envelope, Error, Result, Signature};
use std::time::{Duration, Instant};

impl ScheduledBackend {
    /// Receives from whichever of the other ranks sends first, and returns that rank.
    pub(super) fn receive_any(
        &self,
        call: Signature,
        tag: u64,
        bytes: &mut [u8],
        timeout: Duration,
        on_timeout: OnTimeout,
    ) -> Result<usize> {
        let _in_vain = self.in_vain(on_timeout);
        let (message, number) = self.any_message(&call, tag, bytes.len())?;
        let mut batch = Batch::new(vec![Borrowed::new(message, number, Payload::In(bytes))], on_timeout);
        let done = self.engine.drive(&mut batch, Attempt::new(Instant::now(), timeout));
        if let Err(error) = done {
            batch.withdraw(&mut self.engine.lock());
            return Err(error);
        }
        batch.sender().ok_or_else(|| Error::Internal { what: "a message came from nobody".into() })
    }

    /// Begins to receive from whichever of the other ranks sends first.
    pub(super) fn submit_any(
        &self,
        call: Signature,
        tag: u64,
        buffer: Box<dyn Bytes>,
        timeout: Duration,
    ) -> Result<Pending> {
        progress_thread::start(&self.engine)?;
        let buffer = OwnedBuffer::new(buffer);
        let (message, number) = self.any_message(&call, tag, buffer.len_bytes())?;
        let (pending, completion) = Pending::new();
        let job = self.owned(Task::Message(message, number), Workspace::InPlace(buffer), completion, timeout);
        progress_thread::submit_short(&self.engine, Box::new(job));
        Ok(pending.driven_by(self.engine.clone()))
    }

    /// A message from any of the other ranks that begins, and its number.
    pub(crate) fn any_message(&self, call: &Signature, tag: u64, len: usize) -> Result<(Message, u64)> {
        let health = &self.engine.health;
        health.check_message(call, None, tag)?;
        let number = health.latch.messages.begin_message(call, Envelope { peer: None, tag }, clock::now);
        let others = (0..health.members().len()).filter(|&rank| rank != health.rank).collect();
        let message = Message::from_any(others, (tag, number), call.clone(), len, &mut self.engine.lock());
        Ok((message, number))
    }
}
