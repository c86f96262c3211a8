//! Device memory without NCCL: it goes through pinned memory of the host, where the process group does the work.
//!
//! Slow, and only where somebody has asked for it. It needs nothing but the CUDA driver, works for every collective and for messages, and gives the
//! bits that the group gives on the host, chunk by chunk.

mod pipeline;
mod running;
mod shared;

use crate::action::Action;
use crate::batch::Batch;
use crate::device::Device;
use crate::group::Work;
use crate::in_order::use_in_order;
use crate::joint_health::JointHealth;
use crate::memory::Memory;
use crate::operation::{Carrier, Operation};
use crate::stream::Stream;
use phalanx_core::{CallSite, Cause, Deadline, Error, OpKind, Result, Signature};
use phalanx_group::ProcessGroup;
use pipeline::Pipeline;
use running::Running;
use shared::Shared;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Operations between devices, over the host. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Staging {
    shared: Arc<Shared>,
    /// After whose work an operation begins, and which waits for its end.
    stream: Stream,
    timeout: Duration,
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let control = &self.shared.health.control;
        write!(f, "Staging(rank {}/{} on {})", control.rank(), control.world_size(), self.shared.device)
    }
}

impl Staging {
    /// For the devices of the ranks of `group`. Collective.
    pub(crate) fn new(group: &ProcessGroup, device: &Device) -> Result<Self> {
        let health = JointHealth::of(group)?;
        let [stream, to_host, to_device] = [Stream::new(device)?, Stream::new(device)?, Stream::new(device)?];
        let shared = Shared { health, device: device.clone(), to_host, to_device, turn: Mutex::default() };
        Ok(Self { shared: Arc::new(shared), stream, timeout: group.timeout() })
    }

    pub(crate) fn health(&self) -> &JointHealth {
        &self.shared.health
    }

