//! What this rank tells the launcher that started it, and hears from it, over its [lifeline](Lifeline).

use crate::generation::Seat;
use phalanx_core::{Cause, Deadline, Error, Result};
use phalanx_rendezvous::lifeline::{Exit, FirstCause};
use phalanx_rendezvous::{Config, Lifeline};
use std::sync::Arc;

/// The launcher, for a rank of one generation.
#[derive(Debug)]
pub(crate) struct Launcher {
    lifeline: Arc<Lifeline>,
    generation: u64,
    /// The workers, in rank order.
    roster: Vec<u64>,
}

impl Launcher {
    /// `None` in a job that no launcher of ours has started.
    ///
    /// # Errors
    /// Those of [`Lifeline::open`].
    pub(crate) fn of(config: &Config, seat: &Seat, deadline: &Deadline) -> Result<Option<Self>> {
        let (generation, roster) = (seat.generation, seat.roster.clone());
        Ok(Lifeline::open(config, deadline)?.map(|lifeline| Self { lifeline, generation, roster }))
    }

    /// All ranks of the generation are here.
    pub(crate) fn formed(&self) {
        self.lifeline.formed(self.generation);
    }

    /// A group has failed. Never fails or waits: see [`Lifeline::report`].
    pub(crate) fn report(&self, cause: &Cause) {
        let culprit = cause.culprit().and_then(|peer| self.roster.get(peer.rank).copied());
        self.lifeline.report(self.generation, FirstCause { culprit, words: cause.to_string() });
    }

    /// Calls `hear` with each rank of this generation whose process has ended, and how, until it returns false. See [`Lifeline::on_ended`].
    #[allow(dead_code, reason = "the arbiter is to hear of it")]
    pub(crate) fn on_ended(&self, mut hear: impl FnMut(usize, Exit) -> bool + Send + 'static) {
        let roster = self.roster.clone();
        self.lifeline.on_ended(move |ended| {
            let rank = roster.iter().position(|&worker| worker == ended.worker);
            rank.is_none_or(|rank| hear(rank, ended.exit))
        });
    }
}

/// This process is no rank, for that reason. In an elastic job another one takes its place, and nobody is at fault.
pub(crate) fn gave_up(lifeline: &Lifeline, config: &Config, error: &Error) {
    if config.elastic.is_some() {
        return;
    }
    let culprit = match error {
        // About others; who of them never came the launcher knows best.
        Error::Rendezvous { .. } => None,
        Error::PeerLost { .. } | Error::Timeout { .. } | Error::Mismatch { .. } | Error::Poisoned { .. } => {
            return;
        }
        Error::Protocol { .. } | Error::Aborted { .. } => return,
        _ => Some(lifeline.worker()),
    };
    lifeline.gave_up(FirstCause { culprit, words: error.to_string() });
}
