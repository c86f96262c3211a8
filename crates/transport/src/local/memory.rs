//! Memory that ranks of one host give and take: what users of the exchange see of it.

use super::fd_offer::FdOffer;
use crate::LinkFault;
use crate::handshake::{Hello, Purpose};
use crate::tcp::Exchange;
use phalanx_core::{Deadline, Error, GroupId, Result};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How often a waiting thread asks whether to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// Memory on its way to another rank. Dropping this does not stop it.
#[derive(Debug)]
pub struct OfferedFd(Receiver<Result<(), LinkFault>>);

impl OfferedFd {
    /// Waits until the other process has the memory. Asks `stop` at least every 50 ms.
    ///
    /// # Errors
    /// Says why it does not have it: [`LinkFault::Starved`] if the reason is here.
    pub fn wait(self, deadline: &Deadline, stop: impl Fn() -> bool) -> Result<(), LinkFault> {
        receive(&self.0, deadline, stop).map_err(LinkFault::Unreachable)?
    }
}

impl Exchange {
    /// Passes `memory` to rank `to` (of the job), which listens under `name` (its [`local_name`](Self::local_name)), as number
    /// `seq` of `group`; that [takes](Self::take) it by the same number. Returns at once: it happens on the endpoint's thread.
    pub fn give(
        &self,
        group: GroupId,
        seq: u64,
        to: usize,
        name: &str,
        memory: Arc<OwnedFd>,
        deadline: Deadline,
    ) -> OfferedFd {
        let (outcome, given) = channel();
        let (rank, world_size) = (self.rank as u32, self.world_size as u32);
        let hello = Hello { purpose: Purpose::Memory, rank, called: to as u32, world_size, group };
        let offer = FdOffer { name: name.to_owned(), hello, seq, memory, deadline, outcome };
        self.endpoint.call(move |_, outbox| outbox.offer_fd(offer));
        OfferedFd(given)
    }

    /// Waits for the memory that rank `from` (of the job) gives as number `seq` of `group`. Asks `stop` at least every 50 ms.
    /// Only who knows the job's secret could give it, but its size and contents are as `from` made them.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if it did not come before `deadline`, or before `stop` was true. What comes later is kept for the group until
    /// that [ends](Self::close).
    pub fn take(
        &self,
        group: GroupId,
        seq: u64,
        from: usize,
        deadline: &Deadline,
        stop: impl Fn() -> bool,
    ) -> Result<OwnedFd> {
        let (reply, taken) = channel();
        self.endpoint.call(move |links, _| links.memories.ask((group, from, seq), reply));
        receive(&taken, deadline, stop).map_err(|why| Error::Rendezvous {
            rank: self.rank,
            world_size: self.world_size,
            what: format!("rank {from} was to share memory for {group}, but {why}"),
            waited: deadline.elapsed(Instant::now()),
        })
    }
}

/// Waits for what the endpoint's thread sends.
fn receive<T>(from: &Receiver<T>, deadline: &Deadline, stop: impl Fn() -> bool) -> Result<T, String> {
    loop {
        let left = deadline.remaining(Instant::now());
        match from.recv_timeout(left.min(STOP_INTERVAL)) {
            Ok(it) => return Ok(it),
            Err(RecvTimeoutError::Disconnected) => return Err("this rank is shutting down".into()),
            Err(RecvTimeoutError::Timeout) if left.is_zero() => return Err("it did not come in time".into()),
            Err(RecvTimeoutError::Timeout) if stop() => return Err("the wait was stopped".into()),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
