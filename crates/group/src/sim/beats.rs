//! The thread of a simulated process that beats in the job's store.

use super::network::Net;
use super::store::Ticket;
use crate::bootstrap::regroup::watch::{Round, Watch};
use std::sync::Arc;
use std::time::Instant;

/// One process's beats, of a generation or on the way to its first.
#[derive(Debug)]
pub(super) struct Beats {
    pub(super) watch: Arc<Watch>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The generation is in order: there is no thread.
    Silent,
    Pausing(Instant),
    Looking(Round, Ticket),
}

impl Beats {
    /// None yet.
    pub(super) fn new(watch: Watch) -> Self {
        Self { watch: Arc::new(watch), stage: Stage::Silent }
    }

    /// Beats from now on.
    pub(super) fn begin(&mut self, now: Instant) {
        if let Stage::Silent = self.stage {
            self.stage = Stage::Pausing(now);
        }
    }

    /// Does what can be done now. Returns when to look again.
    pub(super) fn look(&mut self, net: &Net, now: Instant) -> Option<Instant> {
        loop {
            let (mut round, answer) = match std::mem::replace(&mut self.stage, Stage::Silent) {
                Stage::Silent => return None,
                Stage::Pausing(until) if now < until => {
                    self.stage = Stage::Pausing(until);
                    return Some(until);
                }
                Stage::Pausing(_) => (self.watch.round(), None),
                Stage::Looking(round, ticket) => match net.lock().answer(ticket) {
                    None => {
                        self.stage = Stage::Looking(round, ticket);
                        return Some(ticket.gives_up);
                    }
                    Some(Ok(answer)) => (round, Some(answer)),
                    // It is tried again in the next round.
                    Some(Err(_)) => {
                        self.stage = Stage::Pausing(now + self.watch.pause());
                        continue;
                    }
                },
            };
            self.stage = match self.watch.step(&mut round, answer, now) {
                Some(ask) => Stage::Looking(round, net.lock().ask(self.watch.worker() as usize, ask)),
                None => Stage::Pausing(now + self.watch.pause()),
            };
        }
    }
}
