//! The launcher that started this rank: what they tell each other, over the [lifeline](Lifeline).

use crate::bootstrap::regroup::Assignment;
use crate::control::launcher_link::LauncherLink;
use phalanx_core::{Cause, Deadline, Error, Loss, Result};
use phalanx_rendezvous::lifeline::{Exit, FirstCause};
use phalanx_rendezvous::{Config, Lifeline};
use std::sync::Arc;

/// The launcher, for a rank of one generation.
#[derive(Debug, Clone)]
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
    pub(crate) fn of(config: &Config, assignment: &Assignment, deadline: &Deadline) -> Result<Option<Self>> {
        let (generation, roster) = (assignment.generation, assignment.roster.clone());
        Ok(Lifeline::open(config, deadline)?.map(|lifeline| Self { lifeline, generation, roster }))
    }

    /// All ranks of the generation are here.
    pub(crate) fn formed(&self) {
        self.lifeline.formed(self.generation);
    }
}

impl LauncherLink for Launcher {
    fn report(&self, cause: &Cause) {
        let culprit = cause.culprit().and_then(|peer| self.roster.get(peer.rank).copied());
        self.lifeline.report(self.generation, FirstCause { culprit, words: cause.to_string() });
    }

    fn exit_of(&self, rank: usize) -> Option<Loss> {
        let worker = self.roster.get(rank)?;
        let ended = self.lifeline.ended().into_iter().find(|ended| ended.worker == *worker)?;
        Some(match ended.exit {
            Exit::Code(code) => Loss::Exited { code },
            Exit::Signal(signal) => Loss::Killed { signal },
            _ => Loss::Died,
        })
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