    pub(crate) fn device(&self) -> &Device {
        &self.shared.device
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    pub(crate) fn on_stream(&self, stream: &Stream) -> Result<Self> {
        stream.check(self.device())?;
        Ok(Self { stream: stream.clone(), ..self.clone() })
    }

    pub(crate) fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    pub(crate) fn batch<'a>(&self) -> Batch<'a> {
        let (rank, world_size, carrier) = self.place();
        Batch::new(rank, world_size, carrier)
    }

    /// Performs everything in `batch`, and returns when it is over.
    pub(crate) fn launch_at(&self, batch: &Batch<'_>, site: &CallSite) -> Result<Work> {
        batch.check(self, self.place(), &self.shared.device)?;
        self.stream.check_capture()?;
        let signature = batch.signature(site);
        self.run(&signature, |running| self.perform(batch, running, site)).map(|()| Work::over())
    }

    /// Waits until all ranks have come, and the stream has done what it was given.
    pub(crate) fn barrier_at(&self, site: &CallSite) -> Result<()> {
        let (op, site) = (OpKind::Barrier, site.clone());
        let signature = Signature::bare(op, site);
        self.run(&signature, |running| {
            running.wait(|left| self.stream.synchronize(left))?;
            let _turn = self.turn();
            running.group().barrier()
        })
    }

    fn place(&self) -> (usize, usize, Carrier) {
        let control = &self.shared.health.control;
        (control.rank(), control.world_size(), Carrier::Host)
    }

    fn run(&self, signature: &Signature, work: impl FnOnce(&Running<'_>) -> Result<()>) -> Result<()> {
        let health = &self.shared.health;
        if let Some(cause) = health.failure() {
            return Err(health.refused(signature, cause));
        }
        let deadline = Deadline::after(Instant::now(), self.timeout);
        let running = Running { health, signature, deadline };
        work(&running).map_err(|error| running.failed(error))
    }

    fn perform(&self, batch: &Batch<'_>, running: &Running<'_>, site: &CallSite) -> Result<()> {
        let in_use = InUse::begin(self, batch.memory())?;
        let outcome = self.exchange(batch, running, site);
        drop(in_use);
        outcome?;
        running.wait(|left| self.stream.synchronize(left))
    }

    /// Messages first, all at a time, for others wait for them; then the collectives, in order.
    fn exchange(&self, batch: &Batch<'_>, running: &Running<'_>, site: &CallSite) -> Result<()> {
        for Operation { op, count, element, .. } in batch.operations() {
            let bytes = count * element.size;
            tracing::warn!(operation = %op, bytes, %site, "device memory goes over the host: there is no NCCL here, or it was not wanted");
        }
        let (collectives, messages): (Vec<&Operation>, Vec<&Operation>) =
            batch.operations().iter().partition(|operation| operation.is_collective());
        self.messages(&messages, running)?;
        let Some(signature) = batch.collective(site) else { return Ok(()) };
        let _turn = self.turn();
        // Chunks of one length may be those of buffers of another.
        let agreement = running.group().agree_async(signature)?;
        let mut agreement = Some(agreement);
        for operation in collectives {
            let mut pipeline = Pipeline::begin(&self.shared, operation, running)?;
            agreement.take().map_or(Ok(()), phalanx_group::Work::wait)?;
            pipeline.perform()?;
        }
        Ok(())
    }

    /// Performs messages; those between the same two ranks in order.
    fn messages(&self, messages: &[&Operation], running: &Running<'_>) -> Result<()> {
        let mut lines: Vec<(_, Vec<&Operation>)> = Vec::new();
        for &message in messages {
            let line = (message.op, message.rank());
            match lines.iter_mut().find(|(known, _)| *known == line) {
                Some((_, others)) => others.push(message),
                None => lines.push((line, vec![message])),
            }
        }
        let perform = |line: &[&Operation]| {
            let outcome = line.iter().try_for_each(|message| {
                let mut pipeline = Pipeline::begin(&self.shared, message, running)?;
                announce(message, running)?;
                pipeline.perform()
            });
            // At once: other messages may wait for ranks that wait for this one.
            outcome.map_err(|error| running.failed(error))
        };
        if let [(_, only)] = &lines[..] {
            return perform(only);
        }
        std::thread::scope(|threads| {
            let started: Vec<_> = lines.iter().map(|(_, line)| threads.spawn(|| perform(line))).collect();
            let ends = started.into_iter().map(std::thread::ScopedJoinHandle::join);
            let panicked = |_| Err(Error::Internal { what: "a thread with a message panicked".into() });
            ends.map(|end| end.unwrap_or_else(panicked)).fold(Ok(()), Result::and)
        })
    }

    fn turn(&self) -> std::sync::MutexGuard<'_, ()> {
        self.shared.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory between its last use before an operation and the next, on any stream. Copies in between need not be ordered with others.
struct InUse<'a> {
    staging: &'a Staging,
    memory: &'a [&'a Memory],
}

impl<'a> InUse<'a> {
    fn begin(staging: &'a Staging, memory: &'a [&'a Memory]) -> Result<Self> {
        let (shared, stream) = (&staging.shared, &staging.stream);
        use_in_order(stream, memory, || Ok(()))?;
        let before = stream.record()?;
        shared.to_host.wait_for(&before)?;
        shared.to_device.wait_for(&before)?;
        Ok(Self { staging, memory })
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        let Self { staging: Staging { shared, stream, .. }, memory } = self;
        let ended = use_in_order(stream, memory, || {
            stream.wait_for(&shared.to_host.record()?)?;
            stream.wait_for(&shared.to_device.record()?)
        });
        if ended.is_err() {
            memory.iter().for_each(|piece| piece.lose());
        }
    }
}

/// The two ends of a message agree on its length, before chunks that may be alike.
fn announce(message: &Operation, running: &Running<'_>) -> Result<()> {
    let group = running.group();
    let mut sent = [message.count as u64];
    let peer = match message.action {
        Action::Collective(_) => return Ok(()),
        Action::Send { dst, .. } => return group.send(&sent, dst, 0),
        Action::Recv { src, .. } => src,
    };
    group.recv(&mut sent, peer, 0)?;
    if sent[0] == message.count as u64 {
        return Ok(());
    }
    let what = format!("it sends {} elements, where {} are expected here", sent[0], message.count);
    Err(running.fail(Cause::Protocol { peer: group.peer(peer), what }))
}
